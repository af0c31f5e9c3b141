"""The housekeeper: does for the queues of a namespace what `housekeeping` says is due. One thread, one step at a time.

One coordinator of a namespace is it, by a lease in the ownership store like that of a group. The lease only saves work:
each step is conditional and may be done by several at once, so that a housekeeper who lost it while at a step, was
killed or slept does no harm, and nothing has to be fenced. Whatever goes wrong with one queue is that queue's alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from coordinator.due_housekeeping import Done, QueueFacts, Rules, Task, Work, due
from coordinator.heads import Heads
from coordinator.leadership import Leadership, StoreLife, Timing
from coordinator.logs import Log, Value
from coordinator.settings import Settings
from partq_spark.base.errors import Conflict, PartqError
from partq_spark.group.effects import Effects, wall_time_us
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership, Reincarnated
from partq_spark.group.retention import retain
from partq_spark.log import housekeeping as log_housekeeping
from partq_spark.log.queue import Effects as LogEffects
from partq_spark.log.queue import Queue
from partq_spark.objects.api import ObjectStore

LEASE_LOOKS: Final = 6
"""So many looks of silence, and another coordinator is the housekeeper."""

SWEEP_S: Final = log_housekeeping.GRACE_S / 4
STEP_RETRY_S: Final = 10.0
"""For so long a step tries again what others change or a store does not answer; the next one is not far."""

RENEW_MOST_S: Final = 600.0
"""For so long a single step keeps the lease."""

LEASE_THREAD: Final = "housekeeper lease"

MOST_ROUNDS: Final = 1_000
"""Of one look. In each every queue that something is due for has its turn: one with much to compact comes again."""

_LEAST_JOIN_S: Final = 0.05


def lease_key(namespace: str) -> GroupKey:
    """Where the lease is kept: no namespace, queue or group has a name that begins with '_'."""
    return GroupKey("_housekeeping", namespace, "_lease")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a step did, as facts for the log; `event` None: nothing worth a line. `empty`: there was nothing to do."""

    event: str | None
    facts: Mapping[str, Value]
    empty: bool = False


Do = Callable[[Task], Step]


class Steps:
    """The three kinds of step, on the real queues."""

    def __init__(self, store: ObjectStore, namespace: str, rules: Rules) -> None:
        self._store = store
        self._namespace = namespace
        self._rules = rules

    def do(self, task: Task) -> Step:
        """One step. Raises as the log does; `Invalid` if the queue is gone."""
        queue = Queue(self._store, self._namespace, task.queue, LogEffects(retry_timeout_s=STEP_RETRY_S))
        queue.require(task.queue_id)
        match task.work:
            case Work.RETAIN:
                return self._retain(queue)
            case Work.COMPACT:
                return self._compact(queue)
            case Work.COLLECT:
                return self._collect(queue)

    def _retain(self, queue: Queue) -> Step:
        done = retain(queue)
        held = sum(each.messages for each in done.held_back)
        retention_s = queue.head.config.retention_s or 0.0
        facts: dict[str, Value] = {
            "messages": done.trimmed,
            "held_back": held or None,
            "held_back_by": ", ".join(sorted({each.group for each in done.held_back})) or None,
            "reason": f"older than the retention of {retention_s:g} s and acknowledged by every group",
        }
        return Step(event="messages_trimmed" if done.trimmed else None, facts=facts, empty=not done.trimmed)

    def _compact(self, queue: Queue) -> Step:
        from partq_spark.log.compaction import compact  # Arrow, which only the one who compacts needs

        done = compact(queue, min_age_s=self._rules.compaction_min_age_s)
        if done is None:
            return Step(event=None, facts={}, empty=True)
        facts: dict[str, Value] = {
            "messages": done.messages,
            "slices_before": done.slices_before,
            "slices": done.slices,
            "bytes_before": done.bytes_before,
            "bytes": done.bytes,
            "reason": f"small slices older than {self._rules.compaction_min_age_s:g} s",
        }
        return Step(event="log_compacted", facts=facts)

    def _collect(self, queue: Queue) -> Step:
        grace_s = self._rules.collection_grace_s
        done = log_housekeeping.collect(queue, grace_s=grace_s)
        facts: dict[str, Value] = {
            "objects": done.deleted,
            "bytes": done.deleted_bytes,
            "marked": done.marked,
            "reason": f"nothing has referred to them for the grace of {grace_s:g} s",
        }
        return Step(event="objects_deleted" if done.deleted else None, facts=facts, empty=not done.deleted)


