"""The coordinator of one namespace: which jobs it has, and what its health says of them.

The jobs are to reach the ownership store, to listen to its news, to look at the queues' heads, one for each group that
the heads show (`runtime`), and housekeeping (`housekeeper`). When each has its turn, and what becomes of one that
fails, is `schedule`'s; what a step does is the job's own.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from coordinator.heads import GroupFacts, Heads
from coordinator.health import Status
from coordinator.housekeeper import Housekeeper
from coordinator.logs import Log, one_line
from coordinator.runtime import GroupRuntime
from coordinator.schedule import Job, Schedule
from coordinator.settings import Settings
from partq_spark.base.effects import Effects, in_a_row, side_by_side
from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import HEAD, Ownership, Reincarnated
from partq_spark.objects.api import ObjectStore

STOP_WAIT_S: Final = 1.2
"""For what is under way and for giving up the leases; a lease that is not given up in time ends by itself."""

_STUCK_AFTER_S: Final = 10.0
_GONE_AFTER_LOOKS: Final = 2
_UNKNOWN_LOOK_S: Final = 1.0
_MOST_UNKNOWN: Final = 1000


@dataclass(slots=True)
class _Group:
    """A group that the heads show, and its job."""

    runtime: GroupRuntime
    facts: GroupFacts
    job: Job
    missing: int = 0  # looks at heads in a row that did not show it


class Service:
    """The coordinator of one namespace."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: ObjectStore,
        ownership: Ownership,
        effects: Effects | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ownership = ownership
        self._log = Log(settings.name)
        self._effects = effects or Effects()
        self.heads = Heads(store, settings.namespace, ownership=ownership.documents.url)
        self._threads = ThreadPoolExecutor(settings.group_threads, thread_name_prefix="group")
        self._fence_threads = ThreadPoolExecutor(settings.fence_threads, thread_name_prefix="fence")
        # A wait for news takes a second, a step of housekeeping may take minutes: no group waits for either.
        self._long_threads = ThreadPoolExecutor(2, thread_name_prefix="long")
        self._run_fences = side_by_side(self._fence_threads)
        # On a disk a look takes microseconds, and handing it to another thread takes more.
        self._look_side_by_side = in_a_row if store.url.startswith("file:") else self._run_fences
        self._housekeeper = Housekeeper(
            settings,
            store=store,
            ownership=ownership,
            heads=self.heads,
            effects=self._effects,
        )
        self._schedule = Schedule(self._effects)
        self._make_job = partial(Job, log=self._log, effects=self._effects, retry_most_s=settings.retry_most_s)
        self._reaching = self._make_job(
            self._reach_ownership,
            self._threads,
            failed="ownership_unavailable",
            recovered="ownership_reached",
            level="warning",
        )
        self._listening = self._make_job(
            self._listen, self._long_threads, failed="news", recovered="news", level="warning"
        )
        self._looking = self._make_job(
            self._look_at_heads, self._threads, failed="heads_failed", recovered="heads_recovered"
        )
        self._looking.problem = "no queue was looked at yet"
        make_housekeeping = partial(
            self._make_job, failed="housekeeping_failed", recovered="housekeeping_recovered", level="warning"
        )
        self._keeping_house = make_housekeeping(self._housekeeper.step, self._long_threads)
        self._house_lease = make_housekeeping(self._housekeeper.look, self._threads, leader=self._housekeeper)
        self._groups: dict[GroupKey, _Group] = {}
        self._stopping = threading.Event()
        self._head_problems: dict[str, str] = {}  # by queue, as last told
        self._empty = ""  # what is told while the store has no queue: its address may be a slip of the pen
        self._has_news = True  # the ownership store, as far as is known
        self._unknown: dict[GroupKey, float] = {}  # groups that no head showed, and when heads are looked at for each

    # --- from outside -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End soon. May be called by a signal handler."""
        self._schedule.call(self._stopping.set)

    def status(self) -> Status:
        """For the health server, from another thread."""
        groups = list(self._groups.values())
        failing = [group.job for group in groups if group.job.retry.failures]
        turned_s = time.monotonic() - self._schedule.turned_s
        out_of_order = self._reaching.problem or self._listening.problem or self._looking.problem
        problem = out_of_order or next((job.problem for job in failing), "")
        problem = problem or next((stuck for group in groups if (stuck := group.runtime.stuck)), "") or self._empty
        alive = turned_s < _STUCK_AFTER_S
        return Status(
            alive=alive,
            ready=alive and not out_of_order and not (failing and len(failing) == len(groups)),
            looked_s=round(turned_s, 3),
            groups=len(groups),
            leading=sum(group.runtime.leading for group in groups),
            failing=len(failing),
            problem=problem,
            housekeeper=self._housekeeper.leading,
        )

    def groups(self) -> list[tuple[GroupRuntime, GroupFacts]]:
        """All that are seen, for metrics, from another thread."""
        return [(each.runtime, each.facts) for each in list(self._groups.values())]

    def run(self) -> None:
        """Until `stop`. Raises `Invalid` if the ownership store can never be used as configured."""
        self._schedule.add(self._reaching)
        while not self._stopping.is_set():
            self._schedule.turn()
        self._log("info", "stopping", leading=sum(group.runtime.leading for group in self._groups.values()))
        released = self._schedule.end(STOP_WAIT_S)
        for threads in (self._threads, self._fence_threads, self._long_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        self._log("info", "stopped", leases_released=released)

    # --- on the schedule's thread -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The ownership store has answered."""
        self._schedule.add(self._listening)
        self._schedule.add(self._looking)
        if self._settings.housekeeping:
            self._schedule.add(self._house_lease)
            # Groups come first: their flows wait to be led.
            self._keeping_house.due_s = self._effects.now_s() + self._settings.housekeeping_look_s
            self._schedule.add(self._keeping_house)

    def _take_news(self, groups: frozenset[GroupKey] | None) -> None:
        """The ownership store told of these groups; None: of any."""
        now_s = self._effects.now_s()
        for key in self._groups if groups is None else groups:
            group = self._groups.get(key)
            if group is not None:
                self._schedule.wake(group.job)
            elif key.namespace == self.heads.namespace and (key.group == HEAD or self._may_look_for(key, now_s)):
                self._threads.submit(self._look_at_queue, key.queue)

    def _may_look_for(self, key: GroupKey, now_s: float) -> bool:
        """A group that no head showed was made a moment ago; if it was not, it is not looked for again at once."""
        if now_s < self._unknown.get(key, now_s):
            return False
        if len(self._unknown) >= _MOST_UNKNOWN:
            self._unknown.clear()
        self._unknown[key] = now_s + _UNKNOWN_LOOK_S
        return True

    def _take_groups(self, *, all_seen: bool = False) -> None:
        """Begin and wake groups as the heads show them now. `all_seen`: all heads were looked at."""
        found = self.heads.groups()
        for key, facts in found.items():
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = self._make_group(key, facts)
                self._schedule.add(self._groups[key].job)
                self._log("info", "group_found", group=str(key), queue_id=facts.queue_id)
                continue
            group.missing = 0
            if group.facts is not facts and group.facts != facts:
                group.facts = facts
                self._schedule.wake(group.job)
        if all_seen:
            self._drop_missing(set(self._groups) - set(found))

    def _drop_missing(self, missing: set[GroupKey]) -> None:
        """Groups that several looks did not show are gone; one look may have met a store in the making."""
        for key in missing:
            group = self._groups[key]
            group.missing += 1
            if group.missing >= _GONE_AFTER_LOOKS and not group.job.running:
                del self._groups[key]
                self._schedule.remove(group.job)
                self._threads.submit(self._drop, key, group.runtime)

    def _make_group(self, key: GroupKey, facts: GroupFacts) -> _Group:
        runtime = GroupRuntime(
            key,
            store=self._ownership,
            checkpoints=lambda facts: CheckpointStore(
                self._store,
                key,
                facts.queue_id,
                since=facts.since,
                ends=self.heads.ends(key.queue),
                effects=self._effects,
            ),
            facts_now=lambda: self.heads.now(key),
            settings=self._settings,
            effects=self._effects,
            run=self._run_fences,
        )
        job = self._make_job(
            lambda: runtime.step(self._groups[key].facts),
            self._threads,
            failed="group_failed",
            recovered="group_recovered",
            leader=runtime,
            group=str(key),
        )
        return _Group(runtime, facts, job)

    # --- on other threads ---------------------------------------------------------------------------------------------

    def _reach_ownership(self) -> float:
        """The first job: nothing else begins before the ownership store has answered."""
        try:
            self._probe()
        except Unavailable:
            raise
        except Exception as problem:  # noqa: BLE001 - raised by `run`: asking again would not mend it
            self._schedule.call(partial(_refuse, problem))
        else:
            self._schedule.call(self._begin)
        return math.inf

    def _look_at_heads(self) -> float:
        all_seen = False
        try:
            self._ownership.documents.look_at_place()
            names = self.heads.queues()
            problems = [
                problem for problem in self._look_side_by_side(self._look_at_head, names) if problem is not None
            ]
            # One that is damaged, say, is no reason to be out of order: its groups stay as they were last seen.
            if problems and len(problems) == len(names):
                raise problems[0]
            self._tell_whether_empty(not problems and not self.heads.seen())
            if not self._groups:
                self._probe()  # nobody else asks, and `/readyz` is to know
            all_seen = True
        finally:
            self._schedule.call(partial(self._take_groups, all_seen=all_seen))
        return self._settings.heads_look_s

    def _tell_whether_empty(self, empty: bool) -> None:
        """That is how a new store looks, and how a mistyped one does: told, and no reason to be out of order."""
        if not empty:
            self._empty = ""
        elif not self._empty:
            self._empty = (
                f"store {self._store.url} has no queue in namespace {self.heads.namespace!r}: if there should be one,"
                " see whether store.url and store.namespace name the right place; else create one"
            )
            self._log("warning", "no_queue", reason=self._empty)

    def _look_at_queue(self, queue: str) -> None:
        try:
            self._look_at_head(queue)
        except Exception as problem:  # noqa: BLE001 - nobody asks this thread what became of it
            self._log("error", "head_failed", queue=queue, reason=one_line(problem))
        self._schedule.call(self._take_groups)

    def _look_at_head(self, queue: str) -> PartqError | None:
        """What was in the way is told once, and returned."""
        problem: PartqError | None = None
        try:
            self.heads.look(queue)
        except PartqError as error:
            problem = error
        told = one_line(problem) if problem is not None else ""
        if told != self._head_problems.get(queue, ""):
            self._head_problems[queue] = told
            if told:
                self._log("error", "head_failed", queue=queue, reason=told)
        return problem

    def _probe(self) -> None:
        with suppress(Reincarnated):  # it answers
            self._ownership.read_lease(GroupKey(self.heads.namespace, "-", "-"))

    def _drop(self, key: GroupKey, runtime: GroupRuntime) -> None:
        try:
            runtime.drop()
        except Exception as problem:  # noqa: BLE001 - nobody asks this thread what became of it
            self._log("warning", "drop_failed", group=str(key), reason=one_line(problem))

    def _listen(self) -> float:
        """Hand on what the ownership store tells. One that cannot tell says once that there may be news of any group,
        and then groups are looked at as in quiet times.
        """
        asked_s = time.monotonic()
        news = self._ownership.wait_news(self._settings.renewal_s)
        knew, self._has_news = self._has_news, news is not None
        if news or (news is None and knew):
            self._schedule.call(partial(self._take_news, news))
        return 0.0 if news is not None else max(0.05, self._settings.renewal_s - (time.monotonic() - asked_s))


def _refuse(problem: Exception) -> NoReturn:
    raise problem
