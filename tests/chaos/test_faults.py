"""The plan of a run: the same seed gives the same faults, every kind comes, nothing is struck while it is down."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.chaos.faults import EVERY_S, FREEZING, Fault, Kind, plan

SESSION_S = 5.0


def made(seed: int, minutes: float = 10.0, drivers: int = 3, *, slow_store: bool = True) -> tuple[Fault, ...]:
    return plan(seed, duration_s=minutes * 60, drivers=drivers, session_timeout_s=SESSION_S, slow_store=slow_store)


def test_a_seed_gives_the_same_faults() -> None:
    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize("seed", range(20))
def test_faults_come_every_few_seconds_and_a_driver_is_killed_about_once_a_minute(seed: int) -> None:
    found = made(seed)
    times_s = [fault.at_s for fault in found]
    assert times_s == sorted(times_s)
    assert 600 / EVERY_S[1] < len(found) < 600 / EVERY_S[0]
    kinds = Counter(fault.kind for fault in found)
    assert kinds.keys() == set(Kind)
    assert 9 <= kinds[Kind.DRIVER_KILLED] <= 10
    assert kinds[Kind.REDIS_EMPTIED] >= 5


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_struck_while_he_is_frozen_or_away(seed: int) -> None:
    busy_s: dict[int, float] = defaultdict(float)
    for fault in made(seed):
        if fault.driver >= 0:
            assert fault.at_s >= busy_s[fault.driver]
            busy_s[fault.driver] = fault.at_s + fault.for_s
        if fault.kind in FREEZING:
            assert fault.for_s > SESSION_S


@pytest.mark.parametrize("seed", range(20))
def test_a_minute_with_two_drivers_has_something_of_most_and_nothing_lasts_beyond_it(seed: int) -> None:
    found = made(seed, minutes=1, drivers=2, slow_store=False)
    kinds = Counter(fault.kind for fault in found)
    assert kinds[Kind.DRIVER_KILLED] == 1
    assert Kind.STORE_SLOWED not in kinds
    assert len(kinds) >= 4
    assert all(fault.at_s + fault.for_s <= 60 for fault in found if fault.kind in FREEZING)
