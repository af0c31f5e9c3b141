"""A person takes a checkpoint back: what comes again, who may be taken back, and that it happens once; and writes whose
answers are lost or come late, which are settled by reading, in bounded tries.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.objects.register import MAX_TRIES
from tests.group.checkpoints.conftest import A1, B1, Loss, Lossy, checkpoints_in


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
