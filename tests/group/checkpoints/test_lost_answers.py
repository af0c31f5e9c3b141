"""Writes of checkpoints whose answers are lost or come late, on every store: settled by reading, in bounded tries."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.objects.register import MAX_TRIES
from tests.group.checkpoints.conftest import A1, B1, Loss, Lossy, checkpoints_in


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
