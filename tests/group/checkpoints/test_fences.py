"""The coordinator fences a checkpoint, and a person takes it back: what stays, what never goes back, what comes again;
what is left of queues and groups that are gone; and answers that are lost, which are settled by reading, in bounded
tries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid, Unavailable
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused
from partq_spark.group.model import Owner
from partq_spark.objects.api import Document
from partq_spark.objects.register import MAX_TRIES
from tests.group.checkpoints.conftest import A1, A2, B1, QUEUE_ID, Loss, Lossy, checkpoints_in, held

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


# --- a former group of the same name ----------------------------------------------------------------------------------

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


def test_what_is_marked_is_not_void(checkpoints: CheckpointStore) -> None:
    """Without an owner and an offset, as where offsets are not kept."""
    assert not checkpoints.fence(0, to=None, epoch=1, start=None, delivered=5).is_void
    assert checkpoints.fence(1, to=None, epoch=1, start=None, delivered=None).is_void


# --- a person takes it back -------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
def test_rewinding_says_what_comes_again_and_takes_a_new_epoch(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    checkpoints.update_checkpoint(mine, 30)
    checkpoints.fence(0, to=None, epoch=2, start=None, delivered=None)
    done = checkpoints.rewind(0, 12)
    assert (done.before.offset, done.after.offset) == (30, 12)
    assert (done.after.epoch, done.after.owner, done.after.redelivered_below) == (3, None, 30)
    assert checkpoints.read(0) == done.after
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(mine, 40)


@pytest.mark.conformance("CHK-04")
def test_rewinding_is_refused_while_a_flow_owns_the_partition(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    mine = checkpoints.update_checkpoint(mine, 30)
    with pytest.raises(Conflict, match=r"flow a's .* stop that flow first"):
        checkpoints.rewind(0, 12)
    assert checkpoints.read(0) == mine
    done = checkpoints.rewind(0, 12, fence=True, delivered=44)
    assert (done.after.epoch, done.after.owner, done.after.redelivered_below) == (2, None, 44)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(mine, 40)


def test_a_rewind_that_took_the_partition_from_somebody_shows_until_it_is_given_away(
    checkpoints: CheckpointStore,
) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    assert not checkpoints.update_checkpoint(mine, 30).rewound
    first = checkpoints.rewind(0, 20, fence=True, delivered=44).after
    second = checkpoints.rewind(0, 12, delivered=99).after
    assert first.rewound
    assert second.rewound, "also after another one"
    assert second.redelivered_below == 44, "nobody had it meanwhile"
    found = checkpoints.read(0)
    assert found is not None
    assert found.rewound
    assert checkpoints.list_checkpoints()[0].rewound
    assert not checkpoints.fence(0, to=B1, epoch=4, start=None, delivered=None).rewound
    checkpoints.fence(0, to=None, epoch=5, start=None, delivered=None)
    assert not checkpoints.rewind(0, 11).after.rewound, "the owner before has said how far it came"


@pytest.mark.parametrize("offset", [-1, 31])
def test_rewinding_only_goes_back(checkpoints: CheckpointStore, offset: int) -> None:
    checkpoints.fence(0, to=None, epoch=1, start=30, delivered=None)
    with pytest.raises(Invalid, match="give an offset from 0 to 30"):
        checkpoints.rewind(0, offset)


def test_rewinding_needs_an_offset(checkpoints: CheckpointStore) -> None:
    with pytest.raises(Invalid, match="nothing to rewind"):
        checkpoints.rewind(0, 0)
    checkpoints.fence(0, to=None, epoch=1, start=None, delivered=None)
    with pytest.raises(Invalid, match="nothing to rewind"):
        checkpoints.rewind(0, 0)


@pytest.mark.parametrize("loss", ["request", "answer", "late"])
def test_a_lost_rewind_happens_once(store: Lossy, checkpoints: CheckpointStore, loss: Loss) -> None:
    checkpoints.fence(0, to=None, epoch=1, start=30, delivered=None)
    store.losses.append(loss)
    done = checkpoints.rewind(0, 12)
    assert done.after == checkpoints.read(0)
    assert (done.before.offset, done.after.epoch) == (30, 2)


# --- answers that are lost --------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
@pytest.mark.parametrize("loss", ["request", "answer", "late"])
def test_a_lost_acknowledgement_is_settled_by_reading(store: Lossy, checkpoints: CheckpointStore, loss: Loss) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    store.losses.append(loss)
    moved = checkpoints.update_checkpoint(mine, 20)
    assert moved == checkpoints.read(0)
    assert moved.offset == 20
    with pytest.raises(Conflict) if loss == "late" else nullcontext():
        store.land()  # what arrives late finds another ETag
    assert checkpoints.update_checkpoint(moved, 21).offset == 21


@pytest.mark.conformance("CHK-05")
@pytest.mark.parametrize("loss", ["request", "answer", "late"])
def test_a_lost_fence_is_settled_by_reading(store: Lossy, checkpoints: CheckpointStore, loss: Loss) -> None:
    checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    store.losses.append(loss)
    fenced = checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=20)
    assert fenced == checkpoints.read(0)
    assert (fenced.owner, fenced.epoch, fenced.redelivered_below) == (B1, 2, 20)
    with pytest.raises(Conflict) if loss == "late" else nullcontext():
        store.land()
    assert checkpoints.read(0) == fenced


@pytest.mark.conformance("CHK-05")
def test_a_late_acknowledgement_lands_before_the_fence_or_not_at_all(store: Lossy) -> None:
    checkpoints = checkpoints_in(store)
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    store.losses.extend(["late"] * MAX_TRIES)
    with pytest.raises(Unavailable, match="could not be swapped in 8 tries"):
        checkpoints.update_checkpoint(mine, 20)
    fenced = checkpoints_in(store.store).fence(0, to=B1, epoch=2, start=None, delivered=20)
    with pytest.raises(Conflict):
        store.land()
    assert fenced.offset == 10
    assert checkpoints.read(0) == fenced


def test_a_store_that_stays_away_ends_in_bounded_tries(store: Lossy, checkpoints: CheckpointStore) -> None:
    store.losses.extend(["request"] * (2 * MAX_TRIES))
    with pytest.raises(Unavailable):
        checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    assert store.calls["swap"] == MAX_TRIES
    assert checkpoints.read(0) is None


def test_the_last_try_is_settled_too(store: Lossy, checkpoints: CheckpointStore) -> None:
    store.losses.extend(["request"] * (MAX_TRIES - 1))
    store.losses.append("answer")
    assert checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None) == checkpoints.read(0)
