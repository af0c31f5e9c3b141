"""When a job has its turn: news at once but not without end, pauses that grow, one line per trouble, and an end. No
thread and no clock of the machine: steps are done when a test says so.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from coordinator.logs import Log
from coordinator.schedule import TURN_S, Job, Schedule
from coordinator.service import Service
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from tests.coordinator.runtimes import KEY, Lines, World
from tests.support.waiting import wait_until


class Later(Executor):
    """Does what was submitted when it is told to."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        self.submitted.append(lambda: fn(*args, **kwargs))
        return Future()

    def run_one(self) -> None:
        self.submitted.pop(0)()


class Leads:
    """One that holds a lease, or several that stand for it."""

    def __init__(self, error: Exception | None = None, *, leading: bool = True) -> None:
        self.leading = leading
        self.error = error

    def release(self) -> None:
        self.leading = False
        if self.error is not None:
            raise self.error


class Turns:
    """A schedule whose clock tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log = Lines()
        self.threads = Later()
        self.effects = Effects(now_s=lambda: self.now_s, uniform=lambda low, high: (low + high) / 2)
        self.schedule = Schedule(self.effects)

    def add(self, step: Callable[[], float] = lambda: 1.0, leader: Leads | None = None) -> Job:
        words = {"failed": "job_failed", "recovered": "job_recovered", "job": "the job"}
        made = Job(step, self.threads, log=Log("c"), effects=self.effects, retry_most_s=5.0, leader=leader, **words)
        self.schedule.add(made)
        return made

    def turn(self) -> int:
        """How many steps begin in it."""
        before, after = self.running(), set[Job]()
        self.schedule.call(lambda: after.update(self.running()))  # it comes at once, and before what is done
        self.schedule.turn()
        return len(after - before)

    def running(self) -> set[Job]:
        return {job for job in self.schedule._jobs if job.running}

    def run(self) -> None:
        """All that has begun comes to its end, and is heard of."""
        while self.threads.submitted:
            self.threads.run_one()
        self.turn()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def entry(turns: Turns) -> Job:
    """One that was done a moment ago, and is due in a second."""
    made = turns.add()
    made.stepped(1.0)
    return made


# --- one job ----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_done_wakes_the_thread() -> None:
    def step() -> float:
        time.sleep(0.05)
        return math.inf

    test = Turns()
    with ThreadPoolExecutor(1) as test.threads:  # type: ignore[assignment]
        job, begun_s = test.add(step), time.monotonic()
        test.schedule.turn()
        assert (job.due_s, time.monotonic() - begun_s < TURN_S / 2) == (math.inf, True)


def test_news_in_quiet_times_are_looked_at_at_once_and_never_make_it_later(turns: Turns, entry: Job) -> None:
    turns.now_s = 100.5
    entry.woken()
    assert entry.due_s == 100.5
    entry.running = True
    turns.now_s = 100.6
    entry.woken()
    turns.now_s = 100.7
    entry.stepped(1.0)
    assert entry.due_s < 101.0, "those that come while it is looked at are not lost"


def test_a_flood_of_news_is_looked_at_ten_times_a_second(turns: Turns, entry: Job) -> None:
    looks = 0
    for millisecond in range(2000):
        turns.now_s = 100.0 + millisecond / 1000
        entry.woken()
        if entry.due_s <= turns.now_s:
            looks += 1
            entry.stepped(1.0)
    assert 18 <= looks <= 27


def test_pauses_after_failures_grow_uncut_and_the_same_trouble_is_told_once_a_minute(turns: Turns, entry: Job) -> None:
    pauses = []
    for _ in range(8):
        entry.failed("away")
        entry.woken()
        pauses.append(round(entry.due_s - 100.0, 3))
    assert pauses == [0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 3.75, 3.75]
    turns.now_s = 200.0
    entry.stepped(1.0)
    assert entry.retry.failures == 0
    assert turns.log.of("job_recovered") == [{"job": "the job", "failures": 8}]
    told = []
    for second in range(125):
        turns.now_s = 300.0 + second
        before = len(turns.log.all)
        entry.failed("away")
        told += [second] * (len(turns.log.all) - before)
    assert told == [0, 60, 120]
    entry.failed("another")
    assert turns.log.all[-1] == ("error", "job_failed", {"job": "the job", "reason": "another"})


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_mistake_in_one_job_is_told_once_and_no_matter_of_the_others(turns: Turns) -> None:
    done = {"bad": 0, "good": 0}

    def bad() -> float:
        done["bad"] += 1
        if done["bad"] < 4:
            raise RuntimeError("a mistake (test)")
        return 1.0

    def good() -> float:
        done["good"] += 1
        return 0.1

    turns.add(bad)
    turns.add(good)
    for _ in range(20):
        turns.turn()
        turns.run()
        turns.now_s += 0.1
    assert done["good"] > 10
    assert turns.log.all == [
        ("error", "job_failed", {"job": "the job", "reason": "RuntimeError: a mistake (test)"}),
        ("info", "job_recovered", {"job": "the job", "failures": 3}),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_a_job_begins_when_it_is_due_not_before_and_never_twice_at_once(seed: int) -> None:
    rng = random.Random(seed)
    turns = Turns()
    begun: list[Job] = []
    jobs: list[Job] = []

    def made() -> Job:
        def step() -> float:
            begun.append(one)
            if rng.random() < 0.1:
                raise Unavailable("the store is away (test)")
            return rng.choice((0.0, 0.1, 0.35, 1.0, math.inf))

        one = turns.add(step)
        return one

    for _ in range(300):
        for _ in range(rng.randrange(4)):
            match rng.randrange(4):
                case 0 if len(jobs) < 6:
                    jobs.append(made())
                case 1 if jobs and not jobs[0].running:
                    turns.schedule.remove(jobs.pop(0))
                case 2 if jobs:
                    turns.schedule.wake(rng.choice(jobs))
                case 3 if turns.threads.submitted:
                    turns.threads.run_one()
        due = [one for one in jobs if not one.running and one.due_s <= turns.now_s]
        assert turns.turn() == len(due), "one step for each that is due, and for no other"
        assert all(one.running for one in due)
        turns.now_s += rng.choice((0.0, 0.05, 0.2, 0.7))
    assert begun


def test_what_is_due_in_a_moment_begins_with_what_is_due_now_and_not_by_itself(turns: Turns) -> None:
    """A step that waits for the end of a time-out is not done again and again until it has come."""
    turns.add(lambda: 0.005)
    turns.add(lambda: 0.009)
    assert turns.turn() == 2
    turns.run()  # they are due in 5 and in 9 ms
    assert turns.turn() == 0
    turns.now_s += 0.006
    assert turns.turn() == 2


def test_a_step_that_takes_long_does_not_hold_up_those_that_began_with_it() -> None:
    test, both = Turns(), threading.Barrier(2, timeout=5.0)
    with ThreadPoolExecutor(2) as test.threads:  # type: ignore[assignment]
        jobs = [test.add(lambda: 7.0 + both.wait()) for _ in range(2)]
        test.schedule.turn()
        while test.running():
            test.schedule.turn()
    assert {job.due_s - test.now_s for job in jobs} == {7.0, 8.0}, "each waits for the other"


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, Unavailable("the store is away (test)")])
@pytest.mark.parametrize("fails", [False, True])
def test_at_the_end_what_runs_ends_and_leases_are_given_up(turns: Turns, error: Exception | None, fails: bool) -> None:
    def step() -> float:
        steps.append(0.0)
        assert ending.wait(10.0)
        if fails:
            raise Unavailable("it is away (test)")
        return 0.0

    steps, ending = list[float](), threading.Event()
    busy, idle, begun, follower = Leads(error), Leads(), Leads(), Leads(leading=False)
    with ThreadPoolExecutor(1) as turns.threads:  # type: ignore[assignment]
        turns.add(step, busy)
        turns.add(step, begun)
        turns.turn()
        turns.add(leader=idle)
        turns.add(leader=follower)
        wait_until(lambda: bool(steps), "step that has begun")
        turns.schedule.call(ending.set)
        assert turns.schedule.end(10.0) == (3 if error is None else 2), "of those who lead"
    assert not busy.leading
    assert not idle.leading
    assert not begun.leading
    assert steps == [0.0], "nothing begins any more"


def test_the_end_does_not_wait_for_a_step_that_hangs(turns: Turns) -> None:
    turns.add(leader=Leads())
    turns.turn()
    assert turns.schedule.end(0.0) == 0


def test_what_goes_wrong_in_a_thread_that_nobody_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal of a dropped group, and a look at a queue of which there were news."""
    world = World()
    coordinator = world.coordinator()
    service = Service(Settings(), store=world.objects, ownership=coordinator.ownership)

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(coordinator.runtime, "drop", fail)
    monkeypatch.setattr(service.heads, "look", fail)
    service._drop(KEY, coordinator.runtime)
    service._look_at_queue(KEY.queue)
    (dropped,), (looked,) = world.log.of("drop_failed"), world.log.of("head_failed")
    assert (dropped["group"], dropped["reason"]) == (str(KEY), "RuntimeError: a mistake")
    assert (looked["queue"], looked["reason"]) == (KEY.queue, "RuntimeError: a mistake")
