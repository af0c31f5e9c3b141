"""Seeded simulations of the real coordinator and flows: no seed breaks ownership, and no guard may be missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.__main__ import FAULTS, repeat_line, simulate
from tests.simulation.guards import GUARDS, Guard, first_finding
from tests.simulation.plan import KINDS, Plan
from tests.simulation.world import run_seed
from tests.support.histories import histories_of

SEEDS = 500  # of each of four tests
TWICE_SEEDS = 100
CONTROL_SEEDS = range(2000)


def test_a_few_worlds_are_all_right() -> None:
    total = simulate(100_000, 2 * len(KINDS))
    assert not total.failures
    assert total.counts["handoffs drained"] > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.conformance("OWN-05", "CHK-04", "REB-15")
@pytest.mark.parametrize("first", range(0, 4 * SEEDS, SEEDS))
def test_no_seed_breaks_ownership(first: int, report: Callable[[str], None]) -> None:
    total = simulate(first, SEEDS)
    report(f"simulation: {total.text()}")
    told = [f"seed {seed}: {error}; repeat it by: {repeat_line(seed)}" for seed, error in total.failures]
    assert not told, "\n".join(told[:10])
    for what in (
        *FAULTS,
        "altered",
        "grown",
        "shrunk",
        "rewound",
        "rewinds cut off",
        "twins",
        "flow refused",
        "flow restarts",
        "coordinator restarts",
    ):
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"
    assert total.counts["handoffs drained"] > SEEDS
    assert total.counts["handoffs forced"] > SEEDS / 4


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_each_seed_run_twice_gives_the_same_history() -> None:
    total = simulate(10_000, TWICE_SEEDS, twice=True)
    assert not total.failures


@pytest.mark.slow
def test_the_history_does_not_depend_on_hashes() -> None:
    seeds = tuple(range(20_000, 20_000 + 2 * len(KINDS)))
    histories = histories_of(run_seed, seeds)
    assert len(histories) == 1
    assert len(set(histories.pop().split())) == len(seeds)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_missing_guard_is_noticed(guard: Guard, report: Callable[[str], None]) -> None:
    finding = first_finding(guard, CONTROL_SEEDS)
    assert finding is not None, f"{len(CONTROL_SEEDS)} seeds did not notice that this guard was off: {guard.name}"
    report(f"without {guard.name}: noticed by seed {finding.seed}: {finding.error[:80]}")


def test_every_kind_of_trouble_is_drawn() -> None:
    plans = [Plan.draw(seed) for seed in range(300)]
    assert {plan.kind for plan in plans} == set(KINDS)
    assert {plan.objects for plan in plans} == {False, True}
    assert {len(plan.flows) for plan in plans} == {2, 3, 4, 5}
    assert {plan.coordinators for plan in plans} == {1, 2, 3}
    assert {plan.partitions for plan in plans} == {2, 3, 4, 5, 6}
    assert {kind for plan in plans for _, kind in plan.losses} == {"flush", "empty", "rollback"}
    assert any(plan.settings.rebalance_delay_s == 0 and plan.settings.max_handoff_time_s == 0 for plan in plans)
    assert all(not plan.losses for plan in plans if plan.objects)
