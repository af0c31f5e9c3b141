"""What of a query's batch is still its own when Spark asks for it, what of its deliveries counts as acknowledged, and
who says so. No pyspark.

With `ackMode=auto` a complete micro-batch is acknowledged; Spark says that it is complete, and earlier the listener.
With `manual` only the application acknowledges, and only what this very process gave out (`GivenOut`).

A handoff waits for max-handoff-time and no longer. What a longer batch holds comes again at the new owner, marked. That
is allowed and costs work twice, so the log and `partq status` say it, and which setting changes it (`BatchTimes`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.group.claims import Claim, Position, View
from partq_spark.group.membership import Membership
from partq_spark.group.model import Checkpoint
from partq_spark.log.model import Origin
from partq_spark.log.queue import QueueLog
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.participant import Participant
from partq_spark.query.planning import Spans, left_out
from partq_spark.query.settings import SourceOptions

_log = logging.getLogger("partq.flow")

SAY_AGAIN_S: Final = 60.0


# --- what of a batch is still the query's -----------------------------------------------------------------------------

# A partition is delivered if it is held at the epoch in the batch's end. One that has moved on is left out, because its
# new owner began at or before that point (HAN-10). While that is in doubt, nothing is delivered.


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """An end that was given to Spark, what its batch delivers, and the instance in whose name that was announced.
    `planned`: Spark has asked for its partitions, so that it may have been delivered.
    """

    end: BatchEnd
    spans: Spans
    instance: str | None
    planned: bool = False


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
        if is_claimed(view, p, span.epoch) and (p in announced or not view.claims[p].paused)
    }
    moved = {p for p in wanted if p not in held and has_moved_on(read(p), wanted[p].epoch)}
    return Repetition(held=held, moved=frozenset(moved), doubtful=frozenset(wanted.keys() - held.keys() - moved))


def is_claimed(view: View, partition: int, epoch: int) -> bool:
    """A guard: the partition is claimed, at exactly this epoch; it may be paused."""
    claim = view.claims.get(partition)
    return claim is not None and claim.epoch == epoch


def has_moved_on(found: Checkpoint | None, epoch: int) -> bool:
    """A guard: the checkpoint has a higher epoch."""
    return found is not None and found.epoch > epoch


# --- what is acknowledged ---------------------------------------------------------------------------------------------


class Acknowledgements:
    """Of one query in one process."""

    def __init__(self, queue: QueueLog, options: SourceOptions, participant: Participant, effects: Effects) -> None:
        self._queue = queue
        self._manual_acks, self._is_shared = options.manual_acks, options.is_shared
        self._participant = participant
        self._effects = effects
        self._times = BatchTimes(queue.name)
        self.given_out = GivenOut(effects.token())
        self._origin: Origin | None = None  # of the last batch

    def begin(self, end: BatchEnd) -> None:
        """The batch up to `end` begins."""
        self._origin = end.origin
        self.given_out.planned()
        self._times.given(self._effects.now_s())

    def to_give(self, spans: Spans) -> Spans:
        """What of the announced batch may be given out now."""
        return self.given_out.as_planned(spans) if self._manual_acks else spans

    def complete(self, member: Membership, end: BatchEnd) -> None:
        """The batch up to `end` is complete. Raises as the stores do."""
        if self._manual_acks:
            return
        done = {partition: Position(span.epoch, span.to) for partition, span in end.spans.items()}
        member.acknowledge(done, end.origin)
        if not self._is_shared:  # nobody takes anything over while a batch runs
            return
        say = self._times.acknowledged(self._effects.now_s(), self._queue.head.config.max_handoff_time_s)
        member.note(self._times.remark)
        if say is not None:
            _log.warning("%s: %s", self._participant.name, say)

    def leave_out(self, member: Membership, before: BatchEnd, view: View, missed: Collection[int]) -> None:
        """What was complete before this ownership, and does not come again (`checkpoints=none`). `missed`: what was
        left out of it. Raises as the stores do.
        """
        if known := left_out(before, view.claims, missed):
            member.acknowledge(known)

    def in_hand(self) -> dict[str, Any]:
        """For the application, as `GivenOut.in_hand`."""
        view = self._participant.view
        return self.given_out.in_hand(view.claims if view is not None else {})

    def by_application(self, process: str, positions: Mapping[int, RoundPosition]) -> frozenset[int]:
        """The application's word; the partitions for which it counts. `process`: to which it was given out. Raises
        `Invalid` for what was not given out, and as the stores do.
        """
        member = self._participant.bound_member()
        if not self._manual_acks:
            raise Invalid(
                f"flow {self._participant.flow!r} of {self._queue} has ackMode=auto: give it the option ackMode=manual"
            )
        due = self.given_out.due(process, positions)
        still = member.acknowledge(due, self._origin) if member is not None else frozenset()
        self.given_out.refuse(process, positions, still)
        return still


class BatchTimes:
    """The times of one flow's batches, each from the end that was given out to its acknowledgement."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._given_s: float | None = None
        self._said_s: float | None = None
        self.remark = ""  # for people, as long as it is so

    def given(self, now_s: float) -> None:
        """A batch begins."""
        self._given_s = now_s

    def acknowledged(self, now_s: float, max_handoff_time_s: float) -> str | None:
        """It is complete. Returns what is to be logged, if it is time to say something."""
        if self._given_s is None:
            return None
        took_s, self._given_s = now_s - self._given_s, None
        if max_handoff_time_s <= 0 or took_s <= max_handoff_time_s:  # 0 means: never wait for anybody
            self.remark = ""
            return None
        self.remark = f"acknowledges after {took_s:.1f} s, max-handoff-time is {max_handoff_time_s:g} s"
        if self._said_s is not None and now_s - self._said_s < SAY_AGAIN_S:
            return None
        self._said_s = now_s
        return (
            f"its micro-batches are acknowledged after {took_s:.1f} s, longer than max-handoff-time "
            f"({max_handoff_time_s:g} s): a handoff does not wait for them, and what they hold comes again, marked "
            f"redelivered. Raise it (`partq queue alter {self._queue} --max-handoff-time S`), take less per batch "
            "(maxMessagesPerTrigger), or shorten the trigger or install the listener (partq_spark.register(spark))"
        )


