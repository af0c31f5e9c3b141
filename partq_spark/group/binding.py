"""How a process becomes an instance of a flow, and how it leaves (FLO-08).

It takes the flow's name only from an instance that is over: one whose heartbeat stood still, watched by this process's
own clock; one that the coordinator has given up; or one of this very process. Which partitions the instance gets is
decided by the coordinator, and taken up in `session`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partq_spark.base.effects import Backoff, Effects, Retry
from partq_spark.base.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.group.codec import decode_state
from partq_spark.group.membership import GroupInQueue
from partq_spark.group.model import FlowRecord
from partq_spark.group.ownership import Ownership, Reincarnated, StateDocument

MAX_TRIES: Final = 5
MOVES_OF_THE_LIVING: Final = 2
LONGEST_WATCH_S: Final = 3600.0  # whatever a foreign record asks for

_WATCH_INTERVAL_S: Final = 0.1
_RETRY_PAUSE_S: Final = 0.1
_log = logging.getLogger("partq.flow")


@dataclass(slots=True)
class Life:
    """One instance's time as a bound flow. The heartbeat's thread and the main thread both write to it: each attribute
    is one assignment, and whichever comes last of two renewals is true.
    """

    says: FlowRecord  # with its next heartbeat
    renewed_s: float  # before the last renewal that succeeded was sent
    lives: int  # of the store, when it bound
    state_token: str | None = None  # as the last heartbeat found it
    ended: str = ""  # why
    seen: bool = False  # the coordinator has taken notice of it
    updates: int = 0  # FlowChangeUpdates passed on

    def renew(self, sent_s: float) -> None:
        """A renewal that was sent at `sent_s` has succeeded."""
        self.renewed_s = max(self.renewed_s, sent_s)

    def left_s(self, now_s: float) -> float:
        """Until the group may take this instance for gone, by this process's own clock."""
        return self.renewed_s + self.says.session_timeout_s - now_s

    def is_alive(self, now_s: float, lives: int) -> bool:
        """A guard: the group cannot have taken this instance for gone. One that was silent for too long has ended, and
        so has one of a former life of the store: a state of which it knows that it has not changed may be a copy.
        """
        if lives != self.lives:
            self.end("what keeps the ownership lives anew, and may have jumped back")
        if self.left_s(now_s) <= 0:
            self.end(f"nothing was renewed for {self.says.session_timeout_s:g} s (sessionTimeout)")
        return not self.ended

    def end(self, reason: str) -> None:
        """Nothing may be delivered any more in this instance's name. The first reason stays."""
        if not self.ended:
            self.ended = reason


class Binder:
    """Binds one flow name, again and again, always as a new instance."""

    def __init__(
        self,
        ownership: Ownership,
        group: GroupInQueue,
        flow: str,
        *,
        session_timeout_s: float,
        effects: Effects,
    ) -> None:
        self._ownership = ownership
        self._key = group.key
        self._queue_id = group.queue_id
        self._flow = flow
        self._session_timeout_s = session_timeout_s
        self._effects = effects
        self._own_instances: deque[str] = deque(maxlen=64)  # more than one process can have left behind unseen

    def bind(self, mapping: Mapping[int, int]) -> Life:
        """Bind as a new instance, presenting `mapping` (partition to epoch).

        Takes up to the former instance's session timeout after its last beat if that may still live. Raises `Invalid`
        if it does, `Unavailable` if the store does not answer.
        """
        cause: Exception | None = None
        backoff = self._backoff()
        for _ in range(MAX_TRIES):
            lives = self._ownership.documents.lives
            try:
                former = self._former()
                instance = self._effects.token()  # another one with each try, which finds this one as its own
                self._own_instances.append(instance)
                record = FlowRecord(
                    flow=self._flow,
                    instance=instance,
                    queue_id=self._queue_id,
                    bound=True,
                    session_timeout_s=self._session_timeout_s,
                    mapping=dict(mapping),
                )
                sent_s = self._effects.now_s()
                try:
                    self._ownership.bind(self._key, record, replaces=former)
                except Unavailable as error:  # the outcome is unknown
                    cause = error
                    backoff.pause(error)
                    continue
            except (Conflict, Reincarnated) as error:  # a heartbeat that was under way, another process, a restart
                cause = error
                continue
            _log.info("flow %s of group %s is bound as instance %s", self._flow, self._key, instance)
            return Life(record, sent_s, lives)
        raise Unavailable(
            f"flow {self._flow!r} of group {self._key} could not be bound in {MAX_TRIES} tries: {cause}; try again"
        ) from cause

    def leave(self, life: Life) -> None:
        """Unbind. Raises `Unavailable` if the store does not answer: the group will notice the silence."""
        # Also where the store lives anew: then it has forgotten the instance, or jumped back to where that was bound.
        self._backoff(MAX_TRIES).call(lambda: self._ownership.unbind(self._key, self._flow, life.says.instance))

    def _backoff(self, tries: float = math.inf) -> Backoff:
        return Backoff(Retry(first_s=_RETRY_PAUSE_S, most_s=_RETRY_PAUSE_S, tries=tries, least=0.0), self._effects)

    # --- who has the name ---------------------------------------------------------------------------------------------

    def _former(self) -> str | None:
        """The token of the last heartbeat under the name, whose instance is known to be gone. Raises `Invalid` as soon
        as it has moved twice: once may be the last beat of a process that was killed, on its way for long.
        """
        found = self._ownership.read_flow(self._key, self._flow)
        moves = 0
        interval_s = max(_WATCH_INTERVAL_S, self._ownership.documents.look_interval_s)
        still_since_s = self._effects.now_s()
        while found is not None and self._may_live(found.value):
            beat = found
            until_s = still_since_s + min(beat.value.session_timeout_s, LONGEST_WATCH_S)
            left_s = until_s - self._effects.now_s()
            if left_s <= 0:
                break
            self._effects.sleep(min(interval_s, left_s))
            found = self._ownership.read_flow(self._key, self._flow)
            # Ages are by another clock and not looked at.
            if found is not None and found.value.bound and found.token != beat.token:
                moves += 1
                still_since_s = self._effects.now_s()
            if moves == MOVES_OF_THE_LIVING:
                raise Invalid(
                    f"flow {self._flow!r} of group {self._key} is in use by another live process (instance "
                    f"{beat.value.instance}): stop that one, or give this one a name of its own (a query without "
                    "one: a checkpoint location)"
                )
        return found.token if found is not None else None

    def _may_live(self, record: FlowRecord) -> bool:
        """It is bound, was not this process, and the coordinator has not seen it go: waiting tells something new."""
        if not record.bound or record.instance in self._own_instances:
            return False
        try:
            found = self._ownership.read_state(self._key)
            if not isinstance(found, StateDocument):
                return True
            state = decode_state(found.body, self._effects.now_s(), f"state of group {self._key}")
        except Corrupt:
            return True
        flow = state.flows.get(self._flow)
        return flow is None or flow.instance != record.instance or flow.bound


