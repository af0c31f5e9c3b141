"""The judge: reads what the sinks have and what was planned, and says what must not have happened. Pure.

An *ownership* here is one epoch of a partition: it belongs to one flow, and epochs are its order. A batch that was
planned may reach its sink after its partition has moved on, so time says nothing and is not looked at; what counts is
that of all copies of a message every one but that of the earliest ownership is marked, and that without the marked rows
every key is in order through all ownerships.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeVar

from tests.cast.looks import Seen, backward
from tests.chaos.evidence import Planned, Row, Times
from tests.chaos.layouts import Count, generation_of, too_early
from tests.support import judge as rules

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
MOST_TOLD: Final = 20  # of each check
Plans = Mapping[tuple[str, int, int], Planned]  # by driver, batch and partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the evidence says. `violations` is empty if everything was as it must be."""

    violations: tuple[str, ...]
    messages: int  # that were published
    rows: int
    marked: int
    repeated: int  # rows of a message beyond its first
    batches: int  # with rows
    left_out: int  # spans that a repeated batch did not deliver, because the partition had moved on
    ownerships: int


def judge(
    rows: Sequence[Row],
    planned: Sequence[Planned],
    seen: Sequence[Seen],
    published: Mapping[int, str],
    counts: Sequence[Count] = (),
    times: Mapping[tuple[str, int], Times] = MappingProxyType({}),
    unfinished: Collection[tuple[str, int]] = (),
) -> Verdict:
    """Weigh all evidence. `published`: the key of every message, by its number. `counts`: the partition counts that the
    queue had, if they changed; then `times` are looked at too. `unfinished`: batches, by driver and number, that were
    given and never handled.
    """
    plans = {(each.driver, each.batch, each.partition): each for each in planned}
    found = {
        "not what was published": strangers(rows, published),
        "missing": missing([row for row in rows if (row.driver, row.batch) not in unfinished], published),
        "not as planned": unplanned(rows, plans),
        "torn": torn(rows, plans),
        "plans with gaps": gaps(planned),
        "two owners": two_owners(planned, seen),
        "repeated without a mark": unmarked(rows, plans),
        "out of order within an owner": disorder_within(rows, plans),
        "out of order across owners": disorder_across(rows, plans, counts),
        "before an earlier partition count was finished": too_early(rows, times) if len(counts) > 1 else (),
        "checkpoints that went back": backward(seen),
    }
    violations = [f"{what}: {each}" for what, told in found.items() for each in bounded(told)]
    delivered = {(row.driver, row.batch, row.partition) for row in rows}
    return Verdict(
        violations=tuple(violations),
        messages=len(published),
        rows=len(rows),
        marked=sum(row.redelivered for row in rows),
        repeated=len(rows) - len({row.number for row in rows}),
        batches=len({(row.driver, row.batch) for row in rows}),
        left_out=sum(each.start < each.to and key not in delivered for key, each in plans.items()),
        ownerships=len({(each.partition, each.epoch) for each in planned}),
    )


def judge_unkept(rows: Sequence[Row], planned: Sequence[Planned], published: Mapping[int, str]) -> tuple[str, ...]:
    """What must not be with `checkpoints=none`, where only Spark's checkpoint says how far a query is: nothing of what
    was unfinished is lost. What comes again is marked only as far as it is known, so marks and the order through
    ownerships are not looked at.
    """
    plans = {(each.driver, each.batch, each.partition): each for each in planned}
    found = {
        "not what was published": strangers(rows, published),
        "missing": missing(rows, published),
        "not as planned": unplanned(rows, plans),
        "torn": torn(rows, plans),
        "plans with gaps": gaps(planned),
        "two owners": two_owners(planned, ()),
        "out of order within an owner": disorder_within(rows, plans),
    }
    return tuple(f"unkept, {what}: {each}" for what, told in found.items() for each in bounded(told))


def bounded(told: Iterable[str]) -> Iterator[str]:
    """The first of them, and how many more there are."""
    number = 0
    for number, each in enumerate(told, start=1):
        if number <= MOST_TOLD:
            yield each
    if number > MOST_TOLD:
        yield f"... and {number - MOST_TOLD} more"


# --- what there is ----------------------------------------------------------------------------------------------------


def strangers(rows: Sequence[Row], published: Mapping[int, str]) -> Iterator[str]:
    """Rows that nobody published, and messages that have changed their place."""
    places: dict[int, tuple[int, int]] = {}
    numbers: dict[tuple[int, int], int] = {}
    for row in rows:
        if published.get(row.number) != row.key:
            yield f"{row} with key {row.key!r}, published with {published.get(row.number)!r}"
        place = (row.partition, row.offset)
        if places.setdefault(row.number, place) != place or numbers.setdefault(place, row.number) != row.number:
            yield f"{row}, elsewhere at {places[row.number]}, where message {numbers.get(place)} was before"


