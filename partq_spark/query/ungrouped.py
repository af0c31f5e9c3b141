"""A query without a group: every partition of the queue is its own, at epoch 0 (CHK-07).

Its membership grants everything and verifies nothing. It reads the queue's head and nothing else: no checkpoint, no
ownership, no name. How far the query is stands in Spark's own checkpoint alone, so any number of such queries may run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.claims import Binding, Claim, Position, Standing, View
from partq_spark.group.membership import Membership
from partq_spark.log.model import Head, Origin, at
from partq_spark.log.queue import QueueLog
from partq_spark.query import offsets, planning
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.participant import Participant
from partq_spark.query.settings import Boundary, SourceOptions

EPOCH: Final = 0
_INSTANCE: Final = "alone"  # nobody asks which one
_log = logging.getLogger("partq.query")


class EveryPartition(Membership):
    """Without a group: nobody listens, and nothing is ever in hand, because Spark asks for a batch when the one before
    is complete. `known` is where the query is by its Spark checkpoint. A partition that the query
    knows stays its own even if the queue, restored from an older copy, does not have it: then it is told what is lost.
    """

    def __init__(self, queue: QueueLog, known: BatchEnd, effects: Effects) -> None:
        self._queue = queue
        self._known = known
        self._effects = effects
        self._done = {partition: span.start for partition, span in known.spans.items()}
        self._partitions = 1 + max(known.spans, default=-1)
        self._earliest: tuple[int, ...] = ()
        self._view = View(instance=_INSTANCE, standing=Standing.ACTIVE, claims={})

    @property
    def is_bound(self) -> bool:
        return True

    @property
    def instance(self) -> str:
        return _INSTANCE

    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> Binding:
        return Binding(view=self.observe(), answered=True)

    def observe(self) -> View:
        """Read the head: what it has is the query's. Raises `Invalid` if the queue is gone or another one."""
        head = self._queue.refresh()
        offsets.require_same_queue(self._known, head.queue_id, str(self._queue))
        if head.earliest != self._earliest:  # which changes seldom, and says how many partitions there are
            self._earliest = head.earliest
            self._partitions = max(self._partitions, len(head.earliest))
            claims = {partition: _claim(head, partition) for partition in range(self._partitions)}
            self._view = View(instance=_INSTANCE, standing=Standing.ACTIVE, claims=claims)
        return self._view

    def deliver(self, ends: Mapping[int, int]) -> bool:
        return True

    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]:
        """What others wait for while the partition count changes (RES-03). It is written down nowhere."""
        self._done.update({partition: position.offset for partition, position in positions.items()})
        return frozenset(positions)

    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]:
        return {partition: self._done.get(partition, 0) for partition in partitions}

    def lease_left_s(self) -> float:
        return math.inf

    def wait_news(self, timeout_s: float) -> bool:
        self._effects.sleep(timeout_s)
        return False


def _claim(head: Head, partition: int) -> Claim:
    """From the earliest message on, unless the Spark checkpoint says more."""
    return Claim(
        partition=partition,
        epoch=EPOCH,
        position=at(head.earliest, partition),
        acknowledged=0,
        redelivered_below=0,
        paused=False,
    )


class Ungrouped(Participant):
    """A query without a group: its Spark checkpoint alone says which query it is."""

    def __init__(self, queue: QueueLog, options: SourceOptions, effects: Effects) -> None:
        super().__init__(queue, options, effects)
        self._options = options

    @property
    def name(self) -> str:
        return f"the query of {self._queue}"

    def introduce(self) -> BatchEnd:
        """Where the query begins. Raises `Invalid` for offsets that the queue does not have."""
        head = self._queue.refresh()
        place = self._options.start or Boundary(edge="latest")
        start = planning.resolve(head, place, "startingOffsets", self._queue.offsets_at)
        spans = {partition: BatchSpan(EPOCH, offset, offset, 0) for partition, offset in start.items()}
        return BatchEnd(queue_id=head.queue_id, spans=spans)

    def checked(self, raw: dict[str, Any], *, to_read: bool = False) -> BatchEnd | None:
        end = offsets.decode(raw)
        if end is not None and (end.group is not None or end.flow is not None):
            raise Invalid(
                f"the Spark checkpoint belongs to group {end.group!r}, this query has no group: give the option "
                "`group`, or use a new checkpoint location"
            )
        return end

    def fresh_head(self, known: BatchEnd, *, complete: bool = True) -> Head:
        """The head of the last look, which reads nothing else. Raises `Invalid` if it is another queue's."""
        offsets.require_same_queue(known, self._queue.head.queue_id, str(self._queue))
        return self._queue.head

    def joined(self, known: BatchEnd, *, complete: bool = True) -> Membership:
        if self.member is None:
            self.member = EveryPartition(self._queue, known, self._effects)
        return self.member

    def checkpoint(self, partition: int) -> Checkpoint | None:
        return None
