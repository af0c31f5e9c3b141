"""What must be true of a streaming query's batches: a repetition has what it had at first, or less of it, with the same
marks; without a group exactly that, from where the batch before it ended; and nothing is planned by a flow whose lease
is over (HAN-05, HAN-10, LOS-06). And of the queues that queries write into (DIS-08, DIS-09, DIS-10): of each batch of a
writer all is there or nothing, and once; what was accepted is there, what was refused is not, and that is nothing
healthy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.world.facts import MOST_RATE_DIFFERENCE, Beaten, Given, Lying, Place, Resolved, Writing, Wrote, demand, told

_LEAST: Final = 1 - MOST_RATE_DIFFERENCE
Batch = tuple[str, int]
"""Writer and number."""


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


# --- what is written --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Try:
    fact: Writing
    ending: str = "cut off"  # as long as nobody heard of it


def origin(value: str) -> str:
    """The value of the source's message: what follows says of which batch a result is."""
    return value.partition("@")[0]


class Results:
    """Of one world."""

    def __init__(self) -> None:
        self._tries: dict[int, _Try] = {}
        self._resolved: dict[Batch, set[bool]] = defaultdict(set)

    def take(self, fact: Writing | Wrote | Resolved) -> None:
        """A fact, in their order. Raises `Violation`."""
        match fact:
            case Writing():
                self._tries[fact.number] = _Try(fact)
            case Wrote():
                self._tries[fact.number].ending = fact.ending
                refused = fact.ending == "refused" and fact.is_healthy
                demand(not refused, "a query in good order was refused:", told(fact))
                self._refused(self._tries[fact.number], fact)
            case Resolved():
                self._said(fact)

    def _refused(self, one: _Try, fact: Wrote) -> None:
        """Not in one of the queues either: what is there an earlier try has brought."""
        batch = one.fact.writer, one.fact.batch
        others = [each for each in self._tries.values() if (each.fact.writer, each.fact.batch) == batch]
        known = {
            (queue, value)
            for each in others
            if each.ending != "refused"
            for queue, values in each.fact.parts
            for value in values
        }
        demand(not fact.present - known, "a part of a refused batch is there:", fact.present - known, told(fact))

    def _said(self, fact: Resolved) -> None:
        """From this number on, as far as the writer had come."""
        numbers = {each.fact.batch for each in self._tries.values() if each.fact.writer == fact.writer}
        for batch in [number for number in numbers if number >= fact.batch]:
            self._resolved[fact.writer, batch].add(fact.is_published)

    def said_to_be_there(self) -> set[str]:
        """Messages of batches that a person said to be published, right or wrong."""
        said = [each.fact for each in self._tries.values() if True in self._resolved[each.fact.writer, each.fact.batch]]
        return {origin(value) for fact in said for _, values in fact.parts for value in values}

    def complete(self, logs: Mapping[str, Iterable[Lying]]) -> None:
        """`logs`: what lies in each queue of results."""
        for queue, log in logs.items():
            found: dict[Batch, Counter[str]] = defaultdict(Counter)
            for each in log:
                found[_batch_of(each.value)][each.value] += 1
            tries: dict[Batch, list[_Try]] = defaultdict(list)
            for one in self._tries.values():
                tries[one.fact.writer, one.fact.batch].append(one)
            unknown = found.keys() - tries.keys()
            demand(not unknown, queue, "has what nobody wrote:", unknown)
            for batch, made in tries.items():
                self._judge(queue, batch, made, found[batch])

    def _judge(self, queue: str, batch: Batch, tries: list[_Try], found: Counter[str]) -> None:
        said = self._resolved[batch]
        rows = [(Counter(dict(each.fact.parts).get(queue, ())), each.ending) for each in tries]
        what = f"batch {batch[1]} of {batch[0]} in {queue}"
        if True not in said:
            for each, ending in rows:
                missing = each - found
                demand(ending != "accepted" or not missing, what, "lacks what was accepted:", dict(missing))
        able = [each for each, ending in rows if ending != "refused"]
        if False in said:  # it was published again, perhaps several times
            most: Counter[str] = sum(able, Counter())
            demand(not found - most, what, "has more than was written:", dict(found - most))
        else:
            demand(not found or found in able, what, "is no whole one of its tries:", dict(found), rows)


def _batch_of(value: str) -> Batch:
    writer, _, number = value.partition("@")[2].rpartition("/")
    return writer, int(number.partition("~")[0])
