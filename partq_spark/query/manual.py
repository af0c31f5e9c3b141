"""What one process of a flow has given out to its application, and what of it may be acknowledged. Pure.

Given out is what a batch was made of, and not what was only announced: Spark may never ask for it.

With `ackMode=manual` a process acknowledges only what it gave out itself, and only at the epoch at which it was given
out. What an application remembers of an ownership that is over, or of an earlier process, does not count (HAN-10). What
the application was told not to count is void until it is given out again, from its first message that is not
acknowledged: the application has forgotten what it knew of it, and the same claim may come back at the same epoch,
after a Redis that did not answer for a moment, or after `maxPollInterval`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from partq_spark.base.errors import Invalid
from partq_spark.group.claims import Claim, Position
from partq_spark.query.offsets import BatchSpan
from partq_spark.query.planning import Spans


class GivenOut:
    """The span of each partition that was given out last. `process` tells this process from the next."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._spans: dict[int, BatchSpan] = {}
        self._reached: dict[int, Position] = {}
        self._void: set[int] = set()
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

    def add(self, spans: Spans) -> None:
        """A batch is made of these. Repeating the last one changes nothing."""
        for partition, span in spans.items():
            self._spans[partition] = span
            self._reached[partition] = Position(span.epoch, max(span.to, self.reached(partition, span.epoch)))
            self._rounds[partition] += partition in self._void
        self._void.difference_update(spans)

    def void(self, partitions: Collection[int]) -> None:
        """What was given out of these counts no more, and comes again."""
        self._void.update(self._spans.keys() & set(partitions))

    def in_hand(self, claims: Mapping[int, Claim], *, after: int, most: int) -> dict[str, Any]:
        """For the application: of at most `most` partitions beyond `after` the epoch, what is acknowledged, what was
        given out, and the round; `lost` are those of them that were given out and have moved on. `more`: there are
        others.
        """
        known = sorted(p for p in self._spans if p > after)
        held = {p: claims[p] for p in known[:most] if p in claims and claims[p].epoch == self._epoch(p)}
        page = {
            str(p): [claim.epoch, claim.acknowledged, self._spans[p].to, self._rounds[p]] for p, claim in held.items()
        }
        lost = [p for p in known[:most] if p not in held]
        self.void(lost)
        return {"process": self.process, "p": page, "lost": lost, "more": len(known) > most}

    def due(self, process: str, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Those that may be acknowledged. Raises `Invalid` for what was not given out, and then none of them is."""
        found: dict[int, Position] = {}
        for partition, position in positions.items():
            if process != self.process or self._epoch(partition) != position.epoch:
                continue
            reached = self.reached(partition, position.epoch)
            if position.offset > reached:
                raise Invalid(
                    f"partition {partition} was delivered up to {reached} and cannot be acknowledged "
                    f"up to {position.offset}"
                )
            if position.offset <= self._spans[partition].to:  # else it was given out before it was void
                found[partition] = position
        return found

    def refuse(self, process: str, positions: Mapping[int, Position], still: Collection[int]) -> None:
        """The application is told that all of `positions` but `still` do not count: they come again."""
        if process == self.process:
            self.void([p for p, position in positions.items() if p not in still and self._epoch(p) == position.epoch])

    def _epoch(self, partition: int) -> int | None:
        span = self.last(partition)
        return span.epoch if span is not None else None
