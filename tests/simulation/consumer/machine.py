"""A simulated process whose threads run one at a time, in an order that a seed decides: what the production code finds
as `threading`, `time` and `SimpleQueue`.

Threads are strands of the scheduler. A wait may end with a signal's exception, as the real ones do.
"""

from __future__ import annotations

import inspect
import itertools
import queue
import random
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from partq_spark.base.effects import Effects
from partq_spark.log import connect
from partq_spark.objects import open_store
from partq_spark.objects.memory import MemoryStore
from tests.support.scheduler import SECOND_US, Scheduler, Strand
from tests.world.interruptions import Interrupter
from tests.world.threads import Lock, RLock, SimpleQueueType, StandIn, Thread

EPOCH_S = 1_700_000_000
_WAITS = compile(
    "".join(textwrap.dedent(inspect.getsource(each)) for each in (threading.Condition, threading.Event)),
    "<the waits of threading>",
    "exec",
)


class Machine:
    """One process. `strand` is the thread that runs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.process = scheduler.process("app", origin_s=1000.0)
        self.deaths: list[BaseException] = []
        self.interrupter = Interrupter(scheduler)
        self._signals: dict[Strand, BaseException] = {}
        self._waiting: set[Strand] = set()
        self._threads: dict[Strand, Thread] = {}
        self._idents = itertools.count(1)
        self.main = Thread(name="MainThread", machine=self)
        names: dict[str, Any] = {
            "Lock": lambda: Lock(self),
            "RLock": lambda: RLock(self),
            "Thread": lambda *args, **more: Thread(*args, machine=self, **more),
            "get_ident": lambda: self.current().ident,
            "current_thread": self.current,
            "main_thread": lambda: self.main,
        }
        waits = {**names, "_allocate_lock": names["Lock"], "_deque": deque, "_islice": itertools.islice}
        waits |= {"_time": self.now_s, "__name__": "threading"}
        exec(_WAITS, waits)  # noqa: S102 - Python's own
        names |= {name: waits[name] for name in ("Condition", "Event")}
        self.threading = StandIn(threading, names)
        unix_s = lambda: EPOCH_S + scheduler.now_us / SECOND_US  # noqa: E731
        self.time = StandIn(
            time,
            {
                "monotonic": self.now_s,
                "perf_counter": self.now_s,
                "clock_gettime": lambda _: self.now_s(),
                "monotonic_ns": lambda: int(self.now_s() * 1e9),
                "time": unix_s,
                "time_ns": lambda: (EPOCH_S * SECOND_US + scheduler.now_us) * 1000,
                "sleep": self.sleep,
            },
        )
        self.unix_s = unix_s

    @property
    def host(self) -> Machine:
        """The process in which a thread begins."""
        return self

    @property
    def strand(self) -> Strand:
        strand = self.scheduler.current
        assert strand is not None
        return strand

    def now_s(self) -> float:
        return self.process.now_s()

    def run_main(self, run: Callable[[], None]) -> None:
        """The main thread."""
        self.main.is_begun = True
        self.main._done.acquire()
        self.adopt(self.main, self.process.spawn("main", run))

    def adopt(self, thread: Thread, strand: Strand) -> None:
        thread.ident, thread.strand = next(self._idents), strand
        self._threads[strand] = thread

    def current(self) -> Thread:
        return self._threads[self.strand]

    def spawn(self, name: str, run: Callable[[], object]) -> Thread:
        """A thread of the application."""
        thread = Thread(target=run, name=name, machine=self)
        thread.start()
        return thread

    # --- waits, and signals that end them -----------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> None:
        """Until somebody wakes this strand. Raises what a signal's handler raises."""
        strand = self.strand
        self._waiting.add(strand)
        try:
            self.scheduler.wait_us(3600 * SECOND_US if timeout_s is None else max(1, round(timeout_s * SECOND_US)))
        finally:
            self._waiting.discard(strand)
        error = self._signals.pop(strand, None)
        if error is not None:
            raise error

    def sleep(self, duration_s: float) -> None:
        """As `time.sleep`."""
        until_us = self.scheduler.now_us + round(duration_s * SECOND_US)
        self.wait(0)
        while (left_us := until_us - self.scheduler.now_us) > 0:
            self.wait(left_us / SECOND_US)

    def is_waiting(self, strand: Strand) -> bool:
        return strand in self._waiting

    def signal(self, strand: Strand, error: BaseException) -> bool:
        """From a timer: end what the strand waits for. Whether it waited."""
        if strand not in self._waiting:
            return False
        self._signals[strand] = error
        self.scheduler.wake(strand)
        return True

    # --- instead of the real ones -------------------------------------------------------------------------------------

    @contextmanager
    def in_place(self, store: MemoryStore, rng: random.Random) -> Iterator[None]:
        """The production code has these threads, this time, this chance and this store."""
        effects: dict[str, Any] = Effects.__init__.__kwdefaults__ or {}
        former, opened = dict(effects), dict(connect._open)
        stand_ins: dict[object, Any] = {
            threading: self.threading,
            time: self.time,
            queue.SimpleQueue: SimpleQueueType(self),
            open_store: lambda *_, **__: store,
        }
        by_identity = {id(each): own for each, own in stand_ins.items()}  # not all that modules hold has a hash
        replaced = [
            (module, name, value, by_identity[id(value)])
            for title, module in sorted(sys.modules.items())
            if title.startswith("partq_spark.")
            for name, value in vars(module).items()
            if id(value) in by_identity
        ]
        for module, name, _, stand_in in replaced:
            setattr(module, name, stand_in)
        effects.update(sleep=self.sleep, uniform=rng.uniform, token=lambda: f"{rng.getrandbits(64):016x}")
        try:
            yield
        finally:
            connect._open.clear()
            connect._open.update(opened)
            effects.update(former)
            for module, name, value, _ in replaced:
                setattr(module, name, value)
