"""Checkpoints of removed groups, on every store: what is left of them, whatever got lost, and what follows."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group.checkpoints import CheckpointStore, FenceRefused
from partq_spark.objects.api import Document
from tests.group.checkpoints.conftest import A1, B1, KEY, QUEUE_ID, Loss, Lossy, checkpoints_in


def nobody_there() -> None:
    """The head has no such group."""


def test_a_tombstone_has_nothing_but_its_epoch(store: Lossy, checkpoints: CheckpointStore) -> None:
    held = checkpoints.fence(3, to=A1, epoch=5, start=40, delivered=45)
    checkpoints.update_checkpoint(held, 42)
    assert checkpoints.bury(3, confirm=nobody_there)
    found = store.real.load("default/orders/billing/checkpoint/3")
    assert isinstance(found, Document)
    assert {key: value for key, value in found.metadata.items() if key not in ("updated", "checksum")} == {
        "epoch": "6",
        "queue_id": QUEUE_ID,
        "redelivered_below": "0",
    }
    assert checkpoints.list_checkpoints()[3].is_tombstone
    assert not checkpoints.bury(3, confirm=nobody_there), "once"


def test_a_rewound_checkpoint_is_buried_too(checkpoints: CheckpointStore) -> None:
    held = checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    checkpoints.update_checkpoint(held, 9)
    checkpoints.rewind(0, 0, fence=True, delivered=9)
    assert checkpoints.bury(0, confirm=nobody_there)
    assert checkpoints.list_checkpoints()[0].is_tombstone


@pytest.mark.parametrize("loss", ["request", "answer"])
def test_a_lost_answer_does_not_bury_twice(store: Lossy, checkpoints: CheckpointStore, loss: Loss) -> None:
    checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    store.losses.append(loss)
    assert checkpoints.bury(0, confirm=nobody_there)
    found = checkpoints.read(0)
    assert found is not None
    assert found.epoch == 2


def test_whatever_comes_late_fails(checkpoints: CheckpointStore) -> None:
    held = checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    checkpoints.bury(0, confirm=nobody_there)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(held, 5)
    with pytest.raises(FenceRefused) as refused:  # a fence that a coordinator had decided on before
        checkpoints.fence(0, to=B1, epoch=2, start=0, delivered=5)
    assert refused.value.epoch == 2


def test_the_next_owner_begins_where_the_new_group_does(checkpoints: CheckpointStore) -> None:
    held = checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=9)
    checkpoints.update_checkpoint(held, 5)
    checkpoints.bury(0, confirm=nobody_there)
    found = checkpoints.fence(0, to=B1, epoch=3, start=77, delivered=None)
    assert (found.offset, found.redelivered_below, found.owner) == (77, 0, B1)


def test_who_is_faster_than_a_removal_keeps_what_is_his(store: Lossy, checkpoints: CheckpointStore) -> None:
    """Between the look at the head and the swap the group was made again and a flow took the partition."""
    checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    looks = 0

    def confirm() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise Conflict("the group is there (test)")

    store.before_swap.append(lambda: checkpoints.fence(0, to=B1, epoch=2, start=0, delivered=None))
    with pytest.raises(Conflict, match="is there"):
        checkpoints.bury(0, confirm=confirm)
    found = checkpoints.read(0)
    assert found is not None
    assert found.owner == B1


def test_where_there_is_no_checkpoint_a_tombstone_makes_the_first_fence_fail(checkpoints: CheckpointStore) -> None:
    assert not checkpoints.bury(0, confirm=nobody_there), "nothing was there that said anything"
    assert checkpoints.list_checkpoints()[0].is_tombstone
    with pytest.raises(FenceRefused) as refused:
        checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    assert refused.value.epoch == 1
    assert checkpoints.fence(0, to=B1, epoch=2, start=77, delivered=None).offset == 77


@pytest.mark.parametrize("epoch", [1, 2, 9])
@pytest.mark.parametrize("found", ["nothing", "a checkpoint"])
def test_a_fence_that_was_under_way_when_the_group_was_removed_is_refused(
    store: Lossy, checkpoints: CheckpointStore, epoch: int, found: str
) -> None:
    """Whatever its epoch: it says where the former group began."""
    if found == "a checkpoint":
        checkpoints.fence(0, to=A1, epoch=0, start=0, delivered=None)
    store.before_swap.append(lambda: checkpoints.bury(0, confirm=nobody_there))
    with pytest.raises(FenceRefused):
        checkpoints.fence(0, to=B1, epoch=epoch, start=0, delivered=None)
    assert checkpoints.list_checkpoints()[0].is_tombstone


def test_what_a_former_queue_left_becomes_a_tombstone_of_this_one(store: Lossy, checkpoints: CheckpointStore) -> None:
    """Else a fence that has its ETag in hand lands."""
    CheckpointStore(store, KEY, "former").fence(0, to=A1, epoch=4, start=0, delivered=None)
    store.before_swap.append(lambda: checkpoints.bury(0, confirm=nobody_there))
    with pytest.raises(FenceRefused):
        checkpoints.fence(0, to=B1, epoch=9, start=0, delivered=None)
    assert checkpoints.list_checkpoints()[0].queue_id == QUEUE_ID


def test_a_group_was_removed_if_all_that_it_left_says_so(store: Lossy, checkpoints: CheckpointStore) -> None:
    checkpoints.require_group("the flow ends")
    for partition in (0, 1):
        checkpoints.fence(partition, to=A1, epoch=1, start=0, delivered=None)
    checkpoints.bury(0, confirm=nobody_there)
    checkpoints.require_group("the flow ends")
    checkpoints.bury(1, confirm=nobody_there)
    with pytest.raises(Invalid, match=r"was removed .*the flow ends"):
        checkpoints.require_group("the flow ends")
    checkpoints_in(store, "another-queue").require_group("nothing of this queue says so")
    name = checkpoints.name_of(1)
    found = store.real.load(name)
    assert isinstance(found, Document)
    store.real.swap(name, {**found.metadata, "epoch": "x"}, expected=found.etag)
    checkpoints.require_group("one cannot be read")


def test_what_is_marked_or_was_rewound_is_no_tombstone(checkpoints: CheckpointStore) -> None:
    """Without an owner and an offset, as where offsets are not kept."""
    assert not checkpoints.fence(0, to=None, epoch=1, start=None, delivered=5).is_tombstone
    assert checkpoints.fence(1, to=None, epoch=1, start=None, delivered=None).is_tombstone
