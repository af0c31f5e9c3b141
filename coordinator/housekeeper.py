"""The housekeeper: does for the queues of a namespace what `heads` says is due, one task at each step.

One coordinator of a namespace is it, by a lease in the ownership store like that of a group. The lease only saves work:
each task is conditional and may be done by several at once, so that a housekeeper that lost it while at a task, was
killed or slept does no harm, and nothing has to be fenced. What goes wrong with one queue does not stop the others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

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
"""For so long a single task keeps the lease: one that hangs must not keep others from housekeeping."""


class TaskReport(NamedTuple):
    """What a task did, for the log."""

    event: str
    facts: Mapping[str, FieldValue]


def do_task(task: Task, store: ObjectStore, settings: Settings) -> TaskReport | None:
    """One task, on the real queue; None: there was nothing to do. Raises as the log does; `Invalid` if the queue is
    gone.
    """
    queue = QueueLog(store, settings.namespace, task.queue, retry_timeout_s=TASK_RETRY_S)
    queue.require(task.queue_id)
    match task.work:
        case Work.RETAIN:
            return _retain(queue)
        case Work.COMPACT:
            return _compact(queue, settings.compaction_min_age_s)
        case Work.COLLECT:
            return _collect(queue, settings.collection_grace_s)


def _retain(queue: QueueLog) -> TaskReport | None:
    done = retain(queue)
    if not done.trimmed:
        return None
    retention_s = queue.head.config.retention_s or 0.0
    facts: dict[str, FieldValue] = {
        "messages": done.trimmed,
        "held_back": sum(each.messages for each in done.held_back) or None,
        "held_back_by": ", ".join(sorted({each.group for each in done.held_back})) or None,
        "reason": f"older than the retention of {retention_s:g} s and acknowledged by every group",
    }
    return TaskReport("messages_trimmed", facts)


def _compact(queue: QueueLog, min_age_s: float) -> TaskReport | None:
    from partq_spark.log.compaction import compact  # Arrow, which only the one who compacts needs

    done = compact(queue, min_age_s=min_age_s)
    if done is None:
        return None
    facts: dict[str, FieldValue] = {
        "messages": done.messages,
        "slices_before": done.slices_before,
        "slices": done.slices,
        "bytes_before": done.bytes_before,
        "bytes": done.bytes,
        "reason": f"small slices older than {min_age_s:g} s",
    }
    return TaskReport("log_compacted", facts)


def _collect(queue: QueueLog, grace_s: float) -> TaskReport | None:
    done = log_housekeeping.collect(queue, grace_s=grace_s)
    if not done.deleted:
        return None
    facts: dict[str, FieldValue] = {
        "objects": done.deleted,
        "bytes": done.deleted_bytes,
        "marked": done.marked,
        "reason": f"nothing has referred to them for the grace of {grace_s:g} s",
    }
    return TaskReport("objects_deleted", facts)


class Housekeeper:
    """`heads` shows the queues; `do` (a task in place of the real one) is given by tests. `look` and `step` are called
    side by side: what they share is whether this process is the housekeeper, and since when a task runs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: ObjectStore,
        ownership: Ownership,
        heads: Heads,
        effects: Effects,
        do: Callable[[Task], TaskReport | None] | None = None,
    ) -> None:
        self._look_s = look_s = settings.housekeeping_look_s
        self._store = store
        self._heads = heads
        self._effects = effects
        self._log = Log(settings.name)
        self._settings = settings
        self._do = do or partial(do_task, store=store, settings=settings)
        self._leadership = Leadership(
            ownership,
            GroupKey("_housekeeping", settings.namespace, "_lease"),  # no name of people's begins with "_"
            settings=structs.replace(settings, lease_timeout_s=LEASE_LOOKS * look_s, frozen_after_s=3 * look_s),
            effects=effects,
            log=Log(settings.name, before="housekeeping_"),
        )
        self._begun_s = math.inf  # when the task that runs was begun
        self._done: dict[Task, Done] = {}
        self._queues: Mapping[str, QueueFacts] = {}  # as `_tasks` were found
        self._tasks: deque[Task] = deque()  # what is still to be done of what was due
        self._found_s = -math.inf
        self._problems: dict[Task, str] = {}  # as last told
        self._sweep_due_s = effects.now_s()

    @property
    def leading(self) -> bool:
        """Whether this process was the housekeeper when it last looked."""
        return self._leadership.held

    def release(self) -> None:
        """Give up the lease, so that another coordinator goes on at once. Raises as the ownership store does."""
        self._leadership.release()

    def look(self) -> float:
        """Renew the lease, or see whether it can be had; returns the seconds to the next look. Also while a task runs,
        or another coordinator would do all of it once more. Raises as the ownership store does.
        """
        if self._effects.now_s() - self._begun_s < RENEW_MOST_S:
            with suppress(Conflict, Reincarnated):  # another coordinator is, and it was told; or the store lives anew
                self._leadership.look()
        return self._look_s

    def step(self) -> float:
        """Do what has been due for longest, if this process is the housekeeper; returns the seconds to the next step.
        What goes wrong with one queue is told, and does not touch the others.
        """
        if not self.leading:
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
        self._queues = {queue: seen.facts for queue, seen in self._heads.seen().items()}
        self._found_s = now_s
        self._forget(self._queues)
        self._tasks = deque(due(self._queues, self._done, self._settings, now_s=now_s, now_us=self._effects.time_us()))

    def _one(self, task: Task, facts: QueueFacts) -> None:
        report, empty_at = None, None
        self._begun_s = begun_s = self._effects.now_s()
        try:
            report = self._do(task)
        except Exception as error:  # noqa: BLE001 - any problem of one queue must not stop the others
            self._trouble(task, one_line(error))
        else:
            if self._problems.pop(task, ""):
                self._log("info", "housekeeping_recovered", queue=task.queue, work=str(task.work))
            if report is None:
                empty_at = facts.sequence
            else:
                took_s = round(self._effects.now_s() - begun_s, 3)
                self._log("info", report.event, queue=task.queue, **{**report.facts, "took_s": took_s})
        finally:
            self._begun_s = math.inf
        # Counted from its end: a task that takes long does not follow itself at once.
        self._done[task] = Done(
            at_s=self._effects.now_s(), at_us=self._effects.time_us(), empty_at=empty_at, more=report is not None
        )

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
