"""The thread that sends heartbeats beside the work, and whether its process and the one that it works for still run.

The thread is a daemon, so that it never keeps a process alive. It would go on for ever while the process that it works
for is gone or frozen (spark-traps.md 25, LOS-07), and hold partitions that nobody delivers; so it looks before each
heartbeat. Linux tells by `/proc`; where there is none, only the parent's death is seen. An error ends the thread and is
kept for the main thread, which asks with `check`. What a heartbeat does is given to it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from partq_spark.base.errors import Unavailable

_STOP_WAIT_S: Final = 5.0
_STOPPED: Final = frozenset("Tt")  # by a signal, by a debugger
_DEAD: Final = frozenset("ZXx")
_log = logging.getLogger("partq.flow")


class Sign(StrEnum):
    """What a look shows."""

    ALIVE = "alive"
    FROZEN = "frozen"  # may go on later: be silent until then
    GONE = "gone"  # never again


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """A sign, and why, in words."""

    sign: Sign
    reason: str = ""


class Liveness:
    """Whether a process that works for its parent, as a Spark worker does, and that parent still run.

    `parent` is the process id that was the parent's when the work began: `os.getppid()`, taken early. None: this
    process stands alone: its parent (a shell) may end, its work goes on as long as it runs, and who does it may change
    from thread to thread.
    """

    def __init__(
        self, *, parent: int | None, main_thread: threading.Thread | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._parent = parent
        self._main_thread = main_thread if main_thread is not None else threading.main_thread()
        self._proc = proc

    def look(self) -> Sighting:
        """Now. Takes some microseconds."""
        if self._parent is None:
            return Sighting(sign=Sign.ALIVE)
        if not self._main_thread.is_alive():
            return Sighting(sign=Sign.GONE, reason="the main thread has ended")
        if os.getppid() != self._parent:
            return Sighting(sign=Sign.GONE, reason=f"the parent process {self._parent} is gone")
        state = self._state_of(self._parent)
        if state in _DEAD:
            return Sighting(sign=Sign.GONE, reason=f"the parent process {self._parent} has ended")
        if state in _STOPPED:
            return Sighting(sign=Sign.FROZEN, reason=f"the parent process {self._parent} is stopped")
        return Sighting(sign=Sign.ALIVE)

    def _state_of(self, pid: int) -> str:
        """One letter; empty where it cannot be known."""
        try:
            line = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:  # no /proc, or processes are hidden: the parent's death still shows in getppid
            return ""
        # "pid (any name, with brackets too) state …"
        _, _, after_name = line.rpartition(b")")
        return after_name.strip()[:1].decode("ascii", "replace")


class HeartbeatThread:
    """Calls `beat` every `interval_s` until stopped, counted from beat to beat. A context manager.

    `beat` must be bounded in time. `Unavailable` is trouble that may pass: it is kept in `trouble` and beating goes on.
    Anything else ends the thread, and `check` raises it in the main thread.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float, liveness: Liveness, *, name: str = "flow") -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._liveness = liveness
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"partq heartbeat of {name}", daemon=True)
        self._failure: BaseException | None = None
        self.trouble: Unavailable | None = None
        self.ended_because = ""

    def start(self) -> Self:
        """Begin; the first beat is due after one interval, because a bind has just renewed the lease."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """No beat begins after this; returns when the last one has ended, at most 5 s later. May be repeated."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_WAIT_S)

    def check(self) -> None:
        """Raise what ended the thread, if something did. `trouble` is not raised: the work meets it by itself."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_beating(self) -> bool:
        """Whether beats still come."""
        return self._thread.is_alive() and not self._stop.is_set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            begun_s = time.monotonic()
            look = self._liveness.look()
            if look.sign is Sign.GONE:
                self.ended_because = look.reason
                _log.warning("%s ends: %s", self._thread.name, look.reason)
                return
            if look.sign is Sign.ALIVE and not self._beaten():
                return
            wait_s = max(self._interval_s - (time.monotonic() - begun_s), 0.0)

    def _beaten(self) -> bool:
        try:
            self._beat()
        except Unavailable as error:
            self.trouble = error
        except Exception as error:  # noqa: BLE001 - it is passed on to the main thread by `check`
            self._failure = error
            self.ended_because = f"{type(error).__name__}: {error}"
            return False
        else:
            self.trouble = None
        return True
