"""All groups of one namespace: which there are, when each is looked at, and what becomes of one that fails.

The main thread only schedules: it never waits for a store. Steps and looks at heads run in a few threads, a group never
in two at once; what they came to, news and the wish to end arrive in one inbox. What a step does is `runtime`'s.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from coordinator.fences import Pool, RunAll, in_a_row
from coordinator.heads import GroupFacts, Heads
from coordinator.health import Status
from coordinator.housekeeper import Housekeeper
from coordinator.inbox import TURN_S, Asked, Inbox, Looked, Message, News, Stepped, Stop
from coordinator.leadership import StoreLife, Timing
from coordinator.logs import Log
from coordinator.runtime import GroupRuntime
from coordinator.schedule import FIRST_RETRY_S, Entry
from coordinator.settings import Settings
from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.effects import Effects
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import HEAD, Ownership, Reincarnated
from partq_spark.objects.api import ObjectStore

STOP_WAIT_S: Final = 1.2
"""For what is under way and for giving up the leases; a lease that is not given up in time ends by itself."""

_STUCK_AFTER_S: Final = 10.0
_GONE_AFTER_LOOKS: Final = 2
_UNKNOWN_LOOK_S: Final = 1.0


class Service:
    """The coordinator of one namespace."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: ObjectStore,
        ownership: Ownership,
        log: Log,
        effects: Effects | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ownership = ownership
        self._log = log
        self._effects = effects or Effects()
        self._timing = Timing(
            lease_timeout_s=settings.lease_timeout_s,
            renewal_s=settings.renewal_s,
            handoff_look_s=settings.handoff_look_s,
            frozen_after_s=settings.frozen_after_s,
            assumed_session_timeout_s=settings.assumed_session_timeout_s,
            retry_most_s=settings.retry_most_s,
        )
        self._life = StoreLife(ownership)
        self._heads = Heads(store, settings.namespace, ownership=ownership.url)
        self._housekeeper = Housekeeper(
            settings,
            store=store,
            ownership=ownership,
            life=self._life,
            heads=self._heads,
            effects=self._effects,
            log=log,
        )
        self._workers = ThreadPoolExecutor(settings.group_threads, thread_name_prefix="group")
        self._fences = Pool(settings.fence_threads, "fence")
        # On a disk a look takes microseconds, and handing it to another thread takes more.
        self._side_by_side: RunAll = in_a_row if store.url.startswith("file:") else self._fences.run
        self._inbox = Inbox()
        self._groups: dict[GroupKey, Entry] = {}
        self._stopping = threading.Event()
        self._heads_due_s = 0.0
        self._heads_running = False
        self._heads_problem = "no queue was looked at yet"
        self._head_problems: dict[str, str] = {}  # by queue, as last told
        self._ownership_problem = ""
        self._unknown: dict[GroupKey, float] = {}

    # --- from outside -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End soon. May be called by a signal handler."""
        self._inbox.put(Stop())

    def status(self) -> Status:
        """For the health server, from another thread."""
        groups = list(self._groups.values())
        failing = [group for group in groups if group.failures]
        looked_s = time.monotonic() - self._inbox.turned_s
        problem = self._ownership_problem or self._heads_problem or next((group.problem for group in failing), "")
        problem = problem or next((stuck for group in groups if (stuck := group.runtime.stuck)), "")
        out_of_order = bool(self._ownership_problem or self._heads_problem) or (
            bool(failing) and len(failing) == len(groups)
        )
        return Status(
            alive=looked_s < _STUCK_AFTER_S,
            ready=not out_of_order and looked_s < _STUCK_AFTER_S,
            looked_s=round(looked_s, 3),
            groups=len(groups),
            leading=sum(group.runtime.leading for group in groups),
            failing=len(failing),
            problem=problem,
            housekeeper=self._housekeeper.leading,
        )

    def run(self) -> None:
        """Until `stop`. Raises `Invalid` if the ownership store can never be used as configured."""
        if self._reach_ownership():
            threading.Thread(target=self._listen, name="news", daemon=True).start()
            if self._settings.housekeeping:
                self._housekeeper.start()
            while not self._stopping.is_set():
                self._take_inbox(self._begin_what_is_due())
        self._end()

    # --- beginning and ending -----------------------------------------------------------------------------------------

    def _reach_ownership(self) -> bool:
        """Ask the ownership store for its incarnation until it answers; False if the process is to end before."""
        pause_s = FIRST_RETRY_S
        while True:
            self._workers.submit(self._ask)
            answer = self._get(math.inf)
            if not isinstance(answer, Asked):
                return False
            if answer.problem is None:
                self._ownership_problem = ""
                return True
            if not isinstance(answer.problem, Unavailable):
                raise answer.problem
            if self._ownership_problem != str(answer.problem):
                self._log("warning", "ownership_unavailable", reason=str(answer.problem))
            self._ownership_problem = str(answer.problem)
            if self._get(self._effects.uniform(pause_s / 2, pause_s)) is not None:
                return False
            pause_s = min(pause_s * 2, self._timing.retry_most_s)

    def _get(self, wait_s: float) -> Message | None:
        """The next message; None when the time is over. One that says to end is heeded here."""
        message = self._inbox.get(wait_s)
        if isinstance(message, Stop):
            self._stopping.set()
        return message

    def _end(self) -> None:
        """Let what runs come to its end, give up the leases, within `STOP_WAIT_S`."""
        deadline_s = time.monotonic() + STOP_WAIT_S
        self._housekeeper.stop()
        self._log("info", "stopping", leading=sum(group.runtime.leading for group in self._groups.values()))
        left = 0
        for key, group in self._groups.items():
            if not group.running:
                left += self._begin_release(key, group)
        released = 0
        while left or any(group.running for group in self._groups.values()):
            message = self._inbox.get(deadline_s - time.monotonic())
            if message is None:
                break
            if not isinstance(message, Stepped):
                continue
            group = self._groups[message.key]
            if group.running:
                group.running = False
                left += self._begin_release(message.key, group)
            else:
                left -= 1
                released += not message.error
        self._housekeeper.join(deadline_s - time.monotonic())
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._fences.close()
        self._log("info", "stopped", leases_released=released)

    def _begin_release(self, key: GroupKey, group: Entry) -> int:
        if group.runtime.leading:
            self._workers.submit(self._work, key, partial(_release, group.runtime))
            return 1
        return 0

    # --- the schedule -------------------------------------------------------------------------------------------------

    def _begin_what_is_due(self) -> float:
        """Start whatever is due; returns the seconds until something else is."""
        now_s = self._effects.now_s()
        if now_s >= self._heads_due_s and not self._heads_running:
            self._heads_running = True
            self._workers.submit(self._look_at_heads, None)
        next_s = self._heads_due_s if not self._heads_running else now_s + TURN_S
        for key, group in self._groups.items():
            if group.running:
                continue
            if group.due_s <= now_s:
                group.running = True
                self._workers.submit(self._work, key, partial(_step, group.runtime, group.facts))
            elif group.due_s < next_s:
                next_s = group.due_s
        return min(max(0.0, next_s - now_s), TURN_S)

    def _take_inbox(self, wait_s: float) -> None:
        """Wait for a message, then take all that are there."""
        message = self._get(wait_s)
        while message is not None:
            now_s = self._effects.now_s()
            match message:
                case Stepped():
                    self._take_step(message, now_s)
                case Looked():
                    self._take_heads(message, now_s)
                case News():
                    self._take_news(message, now_s)
                case _:
                    pass
            message = self._get(0.0)

    def _take_step(self, message: Stepped, now_s: float) -> None:
        group = self._groups[message.key]
        if message.error:
            if group.failed(message.error, now_s, self._timing.retry_most_s, self._effects.uniform):
                self._log("error", "group_failed", group=str(message.key), reason=message.error)
        elif failures := group.stepped(message.next_s, now_s):
            self._log("info", "group_recovered", group=str(message.key), failures=failures)

    def _take_news(self, message: News, now_s: float) -> None:
        if message.error != self._ownership_problem:
            self._log("warning" if message.error else "info", "news", reason=message.error or "they come again")
            self._ownership_problem = message.error
        for key in self._groups if message.groups is None else message.groups:
            group = self._groups.get(key)
            if group is not None:
                group.woken(now_s)
            elif key.namespace == self._heads.namespace and key.group == HEAD:
                self._workers.submit(self._look_at_heads, key.queue)
            elif key.namespace == self._heads.namespace and now_s >= self._unknown.get(key, now_s):
                # Made a moment ago; and if it was not, it is not asked for again at once.
                if len(self._unknown) > 1000:
                    self._unknown.clear()
                self._unknown[key] = now_s + _UNKNOWN_LOOK_S
                self._workers.submit(self._look_at_heads, key.queue)

    def _take_heads(self, message: Looked, now_s: float) -> None:
        if message.queue is None:
            self._heads_running = False
            self._heads_due_s = now_s + self._settings.heads_look_s
            if message.error != self._heads_problem:
                if message.error:
                    self._log("error", "heads_failed", reason=message.error)
                self._heads_problem = message.error
        found = self._heads.groups()
        for key, facts in found.items():
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = Entry(self._make_runtime(key), facts, now_s)
                self._log("info", "group_found", group=str(key), queue_id=facts.queue_id)
                continue
            group.missing = 0
            if group.facts is not facts and group.facts != facts:
                group.facts = facts
                group.woken(now_s)
        if message.queue is None and not message.error:
            self._drop_missing(set(self._groups) - set(found))

    def _drop_missing(self, missing: set[GroupKey]) -> None:
        """Groups that several looks did not show are gone; one look may have met a store in the making."""
        for key in missing:
            group = self._groups[key]
            group.missing += 1
            if group.missing >= _GONE_AFTER_LOOKS and not group.running:
                del self._groups[key]
                self._workers.submit(self._drop, key, group.runtime)

    # --- in the workers -----------------------------------------------------------------------------------------------

    def _make_runtime(self, key: GroupKey) -> GroupRuntime:
        return GroupRuntime(
            key,
            store=self._ownership,
            life=self._life,
            checkpoints=lambda facts: CheckpointStore(
                self._store, key, facts.queue_id, since=facts.since, effects=self._effects
            ),
            ends=lambda queue_id: self._heads.ends(key.queue, queue_id),
            facts_now=lambda: self._heads.now(key),
            name=self._settings.name,
            timing=self._timing,
            effects=self._effects,
            run=self._fences.run,
            log=self._log,
        )

    def _ask(self) -> None:
        try:
            self._life.ask()
        except Exception as problem:  # noqa: BLE001 - raised by the main thread, unless it may pass
            self._inbox.put(Asked(problem))
        else:
            self._inbox.put(Asked(None))

    def _work(self, key: GroupKey, work: Callable[[], float]) -> None:
        """One piece of work for a group; whatever goes wrong is that group's alone."""
        next_s, error = 0.0, ""
        try:
            next_s = work()
        except PartqError as problem:
            error = " ".join(str(problem).split())
        except Exception as problem:  # noqa: BLE001 - a mistake in here must not end the coordination of other groups
            error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        self._inbox.put(Stepped(key, next_s, error))

    def _look_at_heads(self, queue: str | None) -> None:
        error = ""
        try:
            if queue is None and self._ownership.url.startswith("redis"):
                self._life.look_at(self._store)
            names = [queue] if queue is not None else self._heads.queues()
            problems = [each for each in self._side_by_side(self._look_at, names) if each]
            # One that is damaged, say, is no reason to be out of order: its groups stay as they were last seen.
            error = problems[0] if problems and len(problems) == len(names) else ""
            if not self._groups:
                self._probe()  # nobody else asks, and `/readyz` is to know
        except PartqError as problem:
            error = " ".join(str(problem).split())
        except Exception as problem:  # noqa: BLE001 - the next look may do better
            error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        self._inbox.put(Looked(queue, error))

    def _probe(self) -> None:
        try:
            self._ownership.read_lease(GroupKey(self._heads.namespace, "-", "-"))
        except Reincarnated:
            known = self._life.value
            if known is not None:
                self._life.lost(known)

    def _look_at(self, queue: str) -> str:
        error = ""
        try:
            self._heads.look(queue)
        except PartqError as problem:
            error = " ".join(str(problem).split())
        if error != self._head_problems.get(queue, ""):
            self._head_problems[queue] = error
            if error:
                self._log("error", "head_failed", queue=queue, reason=error)
        return error

    def _drop(self, key: GroupKey, runtime: GroupRuntime) -> None:
        try:
            runtime.drop()
        except PartqError as problem:
            self._log("warning", "drop_failed", group=str(key), reason=str(problem))

    def _listen(self) -> None:
        """The news thread: hand on what the ownership store tells."""
        knows = True
        while not self._stopping.is_set():
            asked_s = time.monotonic()
            news: frozenset[GroupKey] | None = None
            error = ""
            try:
                news = self._ownership.wait_news(self._timing.renewal_s)
            except PartqError as problem:
                error = " ".join(str(problem).split())
            if self._stopping.is_set():
                return
            if news or error or (news is None and knows) or self._ownership_problem:
                self._inbox.put(News(frozenset() if error else news, error))
            knows = news is not None
            if not knows:
                # A store that cannot tell is looked at as in quiet times, not whenever it says so again.
                self._stopping.wait(max(0.05, self._timing.renewal_s - (time.monotonic() - asked_s)))


def _step(runtime: GroupRuntime, facts: GroupFacts) -> float:
    return runtime.step(facts).next_s


def _release(runtime: GroupRuntime) -> float:
    runtime.release()
    return 0.0
