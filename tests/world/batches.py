"""What must be true of a streaming query's batches: a repetition has what it had at first, or less of it, with the same
marks; without a group exactly that, from where the batch before it ended; and nothing is planned by a flow whose lease
is over (HAN-05, HAN-10, LOS-06).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.world.facts import MOST_RATE_DIFFERENCE, Beaten, Given, Place, demand, told

_LEAST: Final = 1 - MOST_RATE_DIFFERENCE


@dataclass(slots=True)
class _Batch:
    """What it had when it was planned first, at `at_us`. `ends`: without a group, where it ends in each partition."""

    at_us: int
    rows: Mapping[Place, bool]  # and whether they are marked
    ends: dict[int, int] = field(default_factory=dict)


class Batches:
    """Of all queries of one world. `session_s`: how long a flow may be silent; None: nobody shares."""

    def __init__(self, session_s: float | None = None, slack_s: float = 0.0) -> None:
        self._silent_us = None if session_s is None else (session_s / _LEAST + slack_s) * 1e6
        self._known: dict[str, _Batch] = {}
        self._beats_us: dict[str, list[int]] = defaultdict(list)

    def beaten(self, fact: Beaten) -> None:
        self._beats_us[fact.process].append(fact.at_us)

    def given(self, fact: Given, *, is_alone: bool) -> None:
        """`is_alone`: by a query without a group."""
        rows = {(row.partition, row.offset): row.marked for row in fact.rows}
        known = self._known.get(fact.batch)
        if known is None:
            self._known[fact.batch] = _Batch(fact.at_us, rows, self._ends(fact) if is_alone else {})
        elif is_alone:
            demand(known.rows == rows, "a repeated batch has other messages:", told(fact), known.rows)
        else:
            first, again = (known.rows, rows) if known.at_us <= fact.at_us else (rows, known.rows)
            other = {place for place in again if first.get(place) != again[place]}
            demand(not other, "a repeated batch has other messages or marks:", other, told(fact), known)
            known.at_us, known.rows = min(known.at_us, fact.at_us), first
        beats_us = self._beats_us[fact.process]
        last = bisect_right(beats_us, fact.at_us)
        if rows and last and self._silent_us is not None:
            silent_us = fact.at_us - beats_us[last - 1]
            demand(silent_us <= self._silent_us, "planned, and its lease was over, for", silent_us / 1e6, told(fact))

    def _ends(self, fact: Given) -> dict[int, int]:
        """By the end of the batch before it."""
        ends = dict(self._known[fact.after].ends) if fact.after in self._known else {}
        for row in fact.rows:
            demand(not row.marked, "marked, and without a group nobody can have had it:", told(fact))
            at = ends.get(row.partition, 0)
            demand(row.offset == at, "goes on at", row.partition, row.offset, "and the query is at", at, told(fact))
            ends[row.partition] = row.offset + 1
        return ends
