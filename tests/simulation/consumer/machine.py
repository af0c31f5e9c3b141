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
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

from partq_spark.base.effects import Effects
from partq_spark.log import connect
from partq_spark.objects import open_store
from partq_spark.objects.memory import MemoryStore
from tests.simulation.consumer.surroundings import Interrupter
from tests.support.scheduler import SECOND_US, Crash, Scheduler, Strand

EPOCH_S = 1_700_000_000
_WAITS = compile(
    "".join(textwrap.dedent(inspect.getsource(each)) for each in (threading.Condition, threading.Event)),
    "<the waits of threading>",
    "exec",
)


class StandIn:
    """A module with some of its names replaced."""

    def __init__(self, module: ModuleType, names: Mapping[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Lock:
    """As `threading.Lock`; a wait ends with a signal's exception."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: deque[Strand] = deque()
        self._is_locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = self._machine
        until_s = None if timeout < 0 else machine.now_s() + timeout
        while self._is_locked:
            left_s = None if until_s is None else until_s - machine.now_s()
            if not blocking or (left_s is not None and left_s <= 0):
                return False
            self._waiting.append(machine.strand)
            try:
                machine.wait(left_s)
            finally:
                self._waiting.remove(machine.strand)
                if not self.locked():
                    self._wake()
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._machine.scheduler.wake(self._waiting[0])

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """As `threading.RLock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = Lock(machine)
        self._owner: Strand | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_owned():
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = self._machine.strand, 1
        return True

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is self._machine.strand

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = self._machine.strand, count


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self, machine: Machine) -> None:
        self._filled = Lock(machine)
        self._filled.acquire()
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._filled.locked():
            self._filled.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._filled.acquire(block, -1 if timeout is None else timeout):
            raise queue.Empty
        item = self._items.popleft()
        if self._items:
            self._filled.release()
        return item

    def empty(self) -> bool:
        return not self._items


class Thread:
    """As `threading.Thread`. What one dies of is kept in `machine.deaths`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        machine: Machine,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._machine = machine
        self._run: Callable[[], object] = lambda: target(*args, **(kwargs or {}))
        self._done = Lock(machine)
        self.ident: int | None = None
        self.strand: Strand
        self.is_begun = False

    def start(self) -> None:
        self._done.acquire()
        self.is_begun = True
        self._machine.adopt(self, self._machine.process.spawn(self.name, self._main))

    def _main(self) -> None:
        try:
            self._run()
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - the judge asks for it
            self._machine.deaths.append(error)
        self._done.release()

    def is_alive(self) -> bool:
        return self.is_begun and self._done.locked()

    def join(self, timeout: float | None = None) -> None:
        if self._done.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._done.release()


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
        replaced = [
            (module, name, value, stand_ins[value])
            for title, module in sorted(sys.modules.items())
            if title.startswith("partq_spark.")
            for name, value in vars(module).items()
            if isinstance(value, Hashable) and value in stand_ins
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


class SimpleQueueType:
    """The class: `SimpleQueue[T]` names it, a call makes one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getitem__(self, _kind: object) -> Self:
        return self

    def __call__(self) -> SimpleQueue:
        return SimpleQueue(self._machine)
