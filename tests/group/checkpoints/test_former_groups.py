"""Checkpoints that a removed group left, on every store: what they are to a group made again under its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partq_spark.base.errors import Fenced
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused
from partq_spark.objects.api import Document
from tests.group.checkpoints.conftest import A1, B1, Loss, Lossy, checkpoints_in, held

FORMER, PRESENT = 3, 8
"""Sequence numbers of the head that the two groups were made with."""


@pytest.fixture
def former(store: Lossy) -> CheckpointStore:
    return checkpoints_in(store, since=FORMER)


@pytest.fixture
def present(store: Lossy) -> CheckpointStore:
    return checkpoints_in(store, since=PRESENT)


def left(former: CheckpointStore, partition: int = 0) -> Checkpoint:
    """What a flow of the former group acknowledged."""
    found = former.fence(partition, to=A1, epoch=4, start=0, delivered=9)
    return former.update_checkpoint(found, 5)


def test_nothing_of_it_counts_but_its_epoch_which_is_over(former: CheckpointStore, present: CheckpointStore) -> None:
    left(former, 1)
    for found in (held(present.read(1)), present.list_checkpoints()[1]):
        assert found.is_void
        assert (found.epoch, found.owner, found.offset, found.redelivered_below) == (5, None, None, 0)


def test_a_rewind_of_it_does_not_count_either(former: CheckpointStore, present: CheckpointStore) -> None:
    left(former)
    former.rewind(0, 0, fence=True, delivered=9)
    found = held(present.read(0))
    assert found.is_void
    assert not found.rewound


def test_the_next_owner_begins_where_the_new_group_does(
    store: Lossy, former: CheckpointStore, present: CheckpointStore
) -> None:
    left(former)
    found = present.fence(0, to=B1, epoch=6, start=77, delivered=None)
    assert (found.offset, found.redelivered_below, found.owner) == (77, 0, B1)
    document = store.store.load(present.name_of(0))
    assert isinstance(document, Document)
    assert document.metadata["since"] == str(PRESENT)


@pytest.mark.parametrize("epoch", [4, 5])
def test_no_epoch_of_the_former_group_comes_again(
    former: CheckpointStore, present: CheckpointStore, epoch: int
) -> None:
    """What flows remember of one counts as exact where it is the one held now."""
    left(former)
    with pytest.raises(FenceRefused) as refused:
        present.fence(0, to=A1, epoch=epoch, replaces=A1, start=0, delivered=None)
    assert refused.value.epoch == 5


@pytest.mark.parametrize(
    "write",
    [
        lambda former, before: former.update_checkpoint(before, 6),
        lambda former, before: former.deliver(before),
        lambda former, before: former.leave(before, offset=6, delivered=9),
        lambda former, before: former.fence(0, to=A1, epoch=99, start=0, delivered=None),
        lambda former, before: former.rewind(0, 0, fence=True),
    ],
    ids=["acknowledge", "deliver", "leave", "fence", "rewind"],
)
def test_who_belongs_to_the_former_group_cannot_write_once_the_new_one_has(
    former: CheckpointStore, present: CheckpointStore, write: Callable[[CheckpointStore, Checkpoint], object]
) -> None:
    """However high the epoch is that a coordinator gives it."""
    before = left(former)
    now = present.fence(0, to=B1, epoch=6, start=77, delivered=None)
    with pytest.raises(Fenced, match="was made again since"):
        write(former, before)
    assert present.read(0) == now


def test_what_it_writes_before_that_counts_for_nothing(former: CheckpointStore, present: CheckpointStore) -> None:
    before = left(former)
    former.update_checkpoint(before, 6)
    late = former.fence(0, to=B1, epoch=9, start=0, delivered=None)
    former.update_checkpoint(late, 7)
    assert held(present.read(0)).is_void
    assert present.fence(0, to=B1, epoch=11, start=77, delivered=None).offset == 77


def test_a_first_fence_that_lands_between_a_look_and_a_swap_of_the_new_group(
    store: Lossy, former: CheckpointStore, present: CheckpointStore
) -> None:
    """A coordinator of the former group was about to give the partition away, which nobody had yet."""
    store.before_swap.append(lambda: former.fence(0, to=A1, epoch=1, start=3, delivered=None))
    with pytest.raises(FenceRefused):
        present.fence(0, to=B1, epoch=1, start=77, delivered=None)
    assert present.fence(0, to=B1, epoch=3, start=77, delivered=None).offset == 77


def test_one_that_was_asleep_with_the_etag_in_hand_fails(
    store: Lossy, former: CheckpointStore, present: CheckpointStore
) -> None:
    before = left(former)
    store.before_swap.append(lambda: present.fence(0, to=B1, epoch=6, start=77, delivered=None))
    with pytest.raises(Fenced):
        former.update_checkpoint(before, 8)
    assert held(present.read(0)).offset == 77


@pytest.mark.parametrize("loss", ["request", "answer"])
def test_a_lost_answer_takes_it_once(
    store: Lossy, former: CheckpointStore, present: CheckpointStore, loss: Loss
) -> None:
    left(former)
    store.losses.append(loss)
    present.fence(0, to=B1, epoch=6, start=77, delivered=None)
    found = held(present.read(0))
    assert (found.epoch, found.owner, found.offset) == (6, B1, 77)


def test_what_is_marked_is_not_void(checkpoints: CheckpointStore) -> None:
    """Without an owner and an offset, as where offsets are not kept."""
    assert not checkpoints.fence(0, to=None, epoch=1, start=None, delivered=5).is_void
    assert checkpoints.fence(1, to=None, epoch=1, start=None, delivered=None).is_void
