"""Seeded simulations of sinks: no row is dropped or doubled, nothing healthy is refused; no guard may be missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

from tests.simulation.__main__ import SINK, Total, simulate
from tests.simulation.sink.plan import KINDS
from tests.simulation.sink.world import run_seed
from tests.support.histories import histories_of
from tests.support.judge import Violation

SEEDS = 500
CONTROL_SEEDS = range(200)
GUARDS = {
    # A number that was used is taken for a repetition, whatever its rows are.
    "rows": partial(mock.patch, "partq_spark.log.repetition._first_new", return_value=(None, "")),
    # The first queue of a batch gets its part before the others were asked.
    "all queues first": partial(mock.patch, "partq_spark.log.fanout._check"),
}


def told(total: Total) -> str:
    return "\n".join(f"seed {seed}: {error}; repeat it by: {SINK.repeat_line(seed)}" for seed, error in total.failures)


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)


@pytest.mark.conformance("DIS-08", "DIS-09", "DIS-10", "HAN-10")
def test_a_few_worlds_are_all_right() -> None:
    total = simulate(100_000, 3 * len(KINDS), suite=SINK)
    assert not total.failures, told(total)
    for what in ("accepted: add nothing", "refused: refuse it", "resize", "compacted", "left out", "crash"):
        assert total.counts[what] > 0, f"no seed shows {what!r}"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.conformance("DIS-08", "DIS-09", "DIS-10")
def test_no_seed_drops_or_doubles_a_row(report: Callable[[str], None]) -> None:
    total = simulate(0, SEEDS, suite=SINK)
    report(f"sink: {total.text()}")
    assert not total.failures, told(total)
    happened = ["accepted: add nothing, at no cost", "accepted: add nothing or refuse it", "alter", "rewound", "trim"]
    happened += ["older copy", "both logs cut", "offsets cut", "commits cut", "landed late", "contradicted"]
    for what in (*happened, "resolved: published", "resolved: new", "resolved: anew"):
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"


@pytest.mark.slow
def test_the_history_does_not_depend_on_hashes() -> None:
    assert len(histories_of(run_seed, tuple(range(20_000, 20_000 + len(KINDS))))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS)
def test_a_missing_guard_is_noticed(guard: str) -> None:
    with GUARDS[guard](), pytest.raises(Violation):
        run_seeds(CONTROL_SEEDS)