def missing(rows: Sequence[Row], published: Mapping[int, str]) -> Iterator[str]:
    """Messages that no sink has."""
    found = {row.number for row in rows}
    for number, key in published.items():
        if number not in found:
            yield f"message {number} of {key!r}"


def unplanned(rows: Sequence[Row], plans: Plans) -> Iterator[str]:
    """Rows that their batch was not to read, and marks that are not those of the plan."""
    for row in rows:
        plan = plans.get((row.driver, row.batch, row.partition))
        if plan is None or not plan.start <= row.offset < plan.to:
            yield f"{row}, planned: {plan or 'nothing of the partition'}"
        elif row.redelivered != (row.offset < plan.redelivered_below):
            yield f"{row}, to be marked below {plan.redelivered_below}: {plan}"


def torn(rows: Sequence[Row], plans: Plans) -> Iterator[str]:
    """Batches that have a part of what they were to read of a partition: all of it or nothing (HAN-05)."""
    for key, mine in _grouped(rows, lambda row: (row.driver, row.batch, row.partition)).items():
        plan = plans.get(key)
        has = sorted(row.offset for row in mine)
        if plan is not None and has != list(range(plan.start, plan.to)):
            yield f"{plan}: has {len(has)} rows, from {has[0]} to {has[-1]}"


# --- who had what -----------------------------------------------------------------------------------------------------


def gaps(planned: Sequence[Planned]) -> Iterator[str]:
    """Within one ownership every batch begins where the one before ended, or before that, if it was given back."""
    for mine in _grouped(planned, lambda each: (each.driver, each.partition, each.epoch, each.round)).values():
        for before, after in pairwise(sorted(mine, key=lambda each: each.batch)):
            yield from (f"{after}, before it {before}" for _ in rules.gap(after.delivery(), before.to))


def two_owners(planned: Sequence[Planned], seen: Sequence[Seen]) -> Iterator[str]:
    """An epoch belongs to one flow, and a flow to one driver."""
    owners: dict[int, list[tuple[int, str]]] = defaultdict(list)
    drivers: dict[str, set[str]] = defaultdict(set)
    for each in planned:
        owners[each.partition].append((each.epoch, each.flow))
        drivers[each.flow].add(each.driver)
    for look in seen:
        if look.flow:
            owners[look.partition].append((look.epoch, look.flow))
    for partition, mine in owners.items():
        yield from (f"partition {partition}: {told}" for told in rules.shared_epochs(dict.fromkeys(mine)))
    for flow, names in drivers.items():
        if len(names) > 1:
            yield f"flow {flow} is {sorted(names)}"


# --- marks and order --------------------------------------------------------------------------------------------------


def unmarked(rows: Sequence[Row], plans: Plans) -> Iterator[str]:
    """Copies of a message that should be marked: all but that of the earliest ownership's earliest batch."""
    for copies in _grouped(rows, lambda row: row.number).values():
        first, *later = sorted(copies, key=lambda row: _place(row, plans))
        for row in later:
            told = rules.unmarked(first.delivery(_epoch(first, plans)), row.delivery(_epoch(row, plans)))
            yield from (f"{row}: {each}" for each in told)


def disorder_within(rows: Sequence[Row], plans: Plans) -> Iterator[str]:
    """Rows of a key that do not grow within one ownership, marked or not, until they are given back."""
    for mine in _grouped(rows, lambda row: (row.driver, row.key, row.partition, *_round(row, plans))).values():
        yield from _falling(sorted(mine, key=lambda row: (row.batch, row.place)))


def disorder_across(rows: Sequence[Row], plans: Plans, counts: Sequence[Count]) -> Iterator[str]:
    """Rows of a key, without the marked ones, that do not grow through all ownerships, of one partition count after
    another.
    """
    for mine in _grouped([row for row in rows if not row.redelivered], lambda row: row.key).values():
        yield from _falling(sorted(mine, key=lambda row: (generation_of(row, counts), *_place(row, plans))))


def _falling(ordered: Iterable[Row]) -> Iterator[str]:
    for before, row in pairwise(ordered):
        if row.number <= before.number:
            yield f"key {row.key!r}: {row} after {before}"


def _place(row: Row, plans: Plans) -> tuple[int, int, int]:
    """Where a row stands in the order of its partition: ownership, then batch, then row."""
    return _epoch(row, plans), row.batch, row.place


def _epoch(row: Row, plans: Plans) -> int:
    plan = plans.get((row.driver, row.batch, row.partition))
    return plan.epoch if plan is not None else -1


def _round(row: Row, plans: Plans) -> tuple[int, int]:
    plan = plans.get((row.driver, row.batch, row.partition))
    return (plan.epoch, plan.round) if plan is not None else (-1, 0)


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found
