"""What surrounds the threads of a simulated process: interruptions, a store in memory, an event loop for asyncio.

An interruption comes where CPython looks for signals and for other threads: at the beginning of a function, after a
call of what is written in C, at a jump back (and in a wait: `machine`).
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

import partq_spark
from partq_spark.base.errors import Unavailable
from partq_spark.objects.memory import MemoryStore
from tests.support.scheduler import SECOND_US, Scheduler, Strand

if TYPE_CHECKING:
    from tests.simulation.consumer.machine import Machine

_PACKAGE = Path(partq_spark.__file__).parent
_SCOPE = tuple(f"{_PACKAGE}/{room}/" for room in ("client", "query", "group", "log"))  # no locks of C stand in these
_JUMP: Final = dis.opmap.get("JUMP_BACKWARD", -1)
_CALLS = frozenset(code for name, code in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name)


class Interrupter:
    """Does something to a thread at one of the places where a signal or another thread may come in."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._armed: dict[Strand, tuple[int, Callable[[], None]]] = {}
        self._codes: dict[CodeType, bytes] = {}
        self._callers: set[int] = set()  # frames that have called a function of Python last

    def arm(self, strand: Strand, at: int, act: Callable[[], None]) -> None:
        """At the `at`-th such place from now on, in functions that begin from now on."""
        self._armed[strand] = (at, act)
        sys.settrace(self._call)

    def disarm(self, strand: Strand) -> None:
        self._armed.pop(strand, None)
        if not self._armed:
            sys.settrace(None)

    def disarm_all(self) -> None:
        """Nothing is interrupted any more."""
        self._armed.clear()
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        code, strand = frame.f_code, self._scheduler.current
        if strand not in self._armed:
            return None
        if not code.co_name.startswith("__"):  # special methods are called by C
            self._callers.add(id(frame.f_back))
        if code.co_name == "<module>" or not code.co_filename.startswith(_SCOPE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if not code.co_flags & inspect.CO_GENERATOR:  # which may be closed by what forgets it: nobody would hear
            self._pass(strand)
        steps = self._codes.get(code)
        if steps is None:
            steps = self._codes[code] = code.co_code
        is_after_call = False

        def step(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
            nonlocal is_after_call
            if event == "opcode":
                here = steps[frame.f_lasti]
                looks = here == _JUMP or (is_after_call and id(frame) not in self._callers)
                is_after_call = here in _CALLS
                self._callers.discard(id(frame))
                if looks and self._scheduler.current is strand:
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

    def run_in_executor(  # type: ignore[override] # no executor is made
        self, _executor: object, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
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
