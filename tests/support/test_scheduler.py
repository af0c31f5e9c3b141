"""The simulated world's own parts: strands, freezing, dying, waiting, clocks; and what a faulty way to a store does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from partq_spark.base.errors import Conflict, Unavailable
from tests.simulation.links import Link, Rates, Weather
from tests.simulation.stores import Mutex
from tests.support.scheduler import SECOND_US, Crash, Process, Scheduler

MOST_STEPS = 1000


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(random.Random("strands"))


def run(scheduler: Scheduler, until_s: float = 100.0) -> None:
    scheduler.run(scheduler.now_us + int(until_s * SECOND_US), scheduler.steps + MOST_STEPS)


# --- time and processes -----------------------------------------------------------------------------------------------


def test_strands_go_on_in_the_order_of_true_time(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    seen: list[str] = []

    def strand(name: str, pauses_s: tuple[float, ...]) -> None:
        for pause_s in pauses_s:
            process.sleep(pause_s)
            seen.append(f"{name} {scheduler.now_us / SECOND_US:g}")

    process.spawn("a", lambda: strand("a", (1.0, 3.0)))
    process.spawn("b", lambda: strand("b", (2.0, 0.5)))
    run(scheduler)
    assert seen == ["a 1", "b 2", "b 2.5", "a 4"]


def test_clocks_disagree_and_sleeping_goes_by_ones_own(scheduler: Scheduler) -> None:
    fast = scheduler.process("fast", origin_s=600.0, rate=2.0)
    seen: list[float] = []

    def strand() -> None:
        fast.sleep(10.0)
        seen.extend((fast.now_s(), scheduler.now_us / SECOND_US))

    fast.spawn("main", strand)
    run(scheduler)
    assert seen == [610.0, 5.0]


def test_a_frozen_process_does_nothing_and_its_clock_runs_on(scheduler: Scheduler) -> None:
    process, other = scheduler.process("p"), scheduler.process("other")
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
    assert [at_s for name, at_s in seen if name == "other"] == pytest.approx([1.0, 2.0, 3.0])


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


def test_a_strand_that_crashes_takes_its_process_along(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    seen: list[str] = []

    def crash() -> None:
        process.sleep(1.0)
        raise Crash

    def other() -> None:
        process.sleep(2.0)
        seen.append("went on")

    process.spawn("a", crash)
    process.spawn("b", other)
    run(scheduler)
    assert not seen
    assert not process.alive


def test_a_crash_is_not_felt_by_the_strand_that_began_the_one_that_crashes(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    link = Link(process, Weather(rates=Rates(crash=1.0), counts=Counter(), note=lambda _: None))
    seen: list[str] = []

    def beats() -> None:
        link.call("beat", lambda: None, write=False)

    def main() -> None:
        process.spawn("beats", beats)
        try:
            process.sleep(10.0)
        finally:
            with pytest.raises(Crash):
                link.call("unbind", lambda: seen.append("unbound"), write=False)

    process.spawn("main", main)
    run(scheduler)
    assert not seen
    assert not process.alive


def test_what_a_strand_raises_comes_out(scheduler: Scheduler) -> None:
    def fail() -> None:
        raise ValueError("out")

    scheduler.process("p").spawn("main", fail)
    with pytest.raises(ValueError, match="out"):
        run(scheduler)


def test_a_strand_that_never_ends_is_noticed(scheduler: Scheduler) -> None:
    process = scheduler.process("p")

    def spin() -> None:
        while True:
            process.sleep(0.0)

    process.spawn("main", spin)
    with pytest.raises(RuntimeError, match="there is no end: p/main"):
        run(scheduler)


def test_waiting_ends_by_being_woken_or_by_time(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    seen: list[tuple[bool, float]] = []

    def wait() -> None:
        for _ in range(2):
            woken = scheduler.wait_us(5 * SECOND_US)
            seen.append((woken, scheduler.now_us / SECOND_US))

    strand = process.spawn("main", wait)
    scheduler.push(lambda: scheduler.wake(strand), SECOND_US)
    run(scheduler)
    assert seen == [(True, 1.0), (False, 6.0)]


def test_a_mutex_lets_one_strand_in(scheduler: Scheduler) -> None:
    process = scheduler.process("p")
    mutex, seen = Mutex(scheduler), list[str]()

    def strand(name: str) -> None:
        with mutex:
            seen.append(f"{name} in")
            process.sleep(1.0)
            seen.append(f"{name} out")

    for name in "abc":
        process.spawn(name, lambda name=name: strand(name))  # type: ignore[misc]  # binds the loop's variable
    run(scheduler)
    assert [line[2:] for line in seen] == ["in", "out"] * 3


# --- faults -----------------------------------------------------------------------------------------------------------


def call_with(scheduler: Scheduler, rates: Rates) -> tuple[list[str], Weather]:
    """What one call led to: effects and answers, in their order."""
    seen: list[str] = []
    weather = Weather(rates=rates, counts=Counter(), note=lambda _: None)
    process = scheduler.process("p")
    link = Link(process, weather)

    def effect() -> str:
        seen.append("effect")
        return "answer"

    def strand() -> None:
        try:
            seen.append(link.call("verb", effect, write=True, mortal=True))
        except Unavailable:
            seen.append("unavailable")

    process.spawn("main", strand)
    run(scheduler)
    return seen, weather


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (Rates(), ["effect", "answer"]),
        (Rates(request_lost=1.0), ["unavailable"]),
        (Rates(answer_lost=1.0), ["effect", "unavailable"]),
        (Rates(freeze=1.0), ["effect", "answer"]),
        (Rates(outage=1.0), ["unavailable"]),
    ],
    ids=["nothing", "request lost", "answer lost", "freeze", "outage"],
)
def test_what_a_fault_does(scheduler: Scheduler, rates: Rates, expected: list[str]) -> None:
    seen, weather = call_with(scheduler, rates)
    assert seen == expected
    assert sum(weather.counts.values()) == (rates != Rates())


def test_a_late_effect_lands_before_or_after_its_caller_gives_up(scheduler: Scheduler) -> None:
    orders = {tuple(call_with(scheduler, Rates(late=1.0))[0]) for _ in range(20)}
    assert orders == {("effect", "unavailable"), ("unavailable", "effect")}


def test_a_late_effect_does_not_outlive_its_store(scheduler: Scheduler) -> None:
    orders = set()
    for _ in range(20):
        weather = Weather(rates=Rates(late=1.0), counts=Counter(), note=lambda _: None)
        process, seen = scheduler.process("p"), list[str]()
        link = Link(process, weather)

        def strand(link: Link = link, seen: list[str] = seen) -> None:
            with pytest.raises(Unavailable):
                link.call("verb", lambda: seen.append("effect"), write=True, mortal=True)

        def restart(weather: Weather = weather) -> None:
            weather.lives += 1

        process.spawn("main", strand)
        scheduler.push(restart, SECOND_US // 2)
        run(scheduler)
        orders.add(tuple(seen))
    assert orders == {("effect",), ()}


def test_a_crash_is_before_or_after_the_effect(scheduler: Scheduler) -> None:
    endings = {tuple(call_with(scheduler, Rates(crash=1.0))[0]) for _ in range(20)}
    assert endings == {("effect",), ()}


def test_in_calm_weather_nothing_strikes(scheduler: Scheduler) -> None:
    weather = Weather(rates=Rates(request_lost=1.0), counts=Counter(), note=lambda _: None, calm=True)
    process = scheduler.process("p")
    seen: list[str] = []
    process.spawn("main", lambda: seen.append(Link(process, weather).call("verb", lambda: "answer", write=True)))
    run(scheduler)
    assert seen == ["answer"]


def test_a_refusal_is_an_answer_and_takes_its_way_back(scheduler: Scheduler) -> None:
    weather = Weather(rates=Rates(way_us=SECOND_US), counts=Counter(), note=lambda _: None)
    process = scheduler.process("p")
    seen: list[float] = []

    def refuse() -> None:
        seen.append(scheduler.now_us)
        raise Conflict("somebody was faster")

    def strand(call: Callable[[], None]) -> None:
        with pytest.raises(Conflict):
            Link(process, weather).call("verb", call, write=True)
        seen.append(scheduler.now_us)

    process.spawn("main", lambda: strand(refuse))
    run(scheduler)
    assert 0 < seen[0] < seen[1]
