"""What one process of a flow has given out, where the application acknowledges by hand (`ackMode=manual`). Pure.

Only what this very process gave out may be acknowledged through it, and only at the epoch at which it was given out:
what an application remembers of an ownership that is over, or of a process before, counts for nothing (HAN-10). And
what it was once told to be lost stays so until it is given out again: it has forgotten what it knew of it, and the same
claim at the same epoch may come back, after a Redis that did not answer for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partq_spark.consuming.flow_planning import Spans
from partq_spark.errors import Invalid
from partq_spark.flow.claims import Claim, Position
from partq_spark.offsets import Span


class GivenOut:
    """The span of each partition that was given out last. `process` tells this process from the next."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._spans: dict[int, Span] = {}
        self._void: set[int] = set()  # the application was told that they are lost

    def last(self, partition: int) -> Span | None:
        """What was given out last and counts, an empty span if its batch was never read."""
        return self._spans.get(partition) if partition not in self._void else None

    def add(self, spans: Spans) -> None:
        """A batch is given out."""
        self._spans.update(spans)
        self._void.difference_update(spans)

    def take_back(self, spans: Spans) -> None:
        """Its batch was never read: it is given out again."""
        for partition, span in spans.items():
            if self._spans.get(partition) == span:
                self._spans[partition] = span._replace(to=span.start)

    def in_hand(self, claims: Mapping[int, Claim], *, after: int, most: int) -> dict[str, Any]:
        """For the application: of at most `most` partitions beyond `after` the epoch, what is acknowledged, and what
        was given out; `lost` are those of them that were given out and have moved on. `more`: there are others.
        """
        known = sorted(p for p in self._spans if p > after)
        held = {p: claims[p] for p in known[:most] if p in claims and claims[p].epoch == self._epoch(p)}
        page = {str(p): [claim.epoch, claim.acknowledged, self._spans[p].to] for p, claim in held.items()}
        lost = [p for p in known[:most] if p not in held]
        self._void.update(lost)
        return {"process": self.process, "p": page, "lost": lost, "more": len(known) > most}

    def due(self, process: str, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Those that may be acknowledged. Raises `Invalid` for what was not given out, and then none of them is."""
        found: dict[int, Position] = {}
        for partition, position in positions.items():
            if process != self.process or self._epoch(partition) != position.epoch:
                continue
            if position.offset > self._spans[partition].to:
                raise Invalid(
                    f"partition {partition} was delivered up to {self._spans[partition].to} and cannot be acknowledged "
                    f"up to {position.offset}"
                )
            found[partition] = position
        return found

    def _epoch(self, partition: int) -> int | None:
        span = self.last(partition)
        return span.epoch if span is not None else None
