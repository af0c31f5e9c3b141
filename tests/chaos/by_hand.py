"""The judge of the query that acknowledges by hand, from what its application wrote down and looks at the checkpoints.

What the mode promises: nothing that the application did not acknowledge is passed over, and everything that it did not
acknowledge comes again, marked. So of a partition the messages come in order without a gap; after a restart, another
ownership or an acknowledgement that did not count, the flow begins anew where everything before is acknowledged; and no
checkpoint is ever further than the application. Of two copies of a message the later one is marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.cast.looks import Seen, backward
from tests.chaos.checker import bounded, missing, strangers
from tests.chaos.evidence import Row
from tests.support import judge as rules

NAME: Final = "driver-manual"


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A batch that the application was given, and at which epoch its flow had which partition then."""

    at_s: float
    run: str
    process: str
    epochs: Mapping[int, int]
    rows: Sequence[Row]


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledged:
    """What the application acknowledged: `ends`, from `at_s` on. `counted`: the partitions for which the answer said
    that it counted; None: there was no answer.
    """

    at_s: float
    run: str
    ends: Mapping[int, int]
    counted: frozenset[int] | None

    def is_refused(self, partition: int) -> bool:
        """Whether the application was told that it did not count."""
        return self.counted is not None and partition not in self.counted


Fact = Given | Acknowledged


@dataclass(frozen=True, kw_only=True, slots=True)
class ByHandVerdict:
    """What the evidence says. `violations` is empty if everything was as it must be."""

    violations: tuple[str, ...]
    rows: int
    marked: int
    repeated: int
    runs: int  # starts of the query that were given anything
    acknowledgements: int
    refused: int  # of a partition, that did not count


def judge_by_hand(facts: Sequence[Fact], seen: Sequence[Seen], published: Mapping[int, str]) -> ByHandVerdict:
    """Weigh all evidence. `facts` as they were written, `published`: the key of every message, by its number."""
    rows = [row for fact in facts if isinstance(fact, Given) for row in fact.rows]
    said = [fact for fact in facts if isinstance(fact, Acknowledged)]
    found = {
        "not what was published": strangers(rows, published),
        "missing": missing(rows, published),
        "passed over": passed_over(facts),
        "acknowledged without having been given": never_given(facts),
        "a checkpoint beyond what was acknowledged": beyond(said, seen),
        "repeated without a mark": unmarked(rows),
        "checkpoints that went back": backward(seen),
    }
    return ByHandVerdict(
        violations=tuple(f"by hand, {what}: {each}" for what, told in found.items() for each in bounded(told)),
        rows=len(rows),
        marked=sum(row.redelivered for row in rows),
        repeated=len(rows) - len({row.number for row in rows}),
        runs=len({fact.run for fact in facts if isinstance(fact, Given)}),
        acknowledgements=len(said),
        refused=sum(fact.is_refused(partition) for fact in said for partition in fact.ends),
    )


@dataclass(slots=True)
class _Place:
    """Where one partition is. `follows`: the next offset, if the flow goes on as it was; None: it begins anew."""

    owned: tuple[str, str, int] | None = None  # run, process, epoch
    follows: int | None = None
    acknowledged: int = 0


def passed_over(facts: Sequence[Fact]) -> Iterator[str]:
    """Messages that come behind others that were neither given before nor acknowledged."""
    places: dict[int, _Place] = {}
    for fact in facts:
        if isinstance(fact, Acknowledged):
            for partition, end in fact.ends.items():
                place = places.setdefault(partition, _Place())
                if fact.is_refused(partition):
                    place.follows = None
                else:
                    place.acknowledged = max(place.acknowledged, end)
            continue
        for partition, mine in _by_partition(fact.rows).items():
            place = places.setdefault(partition, _Place())
            epoch = fact.epochs.get(partition)
            owned = None if epoch is None else (fact.run, fact.process, epoch)
            if owned != place.owned or owned is None:
                place.owned, place.follows = owned, None
            for before, row in pairwise(mine):
                if row.offset != before.offset + 1:
                    yield f"{row} after {before}, in one batch"
            first = mine[0]
            if first.offset != place.follows and first.offset > place.acknowledged:
                expected = place.acknowledged if place.follows is None else place.follows
                yield (
                    f"{first} is the first of a batch, {expected} was to come, and what is acknowledged ends at "
                    f"{place.acknowledged}"
                )
            # Of what had moved on already nothing is in hand: it comes again, here or elsewhere.
            place.follows = None if owned is None else mine[-1].offset + 1


