"""What one process of a flow has given out to its application, and what of it may be acknowledged. Pure.

Given out is what a batch was made of, and not what was only announced: Spark may never ask for it.

With `ackMode=manual` a process acknowledges only what it gave out itself, and only at the epoch and in the round in
which it was given out. What an application remembers of an ownership that is over, or of an earlier process, does not
count (HAN-10). What the application gave back, or was told not to count, is void until it is given out again, from its
first message that is not acknowledged, and that begins a new round: a word from the round before, of a batch that some
other thread still has, says nothing about it, also at the same epoch, which may come back after a Redis that did not
answer for a moment, or after `maxPollInterval`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from partq_spark.base.errors import Invalid
from partq_spark.group.claims import Claim, Position
from partq_spark.query.offsets import BatchSpan
from partq_spark.query.planning import Spans


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
