"""What must be true of queries without a group: each batch of theirs is exactly what Spark's own checkpoint makes it.

Knows the texts of offsets and the rows that were planned between two of them, in true time; nothing of what an offset
means. A text says by itself where a query is: the same batch has the same rows, by any plan at any time, and the
next one goes on where it ends. Raises `Violation` at the first thing that must never happen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.queries.judge import Row
from tests.support.judge import Publications, before_its_key, demand, forbid

Places = Mapping[int, tuple[int, int]]
"""By partition, between which offsets a query is: one that begins at the latest message says only that much."""


@dataclass(slots=True)
class _Source:
    """One load of one query. `at`: where it is by the text of an offset; `begins`: where the batch up to a text begins;
    `rows`: what that batch has.
    """

    at: dict[str, Places] = field(default_factory=dict)
    begins: dict[str, Places] = field(default_factory=dict)
    rows: dict[str, tuple[Row, ...]] = field(default_factory=dict)


class ExactJudge:
    """Of all queries without a group in one world."""

    def __init__(self, queue: Publications) -> None:
        self._queue = queue
        self._sources: dict[tuple[str, int], _Source] = defaultdict(_Source)

    def made(self, query: str, source: int, start: str, end: str, *, latest: Sequence[int] | None) -> None:
        """Spark was given the end of a batch that follows `start`; that is "" for the first one. `latest`: where the
        partitions ended when Spark asked, if the query begins there, else it begins with the earliest message.
        """
        found = self._sources[query, source]
        if start:
            demand(start in found.at, f"{query}/{source} goes on from what was never read: {start}")
            found.begins[end] = found.at[start]
            return
        found.begins[end] = {
            p: (0, 0) if latest is None else (latest[p] if p < len(latest) else 0, to)
            for p, to in enumerate(self._queue.ends)
        }

    def planned(self, query: str, source: int, end: str, rows: Sequence[Row]) -> None:
        """Spark has the partitions of the batch up to `end`. Where it says that the batch begins counts for nothing:
        with asyncProgressTracking it forgets that others came in between.
        """
        what = f"the batch of {query}/{source} up to {end}"
        found = self._sources[query, source]
        known = found.rows.get(end)
        demand(known is None or known == tuple(rows), f"{what} had other rows before:", (known, rows))
        if known is not None:
            return
        demand(end in found.begins, f"{what} was never given to Spark")
        places = found.begins[end]
        reached = dict(places)
        ends = self._queue.ends
        for row in rows:
            demand(row.epoch == 0 and not row.redelivered, f"{what} marks what it has, or names an owner:", row)
            demand(row.offset < ends[row.partition], f"{what} has what is not there:", row)
            least, most = reached.get(row.partition, (0, 0))
            demand(least <= row.offset <= most, f"{what} goes on at {row.message}, and the query is at", (least, most))
            reached[row.partition] = (row.offset + 1, row.offset + 1)
        for row in rows:
            earlier = self._queue.earlier(row.message)
            forbid(before_its_key(row.message, earlier, lambda number: places.get(number, (0, 0))[1]), what)
        found.rows[end] = tuple(rows)
        found.at[end] = reached

    def left(self, query: str, source: int, at: str) -> int:
        """How many messages the query has still to read from this text on, at most."""
        places = self._sources[query, source].at.get(at, {})
        return sum(end - places.get(p, (0, 0))[1] for p, end in enumerate(self._queue.ends))