class Housekeeper:
    """The thread. `heads` shows the queues; `do`, the clocks and `renewal_s` (real seconds between two renewals of the
    lease beside a step; None: the time of a look) are given by tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: ObjectStore,
        ownership: Ownership,
        life: StoreLife,
        heads: Heads,
        effects: Effects,
        log: Log,
        do: Do | None = None,
        time_us: Callable[[], int] = wall_time_us,
        renewal_s: float | None = None,
    ) -> None:
        look_s = settings.housekeeping_look_s
        self._look_s = look_s
        self._renewal_s = renewal_s if renewal_s is not None else look_s
        self._store = store
        self._heads = heads
        self._life = life
        self._effects = effects
        self._time_us = time_us
        self._log = log
        self._rules = Rules(
            collection_grace_s=settings.collection_grace_s, compaction_min_age_s=settings.compaction_min_age_s
        )
        self._do = do or Steps(store, settings.namespace, self._rules).do
        self._leadership = Leadership(
            ownership,
            lease_key(settings.namespace),
            name=settings.name,
            timing=Timing(lease_timeout_s=LEASE_LOOKS * look_s, renewal_s=look_s, frozen_after_s=3 * look_s),
            effects=effects,
            log=self._say,
        )
        self._done: dict[Task, Done] = {}
        self._problems: dict[Task | None, str] = {}  # as last told; None: of the lease
        self._mistake = ""  # as last told, of what is no queue's
        self._renewed_s = float("-inf")
        self._sweep_due_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    @property
    def leading(self) -> bool:
        """Whether this process was the housekeeper when it last looked."""
        return self._leadership.held

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that runs. Returns at once; may be called before `start`."""
        self._stopping.set()

    def join(self, wait_s: float) -> None:
        """Wait for the end, at most so long. A step that is cut off does no harm, and a lease ends by itself."""
        if self._thread.is_alive():
            self._thread.join(max(wait_s, _LEAST_JOIN_S))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun_s = self._effects.now_s()
            self.look()
            self._stopping.wait(max(0.0, self._look_s - (self._effects.now_s() - begun_s)))
        try:
            self._leadership.release()
        except PartqError:
            pass  # the lease ends by itself

    def look(self) -> None:
        """One look: everything that is due, as long as this process is the housekeeper. Whatever goes wrong is told."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the thread must not end while the process says that it keeps house
            reason = _words(error)
            if self._mistake != reason:
                self._log("error", "housekeeping_failed", reason=reason)
            self._mistake = reason
        else:
            self._mistake = ""

    def _look(self) -> None:
        if not self._is_housekeeper():
            return
        begun_s = self._effects.now_s()
        for _ in range(MOST_ROUNDS):
            queues = self._heads.facts()
            self._forget(queues)
            tasks = due(queues, self._done, self._rules, now_s=self._effects.now_s(), now_us=self._time_us())
            for task in tasks:
                if self._stopping.is_set() or not self._is_housekeeper():
                    return
                self._one(task, queues[task.queue])
            if not tasks or self._effects.now_s() - begun_s >= self._look_s:
                break  # the next look follows at once
        if self._effects.now_s() >= self._sweep_due_s and not self._stopping.is_set():
            self._sweep()

    def _is_housekeeper(self) -> bool:
        """Renew the lease, or see whether it can be had, unless that was done within this look's time."""
        now_s = self._effects.now_s()
        if now_s - self._renewed_s < self._look_s / 2:
            return self._leadership.held
        self._renewed_s = now_s
        known = self._life.value
        try:
            known = self._life.ask()
            self._leadership.look(())
        except Conflict:
            return False  # somebody else is, and it was told
        except Reincarnated:
            if known is not None:
                self._life.lost(known)
            return False
        except PartqError as error:
            self._trouble(None, error)
            return False
        except Exception as error:  # noqa: BLE001 - a mistake in here must not end the coordination of groups
            self._trouble(None, error)
            return False
        self._no_trouble(None)
        return self._leadership.held

    def _one(self, task: Task, facts: QueueFacts) -> None:
        step = None
        begun_s = time.monotonic()
        try:
            with self._renewing():
                step = self._do(task)
        except Exception as error:  # noqa: BLE001 - whatever it is, other queues want to be looked after too
            self._trouble(task, error)
        else:
            self._no_trouble(task)
            if step.event is not None:
                took_s = round(time.monotonic() - begun_s, 3)
                self._log("info", step.event, queue=task.queue, **{**step.facts, "took_s": took_s})
        empty_at = facts.sequence if step is not None and step.empty else None
        more = step is not None and not step.empty
        # Counted from its end: a step that takes long does not follow itself at once.
        self._done[task] = Done(at_s=self._effects.now_s(), at_us=self._time_us(), empty_at=empty_at, more=more)

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the lease beside a step that takes long, or another coordinator would do all of it once more. For
        `RENEW_MOST_S`: a step that hangs must not keep others from housekeeping. The leadership is for one thread at a
        time: this one uses it only while the step runs, and the step does not.
        """
        over = threading.Event()
        begun_s = self._effects.now_s()

        def renew() -> None:
            while not over.wait(self._renewal_s) and self._effects.now_s() - begun_s < RENEW_MOST_S:
                if not self._is_housekeeper():
                    return

        thread = threading.Thread(target=renew, name=LEASE_THREAD, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _forget(self, queues: Mapping[str, QueueFacts]) -> None:
        """Queues that are gone, or others by now."""
        present = {(name, facts.queue_id) for name, facts in queues.items()}
        for task in [each for each in self._done if (each.queue, each.queue_id) not in present]:
            del self._done[task]
            self._problems.pop(task, None)

    def _sweep(self) -> None:
        """What writers that died left in the whole store, never younger than a day, whatever the grace."""
        self._sweep_due_s = self._effects.now_s() + SWEEP_S
        try:
            swept = self._store.sweep_temporary(max(self._rules.collection_grace_s, log_housekeeping.GRACE_S))
        except PartqError as error:
            self._log("warning", "sweep_failed", reason=_words(error))
            return
        if swept:
            self._log("info", "temporary_files_removed", files=swept, reason="their writers died a day ago or more")

    # --- telling ------------------------------------------------------------------------------------------------------

    def _say(self, level: str, event: str, /, **facts: Value) -> None:
        """What the lease has to tell, so that it is not taken for a group's."""
        facts.pop("group", None)
        self._log(level, f"housekeeping_{event}", **facts)

    def _trouble(self, task: Task | None, error: Exception) -> None:
        reason = _words(error)
        if self._problems.get(task) != reason:
            self._problems[task] = reason
            where = {} if task is None else {"queue": task.queue, "work": str(task.work)}
            self._log("warning", "housekeeping_failed", **where, reason=reason)

    def _no_trouble(self, task: Task | None) -> None:
        if self._problems.pop(task, ""):
            where = {} if task is None else {"queue": task.queue, "work": str(task.work)}
            self._log("info", "housekeeping_recovered", **where)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PartqError) else f"{type(error).__name__}: {text}"
