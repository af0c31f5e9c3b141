"""The coordinator fences a checkpoint, on every store: what a fence keeps, that it never goes back, and a queue of
the same name that is gone.
"""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Fenced
from partq_spark.group.checkpoints import CheckpointStore, FenceRefused
from partq_spark.group.model import Owner
from tests.group.checkpoints.conftest import A1, A2, B1, QUEUE_ID, Lossy, checkpoints_in, held

# --- the coordinator fences -------------------------------------------------------------------------------------------


def test_a_fence_keeps_the_offset_and_the_marks(checkpoints: CheckpointStore) -> None:
    first = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    assert (first.offset, first.redelivered_below) == (10, 0)
    mine = checkpoints.update_checkpoint(first, 30)
    forced = checkpoints.fence(0, to=B1, epoch=2, start=5, delivered=50)
    assert (forced.offset, forced.redelivered_below, forced.owner, forced.epoch) == (30, 50, B1, 2)
    assert mine.owner == A1
    drained = checkpoints.fence(0, to=None, epoch=5, start=5, delivered=40)  # the mark of before is not taken back
    assert (drained.offset, drained.redelivered_below, drained.owner, drained.epoch) == (30, 50, None, 5)
    assert checkpoints.read(0) == drained


def test_without_offsets_the_fence_alone_is_kept(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=None, delivered=None)
    assert mine.offset is None
    assert held(checkpoints.read(0)).offset is None
    fenced = checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=9)
    assert (fenced.offset, fenced.redelivered_below) == (None, 9)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(mine, 3)
    assert checkpoints.fence(0, to=B1, epoch=3, start=4, delivered=None).offset == 4


@pytest.mark.conformance("CHK-05")
def test_a_fence_recognises_its_own_repetition(store: Lossy, checkpoints: CheckpointStore) -> None:
    checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    first = checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=15)
    progress = checkpoints.update_checkpoint(first, 12)
    store.calls.clear()
    assert checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=15) == progress
    assert checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=99) == progress  # a repetition may know less
    assert store.calls["swap"] == 0


def test_a_fence_for_nobody_is_not_content_with_a_rewind_that_looks_like_it(checkpoints: CheckpointStore) -> None:
    held = checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    checkpoints.update_checkpoint(held, 10)
    rewound = checkpoints.rewind(0, 5, fence=True, delivered=20).after
    assert (rewound.epoch, rewound.owner, rewound.redelivered_below) == (2, None, 20)
    # A1 did not know yet, and delivered up to 30 before the coordinator fences it at the epoch that the rewind took.
    fenced = checkpoints.fence(0, to=None, epoch=2, start=None, delivered=30)
    assert (fenced.epoch, fenced.owner, fenced.offset, fenced.redelivered_below) == (2, None, 5, 30)
    assert checkpoints.fence(0, to=None, epoch=2, start=None, delivered=30) == fenced


@pytest.mark.parametrize(
    ("to", "epoch", "replaces"),
    [
        (B1, 1, None),  # an epoch of before
        (B1, 2, None),  # the same epoch, another flow
        (B1, 2, A1),
        (A2, 2, None),  # the same flow, but nobody said that this instance takes that one's place
        (A2, 2, B1),
        (None, 2, None),
        (None, 2, A1),
    ],
)
def test_a_fence_never_goes_back(
    checkpoints: CheckpointStore, to: Owner | None, epoch: int, replaces: Owner | None
) -> None:
    known = checkpoints.fence(0, to=A1, epoch=2, start=10, delivered=None)
    with pytest.raises(FenceRefused) as caught:
        checkpoints.fence(0, to=to, epoch=epoch, replaces=replaces, start=0, delivered=None)
    assert caught.value.epoch == 2
    assert checkpoints.read(0) == known


@pytest.mark.conformance("CHK-05")
def test_a_leader_that_slept_does_not_give_a_partition_back_to_a_former_instance(checkpoints: CheckpointStore) -> None:
    checkpoints.fence(0, to=B1, epoch=1, start=10, delivered=None)
    checkpoints.fence(0, to=A1, epoch=2, start=None, delivered=None)  # by the leader that went to sleep, or the next
    checkpoints.fence(0, to=A2, epoch=2, replaces=A1, start=None, delivered=None)
    with pytest.raises(FenceRefused):
        checkpoints.fence(0, to=A1, epoch=2, replaces=None, start=None, delivered=None)
    with pytest.raises(FenceRefused):
        checkpoints.fence(0, to=A1, epoch=2, replaces=B1, start=None, delivered=None)
    assert held(checkpoints.read(0)).owner == A2


@pytest.mark.conformance("CHK-05")
def test_fences_that_race_end_with_the_highest_epoch(store: Lossy, checkpoints: CheckpointStore) -> None:
    checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    other = checkpoints_in(store.store)
    store.before_swap.append(lambda: other.fence(0, to=A2, epoch=3, start=None, delivered=None))
    with pytest.raises(FenceRefused) as caught:
        checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=None)
    assert caught.value.epoch == 3
    store.before_swap.append(lambda: other.fence(0, to=A2, epoch=4, start=None, delivered=33))
    fenced = checkpoints.fence(0, to=B1, epoch=5, start=None, delivered=20)
    assert (fenced.owner, fenced.redelivered_below) == (B1, 33)


@pytest.mark.conformance("CHK-05")
def test_an_acknowledgement_that_races_a_fence_is_kept(store: Lossy, checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    other = checkpoints_in(store.store)
    store.before_swap.append(lambda: other.update_checkpoint(mine, 18))
    assert checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=20).offset == 18


# --- a former queue of the same name ----------------------------------------------------------------------------------


def test_a_former_queues_checkpoint_counts_as_absent_but_its_epoch_continues(
    store: Lossy, checkpoints: CheckpointStore
) -> None:
    former = checkpoints_in(store.store, "ffff")
    mine = former.fence(0, to=A1, epoch=6, start=100, delivered=120)
    for found in (held(checkpoints.read(0)), checkpoints.list_checkpoints()[0]):
        assert (found.owner, found.offset, found.redelivered_below, found.epoch) == (None, None, 0, 6)
    for epoch in (1, 6):
        with pytest.raises(FenceRefused) as caught:
            checkpoints.fence(0, to=A1, epoch=epoch, replaces=A1, start=0, delivered=None)
        assert caught.value.epoch == 6
    with pytest.raises(FenceRefused):
        checkpoints.fence(0, to=None, epoch=6, start=0, delivered=None)
    fresh = checkpoints.fence(0, to=A1, epoch=7, start=3, delivered=None)
    assert (fresh.offset, fresh.redelivered_below, fresh.queue_id) == (3, 0, QUEUE_ID)
    with pytest.raises(Fenced):
        former.update_checkpoint(mine, 130)
    assert checkpoints.read(0) == fresh
