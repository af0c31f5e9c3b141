"""When a job has its turn: news at once but not without end, pauses that grow, one line per trouble, and an end."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from coordinator.schedule import Job, Schedule
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from tests.coordinator.world import Lines


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def job(step: Callable[[], float] = lambda: 1.0, threads: Executor | None = None, leader: Leads | None = None) -> Job:
    return Job(
        step,
        threads or ThreadPoolExecutor(1),
        retry_most_s=5.0,
        failed="job_failed",
        recovered="job_recovered",
        leader=leader,
        job="the job",
    )


def entry() -> Job:
    """One that was done a moment ago, and is due in a second."""
    made = job()
    made.stepped(1.0, 100.0)
    return made


class Leads:
    """One that holds a lease, or several that stand for it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.leading = True
        self.error = error

    def release(self) -> None:
        self.leading = False
        if self.error is not None:
            raise self.error


class Turns:
    """A schedule whose clock tests move, and whose steps are real threads'."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log = Lines()
        effects = Effects(now_s=lambda: self.now_s, uniform=middle)
        self.schedule = Schedule(effects=effects, log=self.log)

    def until(self, what: Callable[[], bool]) -> None:
        """Turn by turn, a tenth of a second each; the last one is woken so that nobody waits."""
        for _ in range(100):
            if what():
                return
            self.now_s += 0.1
            self.schedule.call(lambda: None)
            self.schedule.turn()
            time.sleep(0.001)
        raise AssertionError("it does not come")


def test_news_in_quiet_times_are_looked_at_at_once() -> None:
    group = entry()
    group.woken(100.5)
    assert group.due_s == 100.5


def test_a_flood_of_news_is_looked_at_ten_times_a_second() -> None:
    group = entry()
    looks = 0
    for millisecond in range(2000):
        now_s = 100.0 + millisecond / 1000
        group.woken(now_s)
        if group.due_s <= now_s:
            looks += 1
            group.stepped(1.0, now_s)
    assert 18 <= looks <= 27


def test_news_that_come_while_it_is_looked_at_are_not_lost() -> None:
    group = entry()
    group.running = True
    group.woken(100.2)
    group.stepped(1.0, 100.3)
    assert group.due_s == 100.3


def test_news_never_make_it_later() -> None:
    group = entry()
    group.stepped(0.05, 100.0)
    for _ in range(50):
        group.woken(100.0)
    assert group.due_s <= 100.05


def test_pauses_after_failures_grow_and_are_not_cut_short() -> None:
    group = entry()
    pauses = []
    for _ in range(8):
        group.failed("away", 100.0, middle)
        group.woken(100.0)
        pauses.append(round(group.due_s - 100.0, 3))
    assert pauses == [0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 3.75, 3.75]
    assert group.stepped(1.0, 200.0) == 8
    assert group.retry.failures == 0


def test_the_same_trouble_is_told_once_a_minute() -> None:
    group = entry()
    told = [group.failed("away", 100.0 + second, middle) for second in range(125)]
    assert [second for second, tell in enumerate(told) if tell] == [0, 60, 120]
    assert group.failed("another", 226.0, middle)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_mistake_in_one_job_is_told_once_and_no_matter_of_the_others() -> None:
    turns = Turns()
    done = {"bad": 0, "good": 0}

    def bad() -> float:
        done["bad"] += 1
        if done["bad"] < 4:
            raise RuntimeError("a mistake (test)")
        return 1.0

    def good() -> float:
        done["good"] += 1
        return 0.1

    turns.schedule.add(job(bad))
    turns.schedule.add(job(good))
    turns.until(lambda: "job_recovered" in turns.log.events())
    assert done["good"] > 4
    assert turns.log.lines == [
        ("error", "job_failed", {"job": "the job", "reason": "RuntimeError: a mistake (test)"}),
        ("info", "job_recovered", {"job": "the job", "failures": 3}),
    ]


def test_a_job_is_never_done_twice_at_once() -> None:
    turns = Turns()
    threads = ThreadPoolExecutor(4)
    inside = 0

    def step() -> float:
        nonlocal inside
        inside += 1
        assert inside == 1
        time.sleep(0.002)
        inside -= 1
        return 0.0

    one = job(step, threads)
    turns.schedule.add(one)
    steps = 0

    def enough() -> bool:
        nonlocal steps
        steps += 1
        turns.schedule.wake(one)
        return steps > 30

    turns.until(enough)
    assert turns.log.lines == []


@pytest.mark.parametrize("error", [None, Unavailable("the store is away (test)")])
def test_at_the_end_what_runs_comes_to_its_end_and_leases_are_given_up(error: Exception | None) -> None:
    turns = Turns()
    steps = 0

    def step() -> float:
        nonlocal steps
        steps += 1
        time.sleep(0.01)
        return 0.0

    busy, idle, follower = Leads(error), Leads(), Leads()
    follower.leading = False
    turns.schedule.add(job(step, leader=busy))
    turns.schedule.add(job(leader=idle))
    turns.schedule.add(job(leader=follower))
    turns.until(lambda: steps > 0)
    before = steps
    assert turns.schedule.end(10.0) == (2 if error is None else 1), "of those who lead"
    assert not busy.leading
    assert not idle.leading
    assert steps <= before + 1, "nothing begins any more"


def test_the_end_does_not_wait_for_a_step_that_hangs() -> None:
    turns = Turns()
    threads = ThreadPoolExecutor(1)
    begun: list[float] = []

    def hang() -> float:
        begun.append(0.0)
        time.sleep(1.0)
        return 0.0

    turns.schedule.add(job(hang, threads, leader=Leads()))
    turns.until(lambda: bool(begun))
    begun_s = time.monotonic()
    assert turns.schedule.end(0.05) == 0
    assert time.monotonic() - begun_s < 0.9


class Later(Executor):
    """Runs what was submitted when it is told to, one at a time, in this thread."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        self.submitted.append(lambda: fn(*args, **kwargs))
        return Future()

    def run_one(self) -> None:
        self.submitted.pop(0)()


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_a_job_begins_when_it_is_due_and_not_before(seed: int) -> None:
    rng = random.Random(seed)
    turns, threads = Turns(), Later()
    begun: list[Job] = []
    jobs: list[Job] = []

    def made() -> Job:
        def step() -> float:
            begun.append(one)
            if rng.random() < 0.1:
                raise Unavailable("the store is away (test)")
            return rng.choice((0.0, 0.1, 0.35, 1.0, math.inf))

        one = job(step, threads)
        return one

    for _ in range(300):
        for _ in range(rng.randrange(4)):
            match rng.randrange(4):
                case 0 if len(jobs) < 6:
                    jobs.append(made())
                    turns.schedule.add(jobs[-1])
                case 1 if jobs and not jobs[0].running:
                    turns.schedule.remove(jobs.pop(0))
                case 2 if jobs:
                    turns.schedule.wake(rng.choice(jobs))
                case 3 if threads.submitted:
                    threads.run_one()
        due = [one for one in jobs if not one.running and one.due_s <= turns.now_s]
        waiting = len(threads.submitted)
        turns.schedule.call(lambda: None)
        turns.schedule.turn()
        assert len(threads.submitted) - waiting == len(due), "one step for each that is due, and for no other"
        assert all(one.running for one in due)
        turns.now_s += rng.choice((0.0, 0.05, 0.2, 0.7))
    assert begun


