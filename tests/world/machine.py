"""Simulated operating system processes: what the production code finds as `threading`, `time`, `os`, `signal`, chance
and the store is that of the process whose strand runs. So processes are made of the code as it is, without a seam.

Stand-ins are put in place in all modules of `partq_spark` and `coordinator` together, while a world runs. What modules
keep by `os.getpid()` each process has for itself, as in production.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import importlib
import inspect
import itertools
import os
import pkgutil
import queue
import random
import secrets
import signal
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, partialmethod
from types import ModuleType
from typing import Any, Final
from unittest import mock
from zlib import crc32

import coordinator
import partq_spark
from coordinator.schedule import Job
from partq_spark.base import effects
from partq_spark.group.binding import Liveness
from partq_spark.group.model import GroupKey
from partq_spark.log import admin
from partq_spark.log import queue as log_queue
from partq_spark.log.names import LOG_SIZES
from partq_spark.objects import open_store
from partq_spark.objects.api import ObjectStore
from tests.world.scheduler import SECOND_US, Process, Scheduler, Strand
from tests.world.threads import Lock, SimpleQueue, StandIn, Thread, ThreadPoolExecutor

EPOCH_S: Final = 1_700_000_000
_FIRST_PID: Final = 2**30  # no process of this machine has it
_ROOMS: Final = ("base", "objects", "log", "group", "query", "client", "spark")
_ELSEWHERE: Final = ("azure", "redis", "__main__", "page", "health", "figures", "metrics")  # not of these processes
_WAITS: Final = compile(
    "".join(
        textwrap.dedent(inspect.getsource(each))
        for each in (
            *(threading._RLock, threading.Condition, threading.Event),
            *(threading.Semaphore, threading.BoundedSemaphore),
        )
    ),
    "<the waits of threading>",
    "exec",
)


@cache
def _load_all() -> tuple[ModuleType, ...]:
    """The modules whose names are replaced. None may be loaded later: it would have the real threads."""
    names = [f"coordinator.{each.name}" for each in pkgutil.iter_modules(coordinator.__path__)]
    for room in _ROOMS:
        package = importlib.import_module(f"partq_spark.{room}")
        names += [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for name in names:
        if not any(part in name for part in _ELSEWHERE):
            importlib.import_module(name)
    found = [title for title in sorted(sys.modules) if title.startswith((partq_spark.__name__ + ".", "coordinator."))]
    return tuple(sys.modules[title] for title in found)


@cache
def _defaults() -> tuple[tuple[Callable[[Any], None], Any], ...]:
    """What functions and dataclasses took as the default of a parameter when they were defined: how to replace it."""
    functions = {
        function
        for module in _load_all()
        for owner in list(vars(module).values())
        for function in [owner, *(vars(owner).values() if inspect.isclass(owner) else ())]
        if inspect.isfunction(function)
    }
    found: list[tuple[Callable[[Any], None], Any]] = []
    for function in functions:
        given = function.__kwdefaults__ or {}
        found += [(partial(given.__setitem__, name), value) for name, value in given.items()]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name.startswith(("__dataclass_dflt_", "_dflt_")):
                found.append((partial(setattr, cell, "cell_contents"), cell.cell_contents))
    return tuple(found)


def _same_hash(_: object) -> int:
    return 0


class Host:
    """What one process has for itself. `on_term`: what SIGTERM does there, beside the handlers that are set."""

    def __init__(self, machine: Machine, process: Process, pid: int, seed: str) -> None:
        self.process = process
        self.parent: Host | None = None
        self.pid = pid
        self.rng = random.Random(seed)
        self.main = Thread(name="MainThread", machine=machine)
        self.handlers: dict[int, Any] = {}
        self.stopping = False
        self.skew_s = 0.0  # of its calendar
        self.on_term: Callable[[], None] = lambda: None


class Machine:
    """All processes of one world. `way`: of the process that runs to the store at a URL."""

    def __init__(
        self,
        scheduler: Scheduler,
        seed: str,
        way: Callable[[str, float], ObjectStore],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.deaths: list[BaseException] = []
        self._seed = seed
        self._way = way
        self._hosts: dict[Process, Host] = {}
        self._threads: dict[Strand, Thread] = {}
        self._waiting: set[Strand] = set()
        self._signals: dict[Strand, BaseException] = {}
        self._idents = itertools.count(1)
        self._nowhere = self.host_of(scheduler.process("nowhere"))
        names: dict[str, Any] = {
            "Lock": partial(Lock, self),
            "Thread": partial(Thread, machine=self),
            "get_ident": lambda: self.current().ident,
            "current_thread": self.current,
            "main_thread": lambda: self.host.main,
        }
        waits = {**names, "_allocate_lock": names["Lock"], "_deque": deque, "_islice": itertools.islice}
        waits |= {"_time": self.now_s, "__name__": "threading"}
        exec(_WAITS, waits)  # noqa: S102 - Python's own
        waits["RLock"], restore = waits["_RLock"], waits["_RLock"]._acquire_restore
        waits["_RLock"]._acquire_restore = lambda lock, state: self._deaf(partial(restore, lock, state))
        names |= {name: waits[name] for name in ("RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore")}
        times: dict[str, Any] = {
            "monotonic": self.now_s,
            "perf_counter": self.now_s,
            "clock_gettime": lambda _: self.now_s(),
            "monotonic_ns": lambda: int(self.now_s() * 1e9),
            "time": self.unix_s,
            "time_ns": lambda: int(self.unix_s() * 1e6) * 1000,
            "sleep": self.sleep,
        }
        simple_queue = type("SimpleQueue", (SimpleQueue,), {"__init__": partialmethod(SimpleQueue.__init__, self)})
        pool = partial(ThreadPoolExecutor, machine=self)
        self.threading = StandIn(threading, names)
        stand_ins: dict[object, Any] = {
            threading: self.threading,
            time: StandIn(time, times),
            queue: StandIn(queue, {"SimpleQueue": simple_queue}),
            queue.SimpleQueue: simple_queue,
            concurrent.futures.ThreadPoolExecutor: pool,
            os: StandIn(os, {"getpid": lambda: self.host.pid, "getppid": self._parent}),
            signal: StandIn(signal, {"signal": self._signal, "getsignal": self._getsignal}),
            atexit: StandIn(atexit, {"register": lambda call: call, "unregister": lambda call: None}),
            secrets: StandIn(secrets, {"token_hex": self.token}),
            open_store: lambda url, *, retry_timeout_s=120.0: self._way(url, retry_timeout_s),
        }
        self.stand_ins = {id(each): own for each, own in stand_ins.items()}
        """By the identity of what they replace: not all that modules hold can be compared by a hash."""

        real = ((threading, names), (time, times), (secrets, {"token_hex": self.token}))
        self._functions: dict[int, Any] = {  # and what else is a default
            id(getattr(module, name)): own for module, found in real for name, own in found.items()
        }
        self._functions[id(effects.by_chance)] = self._by_chance
        self._functions[id(LOG_SIZES)] = replace(LOG_SIZES, **(sizes or {}))

    # --- processes ----------------------------------------------------------------------------------------------------

    def host_of(self, process: Process) -> Host:
        """A process begins: what it has for itself."""
        host = Host(self, process, _FIRST_PID + len(self._hosts) + 1, f"{self._seed} {process.name}")
        self._hosts[process] = host
        return host

    def begin(self, host: Host, run: Callable[[], object], name: str = "main") -> None:
        """Its main thread."""
        host.main = Thread(target=run, name=name, machine=self)
        host.main.start_in(host)

    def spawn(self, name: str, run: Callable[[], object]) -> Thread:
        """Another thread of the process that runs."""
        thread = Thread(target=run, name=name, machine=self)
        thread.start()
        return thread

    @property
    def host(self) -> Host:
        """That of the strand that runs."""
        strand = self.scheduler.current
        return self._hosts[strand.process] if strand is not None else self._nowhere

    @property
    def strand(self) -> Strand:
        strand = self.scheduler.current
        assert strand is not None, "only a strand waits"
        return strand

    def adopt(self, thread: Thread, strand: Strand) -> None:
        thread.ident, thread.strand = next(self._idents), strand
        self._threads[strand] = thread

    def current(self) -> Thread:
        strand = self.scheduler.current
        return self._threads[strand] if strand is not None else self._nowhere.main

    # --- time and chance ----------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self.host.process.now_s()

    def unix_s(self) -> float:
        """As the process has it."""
        return self.true_unix_s() + self.host.skew_s

    def true_unix_s(self) -> float:
        return EPOCH_S + self.scheduler.now_us / SECOND_US

    def token(self, count: int = 32) -> str:
        return f"{self.host.rng.getrandbits(8 * count):0{2 * count}x}"

    def _by_chance(self, least: float, most: float) -> float:
        return self.host.rng.uniform(least, most)

    def wait(self, timeout_s: float | None) -> None:
        """Until somebody wakes this strand; by its process' clock. Raises what a signal's handler raises."""
        strand = self.strand
        us = 3600 * SECOND_US if timeout_s is None else max(1, round(timeout_s / strand.process.rate * SECOND_US))
        self._waiting.add(strand)
        try:
            self.scheduler.sleep_us(us)
        finally:
            self._waiting.discard(strand)
        error = self._signals.pop(strand, None)
        if error is not None:
            raise error

    def _deaf(self, act: Callable[[], object]) -> None:
        """As Python's own reentrant lock: no signal is heard in there."""
        strand = self.strand
        strand.is_deaf = True
        try:
            act()
        finally:
            strand.is_deaf = False

    def is_waiting(self, strand: Strand) -> bool:
        return strand in self._waiting

    def signal(self, strand: Strand, error: BaseException) -> None:
        """From a timer: end what the strand waits for, if it waits, by what a signal's handler raises."""
        if strand in self._waiting:
            self._signals[strand] = error
            self.scheduler.wake(strand)

    def sleep(self, duration_s: float) -> None:
        """As `time.sleep`. Time passes, however short it is."""
        self.scheduler.sleep_us(max(1, round(duration_s / self.strand.process.rate * SECOND_US)))

    def _signal(self, number: int, handler: Any) -> Any:
        former = self._getsignal(number)
        self.host.handlers[number] = handler
        return former

    def _parent(self) -> int:
        """That of a process whose own has died has the first number."""
        parent = self.host.parent
        return parent.pid if parent is not None and parent.process.alive else _FIRST_PID

    def _state_of(self, pid: int) -> str:
        """As `/proc` says it: stopped or not."""
        process = next((host.process for host in self._hosts.values() if host.pid == pid), None)
        return "T" if process is not None and process.frozen_until_us > self.scheduler.now_us else "S"

    def _getsignal(self, number: int) -> Any:
        return self.host.handlers.get(number, signal.SIG_DFL)

    # --- instead of the real ones -------------------------------------------------------------------------------------

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The production code has these processes."""
        opened, namespaces = dict(log_queue._open), dict(admin._namespaces)
        replaced = [
            (module, name, value)
            for module in _load_all()
            for name, value in list(vars(module).items())
            if id(value) in self.stand_ins
        ]
        defaults = [(put, value) for put, value in _defaults() if id(value) in self._functions]
        for module, name, value in replaced:
            setattr(module, name, self.stand_ins[id(value)])
        for put, value in defaults:
            put(self._functions[id(value)])
        try:
            # Else the order of sets would depend on the seed of Python's hashes, and on where objects lie.
            with (
                mock.patch.object(GroupKey, "__hash__", lambda key: crc32(str(key).encode())),
                mock.patch.object(Job, "__hash__", _same_hash),
                mock.patch.object(Liveness, "_state_of", lambda _, pid: self._state_of(pid)),
            ):
                yield
        finally:
            for put, value in defaults:
                put(value)
            for module, name, value in replaced:
                setattr(module, name, value)
            log_queue._open.clear()
            log_queue._open.update(opened)
            admin._namespaces.clear()
            admin._namespaces.update(namespaces)