# --- heartbeats, and whether there is anybody to send them for --------------------------------------------------------

# The thread that sends heartbeats beside the work, and whether its process and the one that it works for still run.
#
# The thread is a daemon, so that it never keeps a process alive. It would go on for ever while the process that it
# works for is gone or frozen (spark-traps.md 25, LOS-07), and hold partitions that nobody delivers; so it looks before
# each heartbeat. Linux tells by `/proc`; where there is none, only the parent's death is seen. An error ends the thread
# and is kept for the main thread, which asks with `check`. What a heartbeat does is given to it.


_STOP_WAIT_S: Final = 5.0
_STOPPED: Final = frozenset("Tt")  # by a signal, by a debugger
_DEAD: Final = frozenset("ZXx")


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

    @property
    def gone(self) -> str:
        """Why they will never go on, in words; empty: they may. Takes some microseconds, as `is_frozen`."""
        if self._parent is None:
            return ""
        if not self._main_thread.is_alive():
            return "the main thread has ended"
        if os.getppid() != self._parent:
            return f"the parent process {self._parent} is gone"
        return f"the parent process {self._parent} has ended" if self._state_of(self._parent) in _DEAD else ""

    @property
    def is_frozen(self) -> bool:
        """They may go on later: be silent until then."""
        return self._parent is not None and self._state_of(self._parent) in _STOPPED

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
    """Calls `beat` every `interval_s` until stopped, counted from beat to beat.

    `beat` must be bounded in time. `Unavailable` is trouble that may pass, which the work meets by itself: beating goes
    on. Anything else ends the thread, and `check` raises it in the main thread.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float, liveness: Liveness, *, name: str = "flow") -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._liveness = liveness
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"partq heartbeat of {name}", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin; the first beat is due after one interval, because a bind has just renewed the lease."""
        self._thread.start()

    def stop(self) -> None:
        """No beat begins after this; returns when the last one has ended, at most 5 s later. May be repeated."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_WAIT_S)

    def check(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_beating(self) -> bool:
        """Whether beats still come."""
        return self._thread.is_alive() and not self._stop.is_set()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            begun_s = time.monotonic()
            if gone := self._liveness.gone:
                _log.warning("%s ends: %s", self._thread.name, gone)
                return
            if not self._liveness.is_frozen and not self._beaten():
                return
            wait_s = max(self._interval_s - (time.monotonic() - begun_s), 0.0)

    def _beaten(self) -> bool:
        try:
            self._beat()
        except Unavailable:
            pass
        except Exception as error:  # noqa: BLE001 - it is passed on to the main thread by `check`
            self._failure = error
            return False
        return True
