"""Interruptions of the threads of simulated processes: where CPython looks for signals and for other threads, which is
at the beginning of a function, after a call of what is written in C, at a jump back (and in a wait: `machine`).
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import partq_spark
from tests.world.scheduler import Scheduler, Strand

_PACKAGE = Path(partq_spark.__file__).parent
_SCOPE = tuple(f"{_PACKAGE}/{room}/" for room in ("client", "query", "group", "log"))  # no locks of C stand in these
_JUMP: Final = dis.opmap.get("JUMP_BACKWARD", -1)
_CALLS = frozenset(code for name, code in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name)


class Interrupter:
    """Does something to a thread at one of the places where a signal or another thread may come in."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._armed: dict[Strand, tuple[int, Callable[[], None]]] = {}
        self._former: Any = None
        self._codes: dict[CodeType, bytes] = {}
        self._callers: set[int] = set()  # frames that have called a function of Python last
        self._is_elsewhere = False

    def arm(self, strand: Strand, at: int, act: Callable[[], None]) -> None:
        """At the `at`-th such place from now on, in functions that begin from now on."""
        if sys.gettrace() != self._call:
            self._former = sys.gettrace()  # that of who measures which lines are executed
        self._armed[strand] = (at, act)
        sys.settrace(self._call)

    def disarm(self, strand: Strand) -> None:
        self._armed.pop(strand, None)
        if not self._armed and sys.gettrace() == self._call:
            sys.settrace(self._former)

    def disarm_all(self) -> None:
        """Nothing is interrupted any more."""
        for strand in list(self._armed):
            self.disarm(strand)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is executed is not the thread's own: what a server does, and what is noted of it."""
        self._is_elsewhere = True
        try:
            yield
        finally:
            self._is_elsewhere = False

    def _call(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        code, strand = frame.f_code, self._scheduler.current
        if strand not in self._armed or self._is_elsewhere:
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
