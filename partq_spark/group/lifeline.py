"""Whether there is still somebody for whom a heartbeat is worth beating: looked up, never waited for.

A heartbeat thread would go on for ever while the process that it works for is gone or frozen (spark-traps 25, LOS-07),
and hold partitions that nobody delivers. Linux tells by `/proc`; where there is none, only the parent's death is seen.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_STOPPED: Final = frozenset("Tt")  # by a signal, by a debugger
_DEAD: Final = frozenset("ZXx")


class Sign(StrEnum):
    """What a look at the lifeline shows."""

    ALIVE = "alive"
    FROZEN = "frozen"  # may go on later: be silent until then
    GONE = "gone"  # never again


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A sign, and why, in words."""

    sign: Sign
    reason: str = ""


class Lifeline:
    """The main thread of this process and, if it works for its parent as a Spark worker does, that parent.

    `parent` is the process id that was the parent's when the work began: `os.getppid()`, taken early. None: this
    process stands alone, and its parent (a shell) may end.
    """

    def __init__(
        self, *, parent: int | None, main_thread: threading.Thread | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._parent = parent
        self._main_thread = main_thread if main_thread is not None else threading.main_thread()
        self._proc = proc

    def look(self) -> Look:
        """Now. Takes some microseconds."""
        if not self._main_thread.is_alive():
            return Look(sign=Sign.GONE, reason="the main thread has ended")
        if self._parent is None:
            return Look(sign=Sign.ALIVE)
        if os.getppid() != self._parent:
            return Look(sign=Sign.GONE, reason=f"the parent process {self._parent} is gone")
        state = self._state_of(self._parent)
        if state in _DEAD:
            return Look(sign=Sign.GONE, reason=f"the parent process {self._parent} has ended")
        if state in _STOPPED:
            return Look(sign=Sign.FROZEN, reason=f"the parent process {self._parent} is stopped")
        return Look(sign=Sign.ALIVE)

    def _state_of(self, pid: int) -> str:
        """One letter; empty where it cannot be known."""
        try:
            line = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:  # no /proc, or processes are hidden: the parent's death still shows in getppid
            return ""
        # "pid (any name, with brackets too) state …"
        _, _, after_name = line.rpartition(b")")
        return after_name.strip()[:1].decode("ascii", "replace")
