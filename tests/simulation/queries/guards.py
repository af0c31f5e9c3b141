"""The guards of the loop behind a streaming query, each with a way to switch it off: the negative controls of its
simulation.

A guard is off in here and nowhere else. If the judge does not notice, it could not notice a bug there either.
`python -m tests.simulation.queries.guards --seeds N` prints the first seed that notices each.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from coordinator import fences
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.claims import Claim, View
from partq_spark.group.holdings import FlowHoldings
from partq_spark.group.key_order import KeyOrder
from partq_spark.group.missed_partitions import MissedPartitions
from partq_spark.group.solo import SoloSession
from partq_spark.log import groups
from partq_spark.log.model import Origin
from partq_spark.query import batches, offsets, planning
from partq_spark.query.consumer import ConsumerLoop
from partq_spark.query.manual import GivenOut
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.participant import Participant
from tests.simulation.queries.plan import GROUPED, NO_GROUP, kind_of
from tests.simulation.queries.world import run_seed
from tests.support import guards
from tests.support.guards import Finding
from tests.support.judge import Violation


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard(guards.Guard):
    """One thing that stands between a fault and a message that is lost, or comes twice without a mark."""

    kinds: tuple[str, ...] = tuple(GROUPED)  # of use in which it is needed


def first_finding(guard: Guard, seeds: Iterable[int]) -> Finding | None:
    """Run seeds with the guard off until one ends with a `Violation`: another error is a mistake in its place."""

    def play(seed: int) -> None:
        if kind_of(seed) in guard.kinds:
            run_seed(seed)

    return guards.search(guard, seeds, play, noticed=Violation)


# --- what stands in a guard's place -----------------------------------------------------------------------------------


def _always(*_: object, **__: object) -> bool:
    return True


def _never(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object, **__: object) -> None:
    return None


def _looks_at_no_lease() -> AbstractContextManager[object]:
    """Neither when a batch is confirmed, nor as the last act."""
    return patch.object(Participant, "is_alive", lambda participant, _: participant.member is not None)


def _confirms_nothing() -> AbstractContextManager[object]:
    """A batch that this process has just announced is read as it stands, whatever has moved on since."""
    return patch.object(
        ConsumerLoop, "_is_still_mine", lambda consumer, last: consumer._participant.is_alive(last.instance)
    )


def _holds_at_any_epoch() -> AbstractContextManager[object]:
    """A repeated batch has what is claimed, even if another flow had it meanwhile."""

    def held(view: View, partition: int, _: int) -> bool:
        return partition in view.deliverable

    stack = ExitStack()
    stack.enter_context(patch.object(batches, "is_held", held))
    stack.enter_context(patch.object(batches, "is_claimed", held))
    return stack


def _counts_no_deliveries() -> AbstractContextManager[object]:
    """What comes again makes the same text."""

    def followed_by(end: BatchEnd, spans: Mapping[int, BatchSpan], origin: Origin | None = None) -> BatchEnd:
        return replace(end, spans=spans, origin=origin)

    return patch.object(BatchEnd, "followed_by", followed_by)


def _any_mode(end: BatchEnd, _: str, *, manual_acks: bool, **__: bool) -> BatchEnd:
    return replace(end, deliveries=(end.deliveries or 0) if manual_acks else None)


def _marks_as_spark_knows() -> AbstractContextManager[object]:
    """What Spark's own checkpoint has not, was not delivered."""
    real = planning.begin

    def begin(before: BatchEnd, claim: Claim, **rest: Any) -> BatchSpan:
        known = before.spans.get(claim.partition)
        if known is not None and known.epoch == claim.epoch:
            return BatchSpan(claim.epoch, known.to, known.to, known.redelivered_below)
        return real(before, claim, **rest)

    return patch.object(planning, "begin", begin)


def _begins_anew_without_a_group() -> AbstractContextManager[object]:
    """What Spark's own checkpoint says counts for nothing."""
    real = planning.begin

    def begin(before: BatchEnd, claim: Claim, **rest: Any) -> BatchSpan:
        return real(before if rest else replace(before, spans={}), claim, **rest)

    return patch.object(planning, "begin", begin)


