"""One simulated world from beginning to end: a queue in one store, the processes of a plan, and what befalls them."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Self

import partq
from tests.world import witness
from tests.world.accidents import ACCIDENTS, Accidents
from tests.world.bucket import Bucket, opened
from tests.world.clients import Application
from tests.world.facts import DROPPED, Befell, Fact, Lying, Place, Removed, Resolved, Violation, demand, told
from tests.world.interruptions import Interrupter
from tests.world.judge import Judge
from tests.world.ledger import Ledger
from tests.world.log_plan import GRACE_S
from tests.world.logs import Keeper, Visitor, Writer
from tests.world.machine import EPOCH_S, Machine
from tests.world.ownership import Coordinator, OwnershipServer
from tests.world.payloads import COLUMNS, text_of
from tests.world.plan import APPLICATION, Plan
from tests.world.processes import RETRY_S, Actor, Flow, Operator, Publisher, patiently
from tests.world.queries import Query
from tests.world.query_plan import RESULTS, SUBSCRIPTIONS, queues_of
from tests.world.scheduler import SECOND_US, Scheduler
from tests.world.spark import Around
from tests.world.store import Journey, Road, TrueStore, Weather

MOST_STEPS: Final = 2_000_000
QUEUE: Final = "orders"
READERS: Final = "audit"
"""The group of the second queue, into which queries write."""


class World:
    """Everything of one plan. What happened is in `facts`."""

    GROUP: Final = "billing"
    QUEUE: Final = QUEUE

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.facts: list[Fact] = []
        self.count = itertools.count(1)  # of answers, writes and processes
        self.is_calm = False
        self.results = queues_of(plan.query.sink) if plan.queries else ()
        how = plan.query.how
        self.groups = {self.GROUP: QUEUE} if how.grouped else {}
        self.groups |= {READERS: RESULTS} if plan.readers else {}
        self.kept = frozenset(self.groups if how.keeps else self.groups.keys() - {self.GROUP})
        # Where switches between lines are drawn, a process may stand still anywhere; and writes are on their way.
        slack_s = 5.0 if any(each.what in {"switches", "cut"} for each in plan.happening) else plan.way_us / 1e6
        self.judge = Judge(
            within_s=plan.settled_s,
            session_timeout_s=plan.session_timeout_s,
            most=plan.max_messages,
            slack_s=slack_s,
            kept=self.kept,
            grouped=frozenset(self.groups),
            is_shared=plan.ownership != "none",
        )
        # What an application has not acknowledged by hand comes again, marked, without an accident.
        by_hand = how.by_hand if plan.queries else plan.manual and plan.kind == "application"
        self.judge.had_accident = plan.is_hasty or by_hand
        # What a flow has had first a query may get later, when a person has taken it back.
        is_mixed = bool(plan.flows) and any(each.what == "rewind" for each in plan.happening)
        self.judge.keeps_order = how.keeps and not is_mixed and not plan.query.sink.startswith("two ")
        self.scheduler = Scheduler(random.Random(f"world order {plan.seed}"))
        self.machine = Machine(self.scheduler, f"world {plan.seed}", self._open, dict(plan.log.sizes))
        self.weathers = {"objects": Weather(way_us=plan.way_us, doubles=True), "ownership": Weather(way_us=plan.way_us)}
        self.interrupter = Interrupter(self.scheduler)
        journey = partial(Journey, self.machine, self.interrupter, self._landed)
        self._journeys = {name: journey(each) for name, each in self.weathers.items()}
        paid = "s3://world" if plan.seed % 2 else "azure://world"
        self.url = f"{paid if plan.paid else 'file:///world'}/{plan.seed}"
        self._folders = {f"default/{queue}/{group}": group for group, queue in self.groups.items()}
        etags = random.Random(f"world etags {plan.seed}")
        self.store = TrueStore(self.machine, etags, url=self.url, seen=self._seen)
        self.road = Road(self.store, self._journeys["objects"])
        is_bucket = self.url.startswith("s3:")
        self.bucket = Bucket(self.url, self.machine.true_unix_s, etags, self._seen) if is_bucket else None
        grace_us = round((GRACE_S - 2 * plan.skew_s) * SECOND_US)
        folder = f"default/{QUEUE}/"
        self.ledger = Ledger(
            self.bucket or self.store, folder, lambda: self.now_us, epoch_us=EPOCH_S * SECOND_US, grace_us=grace_us
        )
        tokens = random.Random(f"world tokens {plan.seed}")
        self.server = OwnershipServer(self.machine, tokens, self._journeys["ownership"], self._documented)
        self._since: dict[str, int] = {}  # of each group that is there
        self.actors: dict[str, Actor] = {}
        self.around = Around(self.machine)
        self.accidents = Accidents(self)
        self._violation: Violation | None = None
        self.is_over = False

    # --- what processes ask for ---------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """True time."""
        return self.scheduler.now_us

    @property
    def history(self) -> str:
        """A digest of all that happened."""
        return self.scheduler.history

    def ownership_of(self, queue: str = "") -> str:
        """How its group is shared; by those who share, if none is named. Readers of results do in any case."""
        return "store" if queue != QUEUE and self.plan.ownership == "none" else self.plan.ownership

    def queue(self, name: str = QUEUE) -> partq.Queue:
        """As an application has it."""
        return partq.Queue(name, store=self.url, retry_timeout_s=RETRY_S)

    def take(self, fact: Fact) -> None:
        """Something happened. The world ends where a rule is broken, and production code hears nothing of it."""
        self.facts.append(fact)
        self.scheduler.note(fact)
        self.counts[type(fact).__name__] += 1
        if self._violation is None:
            try:
                self.judge.take(fact)
            except Violation as violation:
                self._violation = violation

    def _open(self, url: str, retry_timeout_s: float) -> Any:
        demand(url == self.url, "another store was opened:", url)
        if self.bucket is None:
            return self.road.opened(retry_timeout_s)
        return opened(self.bucket, self._journeys["objects"], retry_timeout_s)

    def _seen(self, name: str, content: bytes | Mapping[str, str] | None) -> None:
        """Of the objects."""
        if self.plan.log.keepers and not isinstance(content, Mapping):
            self._note(name, content)
        if content is None:
            if name.endswith("/ownership/state"):
                self.befell(DROPPED)
            return
        folder, _, partition = name.rpartition("/")
        group = self._folders.get(folder.removesuffix("/checkpoint"))
        if group is not None and partition.isdecimal() and not isinstance(content, bytes):
            if int(content.get("since", 0)) == self._since.get(group):  # else it is of a group that was removed
                self.take(witness.checkpointed(self.now_us, group, int(partition), content))
            return
        if isinstance(content, bytes) and name.endswith("/_head.json"):
            self._headed(name, content)
        for folder, group in self._folders.items():
            if name.startswith(f"{folder}/ownership/"):
                self._written(group, name.removeprefix(f"{folder}/ownership/"), content, "objects")

    def _headed(self, name: str, content: bytes) -> None:
        since = witness.groups_of(content, name)
        for group, queue in self.groups.items():
            if name == f"default/{queue}/_head.json":
                if group in self._since and self._since[group] != since.get(group):
                    self.take(Removed(self.now_us, group))
                    del self._since[group]
                if group in since:
                    self._since[group] = since[group]

    def _note(self, name: str, content: bytes | None) -> None:
        try:
            self.ledger.deleted(name) if content is None else self.ledger.swapped(name, content)
        except Violation as violation:  # production code hears nothing of it
            self._violation = self._violation or violation

    def is_busy(self) -> bool:
        """Whether somebody still works on the log."""
        return not all(self.actors[each].is_done for each in (*self.plan.log.writers, *self.plan.log.keepers))

    def _documented(self, folder: object, name: str, value: Any) -> None:
        """Of the server that keeps ownership."""
        if value is None:
            self.befell(DROPPED)
        else:
            self._written(self._folders[str(folder)], name, value, "ownership")

    def _written(self, group: str, name: str, value: Any, where: str) -> None:
        for fact in witness.written(self.now_us, group, name, value, self._journeys[where].sender):
            self.take(fact)

    def _landed(self, what: str) -> None:
        self.counts[what] += 1
        if what == "landed late":
            self.befell(what)

    def resolve(self, queue: str, writer: str, batch: int, *, is_published: bool) -> None:
        """A person says what a refused batch is."""
        resolve = partial(self.queue(queue).resolve, writer=writer, batch=batch, published=is_published)
        try:
            patiently(resolve, self.machine.sleep)
        finally:  # whoever is interrupted in it may have said it
            self.take(Resolved(self.now_us, writer, batch, is_published))

    def befell(self, what: str, whom: str = "") -> None:
        # Spark ends a query without a word to its source about the last batch.
        is_accident = what in ACCIDENTS or whom in self.plan.queries
        self.take(Befell(self.now_us, what, whom, is_accident))

    # --- from beginning to end ----------------------------------------------------------------------------------------

    def play(self) -> Self:
        """Raises `Violation`, or whatever the code under test should not have raised."""
        hook = sys.unraisablehook
        gc.disable()  # what it would end at some moment is not a matter of the seed
        try:
            logging.disable(logging.CRITICAL)  # each fault would be logged
            with self.around.in_place(), self.machine.in_place():
                try:
                    self._play()
                finally:
                    self.interrupter.disarm_all()
                    self.scheduler.end()
        finally:
            sys.unraisablehook = hook
            logging.disable(logging.NOTSET)
            gc.enable()
        self.counts["marked"] = sum(group.marked for group in self.judge.groups.values())
        self.counts["rewound"] = sum(len(group.rewound) for group in self.judge.groups.values())
        self.counts["marked for nothing"] = sum(group.needless for group in self.judge.groups.values())
        self.counts["again"] = sum(group.again for group in self.judge.groups.values())
        return self

    def _play(self) -> None:
        observer = self.machine.host_of(self.scheduler.process("observer"))
        self.machine.begin(observer, self._observe)
        while not self.is_over:
            self.scheduler.run(self.now_us + round(self.plan.look_s * SECOND_US), MOST_STEPS)
            if self._violation is not None:
                raise self._violation
            for error in self.machine.deaths:
                raise error

    def _observe(self) -> None:
        """A process without trouble, which prepares all, and looks whether all is done."""
        plan = self.plan
        for queue in (QUEUE, *self.results):
            made = partq.create_queue(
                queue,
                partitions=plan.partitions if queue == QUEUE else 2,
                store=self.url,
                rebalance_delay_s=plan.rebalance_delay_s,
                max_handoff_time_s=plan.max_handoff_time_s,
                schema=COLUMNS if plan.log.is_typed else None,
                key="key" if plan.log.is_typed else None,
            )
            if plan.query.sink == "fan-out":
                made.subscribe(*SUBSCRIPTIONS.get(queue, ()))
        for group, queue in self.groups.items():
            self.queue(queue).create_group(group, starting="earliest", ownership=self.ownership_of(queue))
        self._begin_all()
        self.accidents.begin()
        over_us = self.now_us + round(max((each.at_s + each.for_s for each in plan.happening), default=0.0) * SECOND_US)
        # Hours in which an idle flow alone is left would be steps for nothing.
        while self.now_us <= over_us and (self.is_busy() or not plan.log.keepers):
            self.machine.sleep(plan.look_s)
        self.accidents.disarm()
        self._calm()
        self._await("the publishers have not ended", lambda: all(self.actors[each].is_done for each in plan.publishers))
        self._await("those who work on the log have not ended", lambda: not self.is_busy())
        people = [each for each in self.actors.values() if isinstance(each, Operator)]
        self._await("the operators have not ended", lambda: all(each.is_done for each in people))
        # Each message may be a batch, and its handler slow.
        handling_s = len(plan.publishers) * plan.messages * plan.handles_s
        self._await("not all is acknowledged", self._is_acknowledged, handling_s)
        for actor in list(self.actors.values()):
            actor.leave()
        self._await("there are processes left", lambda: not any(each.is_alive for each in self.actors.values()))
        try:
            if plan.log.keepers:
                self._look_back()
            logs = {queue: self._log(queue) for queue in (QUEUE, *self.results)}
            self.judge.complete(logs, {**self.groups, **dict.fromkeys(self._alone(), QUEUE)}, source=QUEUE)
        except Violation as violation:
            self._violation = violation
        self.is_over = True

    def _await(self, problem: str, is_so: Callable[[], bool], more_s: float = 0.0) -> None:
        """Within what the timers allow, and `more_s`, from the last thing on that befell anybody."""
        begun_us, plan = self.now_us, self.plan
        most_s = plan.settled_s + plan.messages * plan.pause_s * 2 + 20.0 + more_s
        while not is_so():
            waited_s = (self.now_us - max(begun_us, self.judge.befell_us[-1])) / SECOND_US
            if waited_s > most_s:
                self._violation = self._violation or Violation(f"{problem} after {waited_s:.0f} s")
            self.machine.sleep(plan.look_s)

    def _begin_all(self) -> None:
        plan = self.plan
        kinds = {APPLICATION: Application, "visitor": Visitor}
        actors: list[Actor] = [Coordinator(self, name) for name in plan.coordinators]
        actors += [Publisher(self, name) for name in plan.publishers]
        actors += [kinds.get(name, Flow)(self, name, QUEUE, self.GROUP) for name in plan.flows]
        actors += [Writer(self, name) for name in plan.log.writers]
        actors += [Keeper(self, name) for name in plan.log.keepers]
        actors += [Query(self, name) for name in plan.queries]
        actors += [Flow(self, name, RESULTS, READERS) for name in plan.readers]
        for actor in actors:
            self._begin(actor)

    def _begin(self, actor: Actor) -> None:
        self.actors[actor.name] = actor
        self.scheduler.push(actor.start, 0)

    def _is_acknowledged(self) -> bool:
        """The results last, because acknowledging the source may need them to be written."""
        others = [*(self.groups.keys() - self.kept), *self._alone()]
        if others and not self.judge.have_done(sorted(others), self._log(QUEUE)):
            return False
        for group in sorted(self.kept, key=lambda group: (self.groups[group] != QUEUE, group)):
            found = self.queue(self.groups[group]).checkpoints(group).partitions
            if any(getattr(each, "lag", 0) for each in found):
                return False
        return True

    def _alone(self) -> list[str]:
        """Queries without a group, which are groups of their own."""
        if self.plan.query.how.grouped:
            return []
        found = [each for each in self.actors.values() if isinstance(each, Query) and not each.is_retired]
        return [each.flow(load) for each in found for load in range(self.plan.query.loads)]

    def _calm(self) -> None:
        """Nothing befalls anybody any more, and applications behave."""
        self.is_calm = True
        self.befell("calm")
        for actor in list(self.actors.values()):
            if isinstance(actor, Query):
                actor.calm()

    def _look_back(self) -> None:
        """After days of collection all that is needed can be read, and nothing else is there."""
        queue = self.queue()
        for _ in range(4):
            self.machine.sleep(GRACE_S + 1.0)
            queue.collect(grace_s=GRACE_S)
        there = {(each.partition, each.offset): (each.key, text_of(each.value)) for each in queue.browse()}
        self.ledger.complete(there)
        rewound = self.judge.groups[self.GROUP].rewound
        for place in [place for place, at_us in rewound.items() if self.ledger.may_be_gone(place, at_us)]:
            del rewound[place]

    def _log(self, queue: str) -> dict[Place, Lying]:
        if self.plan.log.keepers:
            return self.ledger.lying
        return {
            (each.partition, each.offset): Lying(each.key, each.value.decode(), _true_us(each.timestamp))
            for each in self.queue(queue).browse()
        }


def _true_us(of: datetime) -> int:
    return round((of.timestamp() - EPOCH_S) * SECOND_US)


def story(plan: Plan, most: int) -> Iterator[str]:
    """The last facts of a plan that fails."""
    world = World(plan)
    yield f"{plan}"
    yield from (f"event {number}: {event}" for number, event in enumerate(plan.events))
    try:
        world.play()
    except BaseException as error:  # noqa: BLE001 - it was told already
        yield from (str(told(fact)) for fact in world.facts[-most:])
        yield f"{type(error).__name__}: {error}"
