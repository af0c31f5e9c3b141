"""Seeded simulations of applications with a `partq.Consumer`: whatever they do, nothing is acknowledged that was not
handled, nothing is skipped, and nothing comes twice without a mark.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.__main__ import CONSUMER, Total, simulate
from tests.simulation.consumer.plan import KINDS, OPERATIONS
from tests.simulation.consumer.world import run_seed
from tests.support.histories import histories_of

FOUND = (
    (1, "loops", (0, 20, 25)),  # a loop that was begun again acknowledged the batch that the former one was left with
    (3, "threads", (1, 31, 136)),  # a second poll was not refused; an abandoned poll's batch was acknowledged
    (4, "rounds", (17, 27, 52)),  # an acknowledgement from before a release counted
    (
        6,
        "signals",
        (28, 263, 718, 2483),
    ),  # a signal's exception dropped the batch: before the assignment, inside of poll
)
"""What seeds found on e4118cb, before it was repaired, by its number in issue 24 (A)."""


def told(total: Total) -> str:
    return "\n".join(f"{error}; repeat it by: {CONSUMER.repeat_line(seed)}" for seed, error in total.failures[:10])


@pytest.mark.conformance("API-03", "API-05")
def test_a_few_applications_are_all_right() -> None:
    total = simulate(100_000, 12 * len(KINDS), suite=CONSUMER)
    assert not total.failures, told(total)
    for what in {*OPERATIONS["everything"], "batches", "messages", "refused", "cancelled", "signals", "switches"}:
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"


@pytest.mark.conformance("API-05")
@pytest.mark.parametrize(("number", "kind", "seeds"), FOUND)
def test_what_seeds_have_found_stays_repaired(number: int, kind: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        assert CONSUMER.kind_of(seed) == kind
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.conformance("API-03", "API-05")
def test_no_application_loses_or_doubles_a_message(report: Callable[[str], None]) -> None:
    total = simulate(0, 1000, suite=CONSUMER)
    report(f"consumer: {total.text()}")
    assert not total.failures, told(total)


@pytest.mark.slow
def test_each_seed_run_twice_has_the_same_history_with_other_hashes_too() -> None:
    assert not simulate(20_000, 60, twice=True, suite=CONSUMER).failures
    assert len(histories_of(run_seed, tuple(range(30_000, 30_000 + 4 * len(KINDS))))) == 1
