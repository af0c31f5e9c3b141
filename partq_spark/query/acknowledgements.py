"""What of a query's deliveries counts as acknowledged, and who says so. No pyspark.

With `ackMode=auto` a complete micro-batch is acknowledged; Spark says that it is complete, and earlier the listener.
With `manual` only the application acknowledges, and only what this very process gave out (`manual`).

A handoff waits for max-handoff-time and no longer. What a longer batch holds comes again at the new owner, marked. That
is allowed and costs work twice, so the log and `partq status` say it, and which setting changes it (`BatchTimes`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.group.claims import Position, View
from partq_spark.group.membership import Membership
from partq_spark.log.model import Origin
from partq_spark.log.queue import QueueLog
from partq_spark.query.manual import GivenOut, RoundPosition
from partq_spark.query.offsets import BatchEnd
from partq_spark.query.participant import Participant
from partq_spark.query.planning import Spans, left_out
from partq_spark.query.settings import SourceOptions

_log = logging.getLogger("partq.flow")

SAY_AGAIN_S: Final = 60.0


class Acknowledgements:
    """Of one query in one process."""

    def __init__(self, queue: QueueLog, options: SourceOptions, participant: Participant, effects: Effects) -> None:
        self._queue = queue
        self._manual_acks = options.manual_acks
        self._keeps_offsets = options.keep_offsets
        self._is_shared = options.is_shared  # else nobody takes anything over while a batch runs
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
        if not self._is_shared:
            return
        say = self._times.acknowledged(self._effects.now_s(), self._queue.head.config.max_handoff_time_s)
        member.note(self._times.remark)
        if say is not None:
            _log.warning("%s: %s", self._participant.name, say)

    def leave_out(self, member: Membership, before: BatchEnd, view: View, missed: Collection[int]) -> None:
        """What was complete before this ownership, and does not come again (`checkpoints=none`). `missed`: what was
        left out of it. Raises as the stores do.
        """
        known = {} if self._keeps_offsets else left_out(before, view.claims, missed)
        if known:
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
