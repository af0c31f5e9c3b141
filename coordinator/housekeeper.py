"""The housekeeper: does for the queues of a namespace what `heads` says is due, one task at each step.

One coordinator of a namespace is it, by a lease in the ownership store like that of a group. The lease only saves work:
each task is conditional and may be done by several at once, so that a housekeeper that lost it while at a task, was
killed or slept does no harm, and nothing has to be fenced. What goes wrong with one queue does not stop the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from coordinator.heads import Done, Heads, QueueFacts, Task, Work, due
from coordinator.leadership import Leadership
from coordinator.logs import FieldValue, Log, one_line
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, PartqError
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership, Reincarnated
from partq_spark.group.retention import retain
from partq_spark.log import housekeeping as log_housekeeping
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import ObjectStore

LEASE_LOOKS: Final = 6
"""So many looks of silence, and another coordinator is the housekeeper."""

SWEEP_S: Final = log_housekeeping.GRACE_S / 4
TASK_RETRY_S: Final = 10.0
"""For so long a task tries again what others change or a store does not answer; the next one is not far."""

RENEW_MOST_S: Final = 600.0
"""For so long a single task keeps the lease."""

LEASE_THREAD: Final = "housekeeper lease"


def lease_key(namespace: str) -> GroupKey:
    """Where the lease is kept: no namespace, queue or group has a name that begins with '_'."""
    return GroupKey("_housekeeping", namespace, "_lease")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskReport:
    """What a task did, as facts for the log; `event` None: nothing worth a line. `empty`: there was nothing to do."""

    event: str | None
    facts: Mapping[str, FieldValue]
    empty: bool = False


class QueueTasks:
    """The three kinds of task, on the real queues."""

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def do(self, task: Task) -> TaskReport:
        """One task. Raises as the log does; `Invalid` if the queue is gone."""
        queue = QueueLog(self._store, self._settings.namespace, task.queue, retry_timeout_s=TASK_RETRY_S)
        queue.require(task.queue_id)
        match task.work:
            case Work.RETAIN:
                return self._retain(queue)
            case Work.COMPACT:
                return self._compact(queue)
            case Work.COLLECT:
                return self._collect(queue)

    def _retain(self, queue: QueueLog) -> TaskReport:
        done = retain(queue)
        held = sum(each.messages for each in done.held_back)
        retention_s = queue.head.config.retention_s or 0.0
        facts: dict[str, FieldValue] = {
            "messages": done.trimmed,
            "held_back": held or None,
            "held_back_by": ", ".join(sorted({each.group for each in done.held_back})) or None,
            "reason": f"older than the retention of {retention_s:g} s and acknowledged by every group",
        }
        return TaskReport(event="messages_trimmed" if done.trimmed else None, facts=facts, empty=not done.trimmed)

    def _compact(self, queue: QueueLog) -> TaskReport:
        from partq_spark.log.compaction import compact  # Arrow, which only the one who compacts needs

        done = compact(queue, min_age_s=self._settings.compaction_min_age_s)
        if done is None:
            return TaskReport(event=None, facts={}, empty=True)
        facts: dict[str, FieldValue] = {
            "messages": done.messages,
            "slices_before": done.slices_before,
            "slices": done.slices,
            "bytes_before": done.bytes_before,
            "bytes": done.bytes,
            "reason": f"small slices older than {self._settings.compaction_min_age_s:g} s",
        }
        return TaskReport(event="log_compacted", facts=facts)

    def _collect(self, queue: QueueLog) -> TaskReport:
        grace_s = self._settings.collection_grace_s
        done = log_housekeeping.collect(queue, grace_s=grace_s)
        facts: dict[str, FieldValue] = {
            "objects": done.deleted,
            "bytes": done.deleted_bytes,
            "marked": done.marked,
            "reason": f"nothing has referred to them for the grace of {grace_s:g} s",
        }
        return TaskReport(event="objects_deleted" if done.deleted else None, facts=facts, empty=not done.deleted)


class Housekeeper:
    """`heads` shows the queues; `do`, the clocks and `renewal_s` (real seconds between two renewals of the lease beside
    a task; None: the time of a look) are given by tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: ObjectStore,
        ownership: Ownership,
        heads: Heads,
        effects: Effects,
        do: Callable[[Task], TaskReport] | None = None,
        renewal_s: float | None = None,
    ) -> None:
        look_s = settings.housekeeping_look_s
        self._look_s = look_s
        self._renewal_s = renewal_s if renewal_s is not None else look_s
        self._store = store
        self._heads = heads
        self._effects = effects
        self._log = Log(settings.name)
        self._settings = settings
        self._do = do or QueueTasks(store, settings).do
        self._leadership = Leadership(
            ownership,
            lease_key(settings.namespace),
            settings=structs.replace(settings, lease_timeout_s=LEASE_LOOKS * look_s, frozen_after_s=3 * look_s),
            effects=effects,
            log=Log(settings.name, before="housekeeping_"),
        )
        self._done: dict[Task, Done] = {}
        self._queues: Mapping[str, QueueFacts] = {}  # as `_tasks` were found
        self._tasks: deque[Task] = deque()  # what is still to be done of what was due
        self._found_s = float("-inf")
        self._problems: dict[Task, str] = {}  # as last told
        self._renewed_s = float("-inf")
        self._sweep_due_s = effects.now_s()

    @property
    def leading(self) -> bool:
        """Whether this process was the housekeeper when it last looked."""
        return self._leadership.held

    def release(self) -> None:
        """Give up the lease, so that another coordinator goes on at once. Raises as the ownership store does."""
        self._leadership.release()

    def step(self) -> float:
        """Do what has been due for longest, if this process is the housekeeper; returns the seconds to the next step.

        Raises as the ownership store does. What goes wrong with one queue is told, and does not touch the others.
        """
        if not self._is_housekeeper():
            return self._look_s
        now_s = self._effects.now_s()
        if not self._tasks or now_s - self._found_s >= self._look_s:
            self._find_tasks(now_s)
        # The sweep waits for the queues, but not without end: there may always be something to compact.
        if now_s >= self._sweep_due_s + (self._look_s if self._tasks else 0.0):
            self._sweep()
        elif self._tasks:
            task = self._tasks.popleft()
            self._one(task, self._queues[task.queue])
        else:
            return self._look_s
        return 0.0

    def _find_tasks(self, now_s: float) -> None:
        """Look through all queues: once for all that is due, or there would be as many looks as queues."""
        self._queues, self._found_s = self._heads.facts(), now_s
        self._forget(self._queues)
        found = due(self._queues, self._done, self._settings, now_s=now_s, now_us=self._effects.time_us())
        self._tasks = deque(found)

    def _is_housekeeper(self) -> bool:
        """Renew the lease, or see whether it can be had, unless that was done within this look's time."""
        now_s = self._effects.now_s()
        if now_s - self._renewed_s < self._look_s / 2:
            return self._leadership.held
        try:
            self._leadership.look(())
        except (Conflict, Reincarnated):
            return False  # another coordinator is, and it was told; or the store lives anew
        self._renewed_s = now_s
        return self._leadership.held

    def _one(self, task: Task, facts: QueueFacts) -> None:
        report = None
        begun_s = time.monotonic()
        try:
            with self._renewing():
                report = self._do(task)
        except Exception as error:  # noqa: BLE001 - any problem of one queue must not stop the others
            self._trouble(task, one_line(error))
        else:
            if self._problems.pop(task, ""):
                self._log("info", "housekeeping_recovered", queue=task.queue, work=str(task.work))
            if report.event is not None:
                took_s = round(time.monotonic() - begun_s, 3)
                self._log("info", report.event, queue=task.queue, **{**report.facts, "took_s": took_s})
        empty_at = facts.sequence if report is not None and report.empty else None
        more = report is not None and not report.empty
        # Counted from its end: a task that takes long does not follow itself at once.
        self._done[task] = Done(at_s=self._effects.now_s(), at_us=self._effects.time_us(), empty_at=empty_at, more=more)

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the lease beside a task that takes long, or another coordinator would do all of it once more. For
        `RENEW_MOST_S`: a task that hangs must not keep others from housekeeping. The leadership is for one thread at a
        time: this one uses it only while the task runs, and the task does not.
        """
        over = threading.Event()
        begun_s = self._effects.now_s()

        def renew() -> None:
            while not over.wait(self._renewal_s) and self._effects.now_s() - begun_s < RENEW_MOST_S:
                try:
                    if not self._is_housekeeper():
                        return
                except Exception:  # noqa: BLE001, S110 - the next may come through, and the next step says if none does
                    pass

        thread = threading.Thread(target=renew, name=LEASE_THREAD, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _forget(self, queues: Mapping[str, QueueFacts]) -> None:
        """Forget queues that are gone, or were made again."""
        present = {(name, facts.queue_id) for name, facts in queues.items()}
        for task in [each for each in self._done if (each.queue, each.queue_id) not in present]:
            del self._done[task]
            self._problems.pop(task, None)

    def _sweep(self) -> None:
        """Remove what writers that died left in the whole store: a day old or more, also where the grace is shorter."""
        self._sweep_due_s = self._effects.now_s() + SWEEP_S
        try:
            swept = self._store.sweep_temporary(max(self._settings.collection_grace_s, log_housekeeping.GRACE_S))
        except PartqError as error:
            self._log("warning", "sweep_failed", reason=one_line(error))
            return
        if swept:
            self._log("info", "temporary_files_removed", files=swept, reason="their writers died a day ago or more")

    def _trouble(self, task: Task, reason: str) -> None:
        if self._problems.get(task) != reason:
            self._problems[task] = reason
            self._log("warning", "housekeeping_failed", queue=task.queue, work=str(task.work), reason=reason)
