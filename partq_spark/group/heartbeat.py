"""The thread that beats beside the work. What a beat does is given to it.

It is a daemon, so that it never keeps a process alive, and it beats only while the process that it works for lives
(`lifeline`). An error ends it and is kept for the main thread, which asks with `check`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from partq_spark.base.errors import Unavailable
from partq_spark.group.lifeline import Lifeline, Sign

_STOP_WAIT_S: Final = 5.0
_log = logging.getLogger("partq.flow")


class HeartbeatThread:
    """Calls `beat` every `interval_s` until stopped, counted from beat to beat. A context manager.

    `beat` must be bounded in time. `Unavailable` is trouble that may pass: it is kept in `trouble` and beating goes on.
    Anything else ends the thread, and `check` raises it in the main thread.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float, lifeline: Lifeline, *, name: str = "flow") -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._lifeline = lifeline
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
            look = self._lifeline.look()
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
