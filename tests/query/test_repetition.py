"""What of a batch that Spark asks for again is still the query's (HAN-10)."""

from __future__ import annotations

import pytest

from partq_spark.group.claims import Claim, Standing, View
from partq_spark.group.model import Checkpoint, Owner
from partq_spark.query.acknowledgements import repetition
from partq_spark.query.offsets import BatchSpan

ME, OTHER = Owner("a", "a1"), Owner("b", "b1")


def claim(epoch: int, *, paused: bool = False) -> Claim:
    return Claim(partition=0, epoch=epoch, position=5, acknowledged=5, redelivered_below=0, paused=paused)


def at(epoch: int, owner: Owner) -> Checkpoint:
    return Checkpoint(
        partition=0, epoch=epoch, owner=owner, offset=5, redelivered_below=0, updated="", may_reach=9, queue_id="q",
        since=0, etag="1",
    )  # fmt: skip


@pytest.mark.conformance("HAN-10")
@pytest.mark.parametrize(
    ("claimed", "found", "announced", "outcome"),
    [
        (claim(2), None, False, "held"),
        (claim(2), None, True, "held"),
        (claim(2, paused=True), at(2, ME), False, "doubtful"),  # nothing new while it is paused
        (claim(2, paused=True), None, True, "held"),  # the pause waits for what was announced
        (claim(3), at(3, ME), True, "moved"),  # its own again: by a later epoch, so from what was acknowledged
        (None, at(3, OTHER), True, "moved"),
        (None, at(2, OTHER), False, "doubtful"),  # the same epoch: nobody says that it has gone on
        (None, None, False, "doubtful"),
    ],
)
def test_a_partition_is_delivered_again_left_out_or_waited_for(
    claimed: Claim | None, found: Checkpoint | None, announced: bool, outcome: str
) -> None:
    view = View(instance="a1", standing=Standing.ACTIVE, claims={} if claimed is None else {0: claimed})
    wanted = {0: BatchSpan(epoch=2, start=5, to=9, redelivered_below=0)}

    def read(partition: int) -> Checkpoint | None:
        assert outcome != "held", "what is held needs no look at its checkpoint"
        return found if partition == 0 else None

    done = repetition(wanted, view, read, {0} if announced else ())
    assert {"held": [*done.held], "moved": [*done.moved], "doubtful": [*done.doubtful]}[outcome] == [0]
    assert len(done.held) + len(done.moved) + len(done.doubtful) == 1
