"""What a query remembers of its last look: the end that it gave to Spark, or that there was nothing to give; and which
partitions of a batch are still the query's when Spark asks for them. Pure: no I/O, no clock, no pyspark.

A partition is delivered if it is held at the epoch in the batch's end. One that has moved on is left out, because its
new owner began at or before that point (HAN-10). While that is in doubt, nothing is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.claims import View
from partq_spark.query.offsets import BatchEnd
from partq_spark.query.planning import BatchPlan, Spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """An end that was given to Spark, what its batch delivers, and the instance in whose name that was announced.
    `planned`: Spark has asked for its partitions, so that it may have been delivered.
    """

    raw: dict[str, Any]
    end: BatchEnd
    spans: Spans
    instance: str | None
    planned: bool = False


@dataclass(frozen=True, slots=True)
class IdleLook:
    """A whole look at `at_s` after which there was nothing to do."""

    start: dict[str, Any]
    plan: BatchPlan
    at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Of a batch: what is still held, what has moved on, and what nobody can tell yet."""

    held: Spans
    moved: frozenset[int]
    doubtful: frozenset[int]


def repetition(
    wanted: Spans, view: View, read: Callable[[int], Checkpoint | None], announced: Collection[int] = ()
) -> Repetition:
    """What of `wanted` may be delivered by `view`; `read` reads a checkpoint, and is asked for the others alone.
    `announced`: what the present instance has announced already, so that a pause waits for it and not it for a pause.
    """
    held = {
        p: span
        for p, span in wanted.items()
        if is_held(view, p, span.epoch) or (p in announced and is_claimed(view, p, span.epoch))
    }
    moved = {p for p in wanted if p not in held and has_moved_on(read(p), wanted[p].epoch)}
    return Repetition(held=held, moved=frozenset(moved), doubtful=frozenset(wanted.keys() - held.keys() - moved))


def is_held(view: View, partition: int, epoch: int) -> bool:
    """A guard: the partition is claimed, at exactly this epoch, and nothing holds it back."""
    return is_claimed(view, partition, epoch) and not view.claims[partition].paused


def is_claimed(view: View, partition: int, epoch: int) -> bool:
    """A guard: the partition is claimed, at exactly this epoch; it may be paused."""
    claim = view.claims.get(partition)
    return claim is not None and claim.epoch == epoch


def has_moved_on(found: Checkpoint | None, epoch: int) -> bool:
    """A guard: the checkpoint has a higher epoch."""
    return found is not None and found.epoch > epoch