# --- what was given out -----------------------------------------------------------------------------------------------

# What one process of a flow has given out to its application, and what of it may be acknowledged. Pure.
#
# Given out is what a batch was made of, and not what was only announced: Spark may never ask for it.
#
# With `ackMode=manual` a process acknowledges only what it gave out itself, and only at the epoch and in the round in
# which it was given out. What an application remembers of an ownership that is over, or of an earlier process, does not
# count (HAN-10). What the application gave back, or was told not to count, or got before the flow left its group, is
# void until it is given out again, from its first message that is not acknowledged, and that begins a new round: a word
# from the round before, of a batch that some other thread still has, says nothing about it, also at the same epoch,
# which may come back after a Redis that did not answer for a moment, or after `maxPollInterval`.


class RoundPosition(NamedTuple):
    """An application's word on a partition: of what was given out in this round everything before it is dealt with."""

    epoch: int
    offset: int
    round: int


class GivenOut:
    """The span of each partition that was given out last. `process` tells this process from the next."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._spans: dict[int, BatchSpan] = {}
        self._reached: dict[int, Position] = {}
        self._void: set[int] = set()
        self._stale: set[int] = set()  # void since the last batch was planned, which goes on behind them
        self._rounds: Counter[int] = Counter()  # how often a partition was given out anew after it was void

    def last(self, partition: int) -> BatchSpan | None:
        """What was given out last and counts."""
        return self._spans.get(partition) if partition not in self._void else None

    def is_void(self, partition: int) -> bool:
        """Whether it was given out and counts no more."""
        return partition in self._void

    def reached(self, partition: int, epoch: int) -> int:
        """The end of all that was ever given out of the partition at this epoch, 0 if nothing was."""
        known = self._reached.get(partition)
        return known.offset if known is not None and known.epoch == epoch else 0

    def planned(self) -> None:
        """A batch was planned, by what is void and what is not."""
        self._stale.clear()

    def as_planned(self, spans: Spans) -> Spans:
        """What of the batch that was planned last may be given out: what became void since comes from its beginning."""
        return {partition: span for partition, span in spans.items() if partition not in self._stale}

    def add(self, spans: Spans) -> None:
        """A batch is made of these. Repeating the last one changes nothing."""
        for partition, span in spans.items():
            self._spans[partition] = span
            self._reached[partition] = Position(span.epoch, max(span.to, self.reached(partition, span.epoch)))
            self._rounds[partition] += partition in self._void
        self._void.difference_update(spans)

    def void(self, partitions: Collection[int]) -> None:
        """What was given out of these counts no more, and comes again."""
        new = (self._spans.keys() & set(partitions)) - self._void  # the others are planned from their beginning already
        self._void |= new
        self._stale |= new

    def void_all(self) -> None:
        """Of an ownership that is over."""
        self.void(self._spans.keys())

    def ends(self, spans: Spans) -> dict[int, RoundPosition]:
        """Of a batch that was made of `spans`: what it says that all of it is dealt with."""
        return {p: RoundPosition(span.epoch, span.to, self._rounds[p]) for p, span in spans.items()}

    def in_hand(self, claims: Mapping[int, Claim]) -> dict[str, Any]:
        """For the application: of each partition the epoch, what is acknowledged, what was given out, and the round;
        `lost` are those that were given out and have moved on.
        """
        held = {p: claims[p] for p in sorted(self._spans) if p in claims and claims[p].epoch == self._epoch(p)}
        lost = [p for p in sorted(self._spans) if p not in held]
        found = {
            str(p): [claim.epoch, claim.acknowledged, self._spans[p].to, self._rounds[p]] for p, claim in held.items()
        }
        self.void(lost)
        return {"process": self.process, "p": found, "lost": lost}

    def due(self, process: str, positions: Mapping[int, RoundPosition]) -> dict[int, Position]:
        """Those that may be acknowledged. Raises `Invalid` for what was not given out, and then none of them is."""
        found = self._of_this_round(process, positions)
        for partition, position in found.items():
            end = self._spans[partition].to
            if position.offset > end:
                raise Invalid(
                    f"partition {partition} was delivered up to {end} and cannot be acknowledged "
                    f"up to {position.offset}"
                )
        return {p: Position(position.epoch, position.offset) for p, position in found.items()}

    def refuse(self, process: str, positions: Mapping[int, RoundPosition], still: Collection[int]) -> None:
        """The application is told that all of `positions` but `still` do not count: they come again."""
        self.void(self._of_this_round(process, positions).keys() - still)

    def _of_this_round(self, process: str, positions: Mapping[int, RoundPosition]) -> dict[int, RoundPosition]:
        return {
            p: position
            for p, position in positions.items()
            if process == self.process and (self._epoch(p), self._rounds[p]) == (position.epoch, position.round)
        }

    def _epoch(self, partition: int) -> int | None:
        span = self.last(partition)
        return span.epoch if span is not None else None
