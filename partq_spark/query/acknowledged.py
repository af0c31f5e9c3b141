"""What of a query's deliveries is dealt with, by whose word: Spark's, the listener's, the application's. No pyspark.

With `ackMode=auto` a micro-batch that is complete is acknowledged, whoever says so first. With `manual` nothing counts
but the application's word, and only for what this very process gave out (`by_hand`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from partq_spark.base.errors import Invalid
from partq_spark.group.claims import Position, View
from partq_spark.group.effects import Effects
from partq_spark.group.membership import Membership
from partq_spark.log.queue import Queue
from partq_spark.query.batch_times import BatchTimes
from partq_spark.query.by_hand import GivenOut
from partq_spark.query.enrolment import Enrolment
from partq_spark.query.offsets import BatchEnd
from partq_spark.query.planning import left_out
from partq_spark.query.settings import GroupOptions

_log = logging.getLogger("partq.flow")


class Acknowledged:
    """Of one query in one process."""

    def __init__(self, queue: Queue, group: GroupOptions, who: Enrolment, effects: Effects) -> None:
        self._queue = queue
        self._by_hand = group.by_hand
        self._keeps_offsets = group.keep_offsets
        self._is_shared = group.ownership != "none"  # else nobody takes anything over while a batch runs
        self._who = who
        self._effects = effects
        self._times = BatchTimes(queue.name)
        self.given_out = GivenOut(effects.token())

    def begin(self) -> None:
        """A batch begins."""
        self._times.given(self._effects.now_s())

    def complete(self, member: Membership, end: BatchEnd) -> None:
        """The batch up to `end` is complete. Raises as the stores do."""
        if self._by_hand:
            return
        member.acknowledge({partition: Position(span.epoch, span.to) for partition, span in end.spans.items()})
        if not self._is_shared:
            return
        say = self._times.acknowledged(self._effects.now_s(), self._queue.head.config.max_handoff_time_s)
        member.note(self._times.remark)
        if say is not None:
            _log.warning("flow %s of %s: %s", self._who.flow, self._queue, say)

    def leave_out(self, member: Membership, before: BatchEnd, view: View, missed: Collection[int]) -> None:
        """What was complete before this ownership, and does not come again (`checkpoints=none`). `missed`: what was
        left out of it. Raises as the stores do.
        """
        known = {} if self._keeps_offsets else left_out(before, view.claims, missed)
        if known:
            member.acknowledge(known)

    def in_hand(self, *, after: int, most: int) -> dict[str, Any]:
        """For the application, as `GivenOut.in_hand`."""
        view = self._who.view
        return self.given_out.in_hand(view.claims if view is not None else {}, after=after, most=most)

    def by_application(self, process: str, positions: Mapping[int, Position]) -> frozenset[int]:
        """The application's word; the partitions for which it counts. `process`: to which it was given out. Raises
        `Invalid` for what was not given out, and as the stores do.
        """
        member = self._who.bound_member()
        if not self._by_hand:
            raise Invalid(
                f"flow {self._who.flow!r} of {self._queue} has ackMode=auto: give it the option ackMode=manual"
            )
        due = self.given_out.due(process, positions)
        still = member.acknowledge(due) if member is not None else frozenset()
        self.given_out.refuse(process, positions, still)
        return still
