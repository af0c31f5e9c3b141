"""The simulated world's time: strands in the order of true time, freezing, dying, waiting, clocks."""

from __future__ import annotations

import random

import pytest

from tests.support.scheduler import SECOND_US, Crash, Process, Scheduler

MOST_STEPS = 1000


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(random.Random("strands"))


def run(scheduler: Scheduler, until_s: float = 100.0) -> None:
    scheduler.run(scheduler.now_us + int(until_s * SECOND_US), scheduler.steps + MOST_STEPS)


def test_a_frozen_process_does_nothing_and_its_clock_which_is_nobody_elses_runs_on(scheduler: Scheduler) -> None:
    process, other = scheduler.process("p"), scheduler.process("other", origin_s=600.0, rate=2.0)
    seen: list[tuple[str, float]] = []

    def strand(of: Process) -> None:
        for _ in range(3):
            of.sleep(1.0)
            seen.append((of.name, of.now_s()))

    process.spawn("main", lambda: strand(process))
    other.spawn("main", lambda: strand(other))
    scheduler.push(lambda: process.freeze(10 * SECOND_US), SECOND_US + 1)
    run(scheduler)
    assert [at_s for name, at_s in seen if name == "p"] == pytest.approx([1.0, 11.0, 12.0], abs=1e-5)
    assert [at_s for name, at_s in seen if name == "other"] == pytest.approx([601.0, 602.0, 603.0])


def test_a_killed_process_ends_in_the_middle_with_all_its_strands(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    seen: list[str] = []
    process.on_killed = lambda: seen.append("killed")

    def strand() -> None:
        try:
            process.sleep(10.0)
            seen.append("went on")
        finally:
            with pytest.raises(Crash):
                process.sleep(1.0)  # a dead process does nothing more, not even tidying up

    process.spawn("a", strand)
    process.spawn("b", strand)
    process.spawn("late", lambda: seen.append("began"), 20 * SECOND_US)
    scheduler.push(lambda: scheduler.kill(process), SECOND_US)
    run(scheduler)
    assert seen == ["killed"]


def test_a_strand_that_crashes_takes_its_process_along_and_not_the_strand_that_began_it(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    seen: list[str] = []

    def crash() -> None:
        process.sleep(1.0)
        raise Crash

    def main() -> None:
        process.spawn("crash", crash)
        try:
            process.sleep(10.0)
            seen.append("went on")
        except Exception:  # noqa: BLE001 - what no code under test may do
            seen.append("felt it")

    process.spawn("main", main)
    run(scheduler)
    assert not seen
    assert not process.alive


def test_what_a_strand_raises_comes_out_and_one_that_never_ends_is_noticed(scheduler: Scheduler) -> None:
    process = scheduler.process("p")

    def fail() -> None:
        raise ValueError("out")

    def spin() -> None:
        while True:
            process.sleep(0.0)

    process.spawn("main", fail)
    with pytest.raises(ValueError, match="out"):
        run(scheduler)
    process.spawn("main", spin)
    with pytest.raises(RuntimeError, match="there is no end: p/main"):
        run(scheduler)