def test_a_job_that_is_due_when_it_was_to_be_due_before_begins_once() -> None:
    turns, threads = Turns(), Later()
    one = job(lambda: 1.0, threads)

    def turn() -> int:
        turns.schedule.call(lambda: None)
        turns.schedule.turn()
        return len(threads.submitted)

    turns.schedule.add(one)
    assert turn() == 1
    threads.run_one()
    turn()  # it is due in a second
    turns.schedule.wake(one)
    assert turn() == 1
    threads.run_one()
    turn()  # it is due in a second again
    turns.now_s += 1.0
    assert turn() == 1


def test_what_is_due_in_a_moment_begins_with_what_is_due_now_and_not_by_itself() -> None:
    """A step that waits for the end of a time-out is not done again and again until it has come."""
    turns, threads = Turns(), Later()
    first, second = job(lambda: 0.005, threads), job(lambda: 0.009, threads)

    def begun() -> int:
        waiting = len(threads.submitted)
        turns.schedule.call(lambda: None)
        turns.schedule.turn()
        return len(threads.submitted) - waiting

    for one in (first, second):
        turns.schedule.add(one)
    assert begun() == 2
    for _ in range(2):
        threads.run_one()
    begun()  # they are due in 5 and in 9 ms
    assert begun() == 0
    turns.now_s += 0.006
    assert begun() == 2
