"""A simulated process whose threads run one at a time, in an order that a seed decides: what the production code finds
as `threading` and `time`, an event loop for asyncio, a store in memory, and interruptions.

Threads are strands of the scheduler. An interruption comes where CPython looks for signals and for other threads: at the
beginning of a function, after a call, at a jump back, and in a wait.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import itertools
import random
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import partq_spark
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.log import connect
from partq_spark.objects.memory import MemoryStore
from tests.support.scheduler import SECOND_US, Crash, Scheduler, Strand

EPOCH_S = 1_700_000_000
_PACKAGE = Path(partq_spark.__file__).parent
_SCOPE = tuple(f"{_PACKAGE}/{room}/" for room in ("client", "query", "group", "log"))  # no locks of C stand in these
_WAITS = compile(
    "".join(textwrap.dedent(inspect.getsource(each)) for each in (threading.Condition, threading.Event)),
    "<the waits of threading>",
    "exec",
)
_JUMP = dis.opmap.get("JUMP_BACKWARD", -1)
_CALLS = frozenset(code for name, code in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name)


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
                if not self._is_locked:
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
        self._run = lambda: target(*args, **(kwargs or {}))
        self._done = Lock(machine)
        self.ident: int | None = None
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
            self._machine.deaths.append(f"{self.name}: {error!r}")
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
        self.deaths: list[str] = []
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
        thread.ident = next(self._idents)
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
        effects = Effects.__init__.__kwdefaults__
        former, opened, open_store = dict(effects), dict(connect._open), connect.open_store
        real = {"threading": threading, "time": time}
        replaced = [
            (module, name)
            for title, module in sorted(sys.modules.items())
            for name in real
            if title.startswith("partq_spark.") and vars(module).get(name) is real[name]
        ]
        for module, name in replaced:
            setattr(module, name, getattr(self, name))
        effects.update(sleep=self.sleep, uniform=rng.uniform, token=lambda: f"{rng.getrandbits(64):016x}")
        connect.open_store = lambda *_, **__: store
        try:
            yield
        finally:
            connect.open_store = open_store
            connect._open.clear()
            connect._open.update(opened)
            effects.update(former)
            for module, name in replaced:
                setattr(module, name, real[name])


class Interrupter:
    """Does something to a thread at one of the places where a signal or another thread may come in."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._armed: dict[Strand, tuple[int, Callable[[], None]]] = {}
        self._codes: dict[CodeType, bytes] = {}

    def arm(self, strand: Strand, at: int, act: Callable[[], None]) -> None:
        """At the `at`-th such place from now on, in functions that begin from now on."""
        self._armed[strand] = (at, act)
        sys.settrace(self._call)

    def disarm(self, strand: Strand) -> None:
        self._armed.pop(strand, None)
        if not self._armed:
            sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        strand = self._scheduler.current
        if strand not in self._armed or not frame.f_code.co_filename.startswith(_SCOPE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._pass(strand)
        code = self._codes.get(frame.f_code)
        if code is None:
            code = self._codes[frame.f_code] = frame.f_code.co_code
        is_after_call = False

        def step(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
            nonlocal is_after_call
            if event == "opcode":
                here = code[frame.f_lasti]
                was_after_call, is_after_call = is_after_call, here in _CALLS
                if (was_after_call or here == _JUMP) and self._scheduler.current is strand:
                    self._pass(strand)
            elif event == "exception":
                is_after_call = False
            return step

        return step

    def _pass(self, strand: Strand) -> None:
        armed = self._armed.get(strand)
        if armed is None:
            return
        at, act = armed
        if at > 1:
            self._armed[strand] = (at - 1, act)
            return
        del self._armed[strand]
        act()


class Store(MemoryStore):
    """Objects in memory, some way off; at times nothing answers."""

    def __init__(self, machine: Machine, rng: random.Random, *, url: str, way_us: int) -> None:
        super().__init__(clock=machine.unix_s, rng=rng, url=url)
        self._machine = machine
        self._way_us = way_us
        self.down_until_us = 0

    def _ask(self) -> None:
        if self._way_us and self._machine.scheduler.current is not None:
            self._machine.wait(self._way_us / SECOND_US)
        if self._machine.scheduler.now_us < self.down_until_us:
            raise Unavailable("the store does not answer")

    def create(self, name: str, data: bytes | memoryview) -> None:
        self._ask()
        super().create(name, data)

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        self._ask()
        return super().read(name, start=start, length=length)

    def load(self, name: str, *, known: str | None = None) -> Any:
        self._ask()
        return super().load(name, known=known)

    def swap(self, name: str, content: Any, *, expected: str | None) -> str:
        self._ask()
        return super().swap(name, content, expected=expected)

    def list(self, prefix: str) -> Any:
        self._ask()
        return super().list(prefix)


class Loop(asyncio.BaseEventLoop):
    """An event loop of the main thread, in simulated time. Its executor has a thread for each call."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._selector = self
        self._woken = machine.threading.Event()

    def time(self) -> float:
        return self._machine.now_s()

    def select(self, timeout_s: float | None) -> list[Any]:
        self._woken.wait(timeout_s)
        self._woken.clear()
        return []

    def _process_events(self, _events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        self._woken.set()

    def run_in_executor(self, _executor: object, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def run() -> None:
            try:
                result, error = function(*args), None
            except Exception as raised:  # noqa: BLE001 - it is the caller's
                result, error = None, raised
            if not self.is_closed():
                self.call_soon_threadsafe(tell, result, error)

        self._machine.spawn("executor", run)
        return future