def never_given(facts: Sequence[Fact]) -> Iterator[str]:
    """Acknowledgements of more than the application was ever given, as one that trusts the order makes them."""
    given: dict[int, set[int]] = {}
    complete: dict[int, int] = {}  # everything before it was given
    for fact in facts:
        if isinstance(fact, Given):
            for row in fact.rows:
                given.setdefault(row.partition, set()).add(row.offset)
            continue
        for partition, end in fact.ends.items():
            hole = complete.get(partition, 0)
            while hole in given.get(partition, ()):
                hole += 1
            complete[partition] = hole
            if end > hole:
                yield f"{partition}/{hole} was never given, acknowledged is everything before {end}"


def beyond(said: Sequence[Acknowledged], seen: Sequence[Seen]) -> Iterator[str]:
    """Checkpoints with more than the application had acknowledged by the time when they were read."""
    ends: dict[int, int] = {}
    left = sorted(said, key=lambda fact: fact.at_s, reverse=True)
    for look in sorted(seen, key=lambda each: each.done_s):
        while left and left[-1].at_s <= look.done_s:
            fact = left.pop()
            for partition, end in fact.ends.items():
                if not fact.is_refused(partition):
                    ends[partition] = max(ends.get(partition, 0), end)
        what = f"the checkpoint of partition {look.partition} at epoch {look.epoch}"
        yield from rules.acknowledged_beyond(look.offset, ends.get(look.partition, 0), what)


def unmarked(rows: Sequence[Row]) -> Iterator[str]:
    """Copies that came later than the first and say that they did not."""
    before: dict[int, Row] = {}
    for row in rows:
        first = before.setdefault(row.number, row)
        if first is not row:
            yield from rules.unmarked(first.delivery(), row.delivery())


def _by_partition(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append(row)
    return found


# --- what was written down --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    facts: list[Fact] = field(default_factory=list)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)  # where an acknowledgement stands in `facts`


def read_by_hand(journal: Path) -> list[Fact]:
    """What an application wrote down, in its order; a killed one's last line may be a part."""
    found = _Open()
    for text in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
        if text.endswith("}"):
            _take(found, json.loads(text))
    return found.facts


def _take(found: _Open, line: Mapping[str, Any]) -> None:
    run = str(line["run"])
    if line["what"] == "given":
        rows = [
            Row(NAME, int(line["batch"]), place, partition, offset, key, number, redelivered)
            for place, (partition, offset, key, number, redelivered) in enumerate(line["rows"])
        ]
        epochs = {int(partition): int(epoch) for partition, epoch in line["epochs"].items()}
        found.facts.append(Given(at_s=line["at_s"], run=run, process=line["process"], epochs=epochs, rows=rows))
    elif line["what"] == "acknowledges":
        ends = {int(partition): int(end) for partition, end in line["ends"].items()}
        found.asked[run, line["number"]] = len(found.facts)
        found.facts.append(Acknowledged(at_s=line["at_s"], run=run, ends=ends, counted=None))
    elif line["what"] == "answered":
        place = found.asked[run, line["number"]]
        asked = found.facts[place]
        assert isinstance(asked, Acknowledged)
        found.facts[place] = Acknowledged(
            at_s=asked.at_s, run=run, ends=asked.ends, counted=frozenset(map(int, line["counted"]))
        )