def _fences_without_marks() -> AbstractContextManager[object]:
    """A flow that takes a partition over takes everything for new."""
    real = CheckpointStore.fence

    def fence(store: CheckpointStore, partition: int, *, delivered: int | None, **rest: Any) -> Checkpoint:
        return real(store, partition, delivered=None, **rest)

    return patch.object(CheckpointStore, "fence", fence)


def _acknowledges_what_was_given_out_in_any_round() -> AbstractContextManager[object]:
    """What the application was told not to count is gone on from all the same."""

    def void(_: GivenOut, __: Collection[int]) -> None:
        return None

    return patch.object(GivenOut, "void", void)


def _takes_announced_for_given_out() -> AbstractContextManager[object]:
    """An end that never became a batch counts as read."""
    real = ConsumerLoop._given

    def given(consumer: ConsumerLoop, *rest: Any) -> dict[str, Any]:
        raw = real(consumer, *rest)
        if consumer._last is not None:
            consumer._last = replace(consumer._last, planned=True)
            consumer.acknowledgements.given_out.add(consumer._last.spans)
        return raw

    return patch.object(ConsumerLoop, "_given", given)


BY_HAND = ("by hand alone", "by hand shared")
WITHOUT_OFFSETS = ("auto alone without offsets", "auto shared without offsets")
SHARED = ("auto shared", "auto shared without offsets", "by hand shared")
ALONE = ("auto alone", "auto alone without offsets", "by hand alone")

GUARDS = (
    Guard(name="the lease is looked at last", off=_looks_at_no_lease, kinds=SHARED, first=60),
    Guard(name="a batch is confirmed when it is read", off=_confirms_nothing),
    Guard(name="left out is what has moved on", off=lambda: patch.object(batches, "has_moved_on", _always), first=618),
    Guard(name="repeated is what is held at the same epoch", off=_holds_at_any_epoch),
    Guard(name="acknowledged at the same epoch only", off=lambda: patch.object(FlowHoldings, "is_same_epoch", _always)),
    Guard(name="deliveries are counted", off=_counts_no_deliveries, kinds=BY_HAND, first=48),
    Guard(
        name="what does not count is void", off=_acknowledges_what_was_given_out_in_any_round, kinds=BY_HAND, first=1380
    ),
    Guard(name="given out is what is read", off=_takes_announced_for_given_out, kinds=BY_HAND),
    Guard(
        name="what was left out is noted",
        off=lambda: patch.object(MissedPartitions, "note", _nothing),
        kinds=WITHOUT_OFFSETS,
    ),
    Guard(name="marks beyond Spark's checkpoint", off=_marks_as_spark_knows, first=216),
    Guard(name="marks of a fence", off=_fences_without_marks),
    Guard(
        name="a group alone is looked at",
        off=lambda: patch.object(SoloSession, "_verify", _always),
        kinds=ALONE,
        first=48,
    ),
    Guard(
        name="by hand is not left for auto",
        off=lambda: patch.object(offsets, "in_ack_mode", _any_mode),
        kinds=BY_HAND,
        first=1290,
    ),
    Guard(name="one way to share", off=lambda: patch.object(groups, "require_ownership", _nothing), first=162),
    Guard(name="an earlier layout is waited for", off=lambda: patch.object(KeyOrder, "waits", lambda *_: {})),
    Guard(
        name="an earlier layout is waited for, with no group",
        off=lambda: patch.object(KeyOrder, "waits", lambda *_: {}),
        kinds=(NO_GROUP,),
        first=528,
    ),
    Guard(name="Spark's word counts, with no group", off=_begins_anew_without_a_group, kinds=(NO_GROUP,)),
)

RARE = (
    # One seed in tens of thousands notices it. tests/coordinator/test_fences.py does so each time, by a leader without
    # its state.
    Guard(
        name="a fence is asked for by the state that is there",
        off=lambda: patch.object(fences, "_confirm", _nothing),
        kinds=SHARED,
        first=46_068,
    ),
)
"""Those that are tried by name only."""


if __name__ == "__main__":
    sys.exit(guards.main((*GUARDS, *RARE), first_finding, seeds=2000, only_by_name=RARE))
