"""The plan: balance, and no way to reach it with fewer handoffs (REB-11)."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.core.assignment import planned_assignment
from partq_spark.group.model import Owner
from tests.support.properties import examples


def owners(count: int) -> list[Owner]:
    return [Owner(f"f{index}", "1") for index in range(count)]


def least_moves(start: tuple[int | None, ...], flows: int) -> int:
    """Brute force over all balanced targets: partitions that a bound flow has to give to another one."""
    return min(
        sum(was is not None and was != now for was, now in zip(start, target, strict=True))
        for target in product(range(flows), repeat=len(start))
        if max(counts := [target.count(flow) for flow in range(flows)]) - min(counts) <= 1
    )


def check(start: tuple[int | None, ...], flows: int) -> int:
    live = owners(flows)
    held = {owner: [n for n, flow in enumerate(start) if flow == index] for index, owner in enumerate(live)}
    unheld = [n for n, flow in enumerate(start) if flow is None]
    made = planned_assignment(
        live=live, held={owner: numbers for owner, numbers in held.items() if numbers}, unheld=unheld
    )
    assert [number for number, _ in made.given] == unheld
    result = {n: live[flow] for n, flow in enumerate(start) if flow is not None} | dict(made.given)
    for move in made.moves:
        assert result[move.partition] == move.giver != move.receiver
        assert move.partition not in unheld, "what was just given is moved"
        result[move.partition] = move.receiver
    counts = Counter(dict.fromkeys(live, 0))
    counts.update(result.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len({move.partition for move in made.moves}) == len(made.moves), "a partition is moved twice"
    return len(made.moves)


@pytest.mark.conformance("REB-11")
@given(data=st.data(), flows=st.integers(1, 4))
@examples(150)
@example(data=None, flows=3)
def test_the_number_of_handoffs_is_the_least_that_reaches_balance(data: st.DataObject | None, flows: int) -> None:
    most = {1: 6, 2: 8, 3: 6, 4: 5}[flows]
    if data is None:
        start: tuple[int | None, ...] = (0, 0, 0, 0, 1, None)
    else:
        start = tuple(data.draw(st.lists(st.none() | st.integers(0, flows - 1), max_size=most)))
    assert check(start, flows) == least_moves(start, flows)


@pytest.mark.conformance("REB-11")
@pytest.mark.parametrize("flows", [1, 2, 3])
def test_every_small_start(flows: int) -> None:
    """All starts with up to 4 partitions, each with any flow or none."""
    for size in range(5):
        for start in product([None, *range(flows)], repeat=size):
            assert check(start, flows) == least_moves(start, flows)


def by_surplus(counts: list[int], unheld: int) -> int:
    """The least number of handoffs by arithmetic, beyond brute force: what is above the highest fair share."""
    total, flows = sum(counts) + unheld, len(counts)
    low, extra = divmod(total, flows)
    fair = [low + 1] * extra + [low] * (flows - extra)
    return sum(max(has - share, 0) for has, share in zip(sorted(counts, reverse=True), fair, strict=True))


@pytest.mark.conformance("REB-11")
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=30), unheld=st.integers(0, 60))
def test_large_starts_against_arithmetic(counts: list[int], unheld: int) -> None:
    start: list[int | None] = [flow for flow, count in enumerate(counts) for _ in range(count)]
    assert check((*start, *[None] * unheld), len(counts)) == by_surplus(counts, unheld)


@given(start=st.lists(st.none() | st.integers(0, 2), max_size=6))
def test_the_arithmetic_agrees_with_the_brute_force(start: list[int | None]) -> None:
    counts = [start.count(flow) for flow in range(3)]
    assert by_surplus(counts, start.count(None)) == least_moves(tuple(start), 3)


def test_ties_go_to_the_oldest_and_reluctant_partitions_stay() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0, 1, 2, 3]}, unheld=[4, 5], reluctant={3})
    assert made.given == [(4, b), (5, c)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(2, b), (1, c)]


def test_exclusive_gives_everything_to_who_has_most() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0], b: [1, 2]}, unheld=[3], exclusive=True)
    assert made.given == [(3, b)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(0, b)]
