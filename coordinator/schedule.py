"""When recurring work is done: jobs with their waits, news of them, and pauses after failures; and the one thread that
begins what is due and takes in its results. Nothing here knows what the work is.

That thread never waits for a store: steps run on threads of executors, a job never on two at once, and what reaches it
is calls that other threads put into its queue, and jobs that came to their end.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue as queues
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from coordinator.logs import FieldValue, Log, one_line
from partq_spark.base.effects import Effects, Retry

TURN_S: Final = 2.5
"""The longest wait without a sign of life."""

_TOGETHER_S: Final = 0.02
"""What is due so soon begins with what is due now, and what is done by then is looked at with it: each waking up costs
as much as a third of a step. So long a thread does one step after the other, and then another one is sent.
"""

_FIRST_RETRY_S: Final = 0.1
_NEWS_BURST: Final = 5.0
_NEWS_PER_S: Final = 10.0
"""Flows that acknowledge are news too: a busy group is looked at a few times a second, a quiet one at once."""

_REPEAT_LOG_S: Final = 60.0


class Leader(Protocol):
    """One that may hold a lease."""

    @property
    def leading(self) -> bool: ...

    def release(self) -> None: ...


class Job:
    """Work that is done step by step; `step` returns the seconds until the next one. Changed by the thread of its
    schedule alone.

    Trouble is logged as `failed`, at `level` and with `facts`, once a minute while it stays the same; that it is over,
    as `recovered`. A `leader` gives up its lease when the schedule ends.
    """

    def __init__(
        self,
        step: Callable[[], float],
        threads: Executor,
        *,
        log: Log,
        effects: Effects,
        retry_most_s: float,
        failed: str,
        recovered: str,
        level: str = "error",
        leader: Leader | None = None,
        **facts: FieldValue,
    ) -> None:
        self.step = step
        self.threads = threads
        self.leader = leader
        self.due_s = -math.inf
        self.running = False
        self.retry = Retry(first_s=_FIRST_RETRY_S, most_s=retry_most_s)
        self.problem = ""
        self._log, self._effects = log, effects
        self._failed, self._recovered, self._level, self._facts = failed, recovered, level, facts
        self._news = False  # came while it was running
        self._credit = _NEWS_BURST
        self._credit_s = self._told_s = -math.inf

    def woken(self) -> None:
        """There are news: a step at once, unless there were many of late."""
        now_s = self._effects.now_s()
        if self.running:
            self._news = True
            return
        if self.retry.failures:
            return  # its pause is not cut short, or a store in need would be asked all the more
        self._credit = min(_NEWS_BURST, self._credit + (now_s - self._credit_s) * _NEWS_PER_S)
        self._credit_s = now_s
        wait_s = max(0.0, 1.0 - self._credit) / _NEWS_PER_S
        if now_s + wait_s < self.due_s:
            self._credit -= 1.0
            self.due_s = now_s + wait_s

    def stepped(self, next_s: float) -> None:
        """A step has ended well."""
        now_s = self._effects.now_s()
        self.running = False
        self.due_s = now_s + next_s
        self.problem = ""
        if self.retry.failures:
            self._log("info", self._recovered, **self._facts, failures=self.retry.failures)
            self.retry.succeeded()
        if self._news:
            self._news = False
            self.woken()

    def failed(self, problem: str) -> None:
        """A step has failed: a pause."""
        now_s = self._effects.now_s()
        self.running = False
        self._news = False
        self.retry.failed(now_s)
        self.due_s = now_s + (self.retry.pause_s(now_s, self._effects.uniform) or 0.0)
        if problem != self.problem or now_s - self._told_s >= _REPEAT_LOG_S:
            self._told_s = now_s
            self._log(self._level, self._failed, **self._facts, reason=problem)
        self.problem = problem


class Schedule:
    """Jobs, and calls of one thread: all but `call` is for that thread. `turned_s` (CLOCK_MONOTONIC) is when it was
    last seen at work.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._jobs: set[Job] = set()
        # When jobs are due, and in which order that was found out. What is not a job's present time any more stays in
        # it until that time has come: a coordinator of 200 groups must not look through all of them at each turn.
        self._due: list[tuple[float, int, Job]] = []
        self._found = itertools.count()
        # Putting into it takes no lock that an interrupted thread could hold, so that a signal handler may.
        self._calls: queues.SimpleQueue[Callable[[], None]] = queues.SimpleQueue()
        # Jobs that have begun and that no thread has taken yet, by whose threads do them; and where one will come.
        self._begun: defaultdict[Executor, deque[Job]] = defaultdict(deque)
        self._coming: set[Executor] = set()
        # Jobs that came to their end. They do not wake the thread where it wakes soon anyway.
        self._done: deque[Callable[[], None]] = deque()
        self._wakes_s = 0.0  # by `time.monotonic`
        self._ending = False
        self._released = 0
        self.turned_s = time.monotonic()

    def call(self, what: Callable[[], None]) -> None:
        """Have the schedule's thread call it soon. By any thread, and by signal handlers."""
        self._calls.put(what)

    def add(self, job: Job) -> None:
        """From now on it is done when it is due."""
        self._jobs.add(job)
        self._put(job)

    def remove(self, job: Job) -> None:
        """It is not done any more; a step that runs comes to its end."""
        self._jobs.remove(job)

    def wake(self, job: Job) -> None:
        """There are news for it."""
        due_s = job.due_s
        job.woken()
        if job.due_s != due_s:
            self._put(job)

    def _put(self, job: Job) -> None:
        heapq.heappush(self._due, (job.due_s, next(self._found), job))

    def turn(self) -> None:
        """Begin what is due, wait for a call or for what is due next, make all calls and take in what is done."""
        self._take(self._begin_what_is_due())

    def end(self, wait_s: float) -> int:
        """Begin nothing further, let what runs come to its end, have leases given up; returns how many were. At most
        `wait_s`: a lease that is not given up in time ends by itself.
        """
        deadline_s = time.monotonic() + wait_s
        self._ending = True
        for jobs in self._begun.values():
            with suppress(IndexError):
                while True:
                    jobs.popleft().running = False
        leaders = [job for job in self._jobs if job.leader is not None]
        for job in leaders:
            if not job.running:
                self._begin_release(job)
        while any(job.running for job in leaders) and time.monotonic() < deadline_s:
            self._take(deadline_s - time.monotonic())
        return self._released

    def _begin_what_is_due(self) -> float:
        """Returns the seconds until it is to look again. Where nothing is due now, nothing begins early: a step that
        waits for the last milliseconds of a time-out would be done again and again until they are over.
        """
        now_s = self._effects.now_s()
        until_s = now_s + _TOGETHER_S if self._due and self._due[0][0] <= now_s else now_s
        while self._due and self._due[0][0] <= until_s:
            due_s, _, job = heapq.heappop(self._due)
            if due_s == job.due_s and not job.running and job in self._jobs:
                job.running = True
                self._begun[job.threads].append(job)
        for threads, jobs in self._begun.items():
            if jobs and threads not in self._coming:
                self._coming.add(threads)
                threads.submit(self._work, threads, jobs)
        wait_s = _TOGETHER_S if any(self._begun.values()) else TURN_S
        return min(wait_s, self._due[0][0] - now_s) if self._due else wait_s

    def _take(self, wait_s: float) -> None:
        """Wait for a call, then make all that are there, and look at the jobs that came to their end."""
        # Said before it looks at what is done: a job that ends after that reads it, and wakes the thread.
        self._wakes_s = time.monotonic() + wait_s
        call = self._next(0.0 if self._done else wait_s)
        self._wakes_s = 0.0
        done = len(self._done)  # what their steps called is in the queue already, and comes first
        while call is not None:
            call()
            call = None if self._calls.empty() else self._next(0.0)
        for _ in range(done):
            self._done.popleft()()

    def _next(self, wait_s: float) -> Callable[[], None] | None:
        self.turned_s = time.monotonic()
        try:
            return self._calls.get(timeout=max(0.0, min(wait_s, TURN_S)))
        except queues.Empty:
            return None

    def _work(self, threads: Executor, jobs: deque[Job]) -> None:
        """Steps that have begun, one after the other, on a thread of `threads`: several at once cost more than they
        gain. Where one takes long, a turn sends another thread for those behind it, but none while one that was sent
        has not come yet. It goes soon: others wait for these threads, too.
        """
        self._coming.discard(threads)
        until_s = time.monotonic() + _TOGETHER_S
        with suppress(IndexError):  # all are taken
            while time.monotonic() < until_s:
                self._step(jobs.popleft())

    def _step(self, job: Job) -> None:
        """What goes wrong in it does not stop the others."""
        try:
            ended = partial(job.stepped, next_s := job.step())
        except Exception as problem:  # noqa: BLE001 - a mistake in one job must not end the others
            ended, next_s = partial(job.failed, one_line(problem)), TURN_S
        self._done.append(partial(self._ended, job, ended))
        if next_s < _TOGETHER_S or self._wakes_s - time.monotonic() > _TOGETHER_S:
            self.call(lambda: None)

    def _ended(self, job: Job, ended: Callable[[], None]) -> None:
        ended()
        self._put(job)
        if self._ending:
            self._begin_release(job)

    def _begin_release(self, job: Job) -> None:
        if job.leader is not None and job.leader.leading:
            job.running = True
            job.threads.submit(self._release, job, job.leader)

    def _release(self, job: Job, leader: Leader) -> None:
        leases = 0
        with suppress(Exception):  # the lease ends by itself
            leader.release()
            leases = 1
        self.call(partial(self._gave_up, job, leases))

    def _gave_up(self, job: Job, leases: int) -> None:
        job.running = False
        self._released += leases
