"""One simulated world from beginning to end: a queue in one store, the processes of a plan, and what befalls them."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import partq
from partq_spark.client import PartitionCheckpoint
from partq_spark.group.checkpoints import checkpoint_folder
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.retrying import Retrying
from tests.support.judge import Violation, demand
from tests.support.scheduler import SECOND_US, Crash, Scheduler
from tests.world.facts import Befell, Checkpointed, Fact, Lying, told
from tests.world.interruptions import Interrupter
from tests.world.judge import Judge, Place
from tests.world.machine import EPOCH_S, Host, Machine
from tests.world.outcome import Outcome, quiet
from tests.world.plan import Event, Plan
from tests.world.processes import RETRY_S, Actor, Coordinator, Flow, Operator, Publisher
from tests.world.queries import RESULTS, Query, as_in_spark
from tests.world.store import Road, TrueStore, Weather

MOST_STEPS: Final = 2_000_000
QUEUE: Final = "orders"
READERS: Final = "audit"
"""The group of the second queue, into which queries write."""

_ACCIDENTS: Final = ("rewind", "kill", "freeze", "storm", "outage", "landed late", "forced")


class World:
    """Everything of one plan. What happened is in `facts`."""

    GROUP: Final = "billing"
    QUEUE: Final = QUEUE

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.facts: list[Fact] = []
        self.judge = Judge(within_s=plan.settled_s)
        self.scheduler = Scheduler(random.Random(f"world order {plan.seed}"))
        self.machine = Machine(self.scheduler, f"world {plan.seed}", self._open)
        self.weather = Weather(way_us=plan.way_us)
        self.url = f"{'azure://world' if plan.paid else 'file:///world'}/{plan.seed}"
        self.groups = {self.GROUP: QUEUE, **({READERS: RESULTS} if plan.queries else {})}
        folders = {checkpoint_folder(GroupKey("default", queue, group)): group for group, queue in self.groups.items()}
        self._folders = folders
        etags = random.Random(f"world etags {plan.seed}")
        self.store = TrueStore(self.machine, etags, url=self.url, seen=self._seen)
        self.road = Road(self.store, self.machine, self.weather, self._landed)
        self.actors: dict[str, Actor] = {}
        self.contexts: dict[Host, Any] = {}  # of the tasks of queries
        self.interrupter = Interrupter(self.scheduler)
        self.chance = random.Random(f"world chance {plan.seed}")
        self._violation: Violation | None = None
        self._is_over = False

    # --- what processes ask for ---------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """True time."""
        return self.scheduler.now_us

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

    def _open(self, url: str, retry_timeout_s: float) -> ObjectStore:
        demand(url == self.url, "another store was opened:", url)
        return Retrying(self.road, retry_timeout_s)

    def _seen(self, name: str, metadata: Mapping[str, str]) -> None:
        folder, slash, partition = name.rpartition("/")
        group = self._folders.get(folder + slash)
        if group is not None and partition.isdecimal():
            epoch, offset, below = (int(metadata.get(each, 0)) for each in ("epoch", "offset", "redelivered_below"))
            flow, instance = metadata.get("flow", ""), metadata.get("instance", "")
            self.take(Checkpointed(self.now_us, group, int(partition), epoch, flow, instance, offset, below))

    def _landed(self, what: str) -> None:
        self.counts[what] += 1
        if what == "landed late":
            self._befell(what)

    # --- what befalls them --------------------------------------------------------------------------------------------

    def _befell(self, what: str, whom: str = "") -> None:
        # Spark ends a query without a word to its source about the last batch.
        is_accident = what in _ACCIDENTS or (what == "stop" and whom in self.plan.queries)
        self.take(Befell(self.now_us, what, whom, is_accident))

    def _happen(self, event: Event) -> None:
        """From a timer."""
        self.counts[event.what] += 1
        self._befell(event.what, event.whom)
        lasts_us = round(event.for_s * SECOND_US)
        actor = self.actors.get(event.whom)
        after: Callable[[], None] | None = None
        match event.what:
            case "kill" | "stop":
                assert actor is not None
                (actor.kill if event.what == "kill" else actor.stop)()
                after = actor.start
            case "freeze":
                if actor is not None and actor.process is not None:
                    actor.process.freeze(lasts_us)
            case "storm":
                self.weather.bad = event.rate
                after = self._clear
            case "outage":
                self.weather.down_us = max(self.weather.down_us, self.now_us + lasts_us)
            case "cut":
                if actor is not None and actor.is_alive:
                    self._arm(actor, event.number, partial(self._cut, actor))
            case "switches":
                self._switch(self.now_us + lasts_us)
            case _:
                person = Operator(self, f"{event.what} {len(self.actors)}", event)
                self.actors[person.name] = person
                person.start()

        def over() -> None:
            if after is not None:
                after()
            self._befell("over", event.whom or event.what)

        self.scheduler.push(over, lasts_us)

    def _clear(self) -> None:
        self.weather.bad = 0.0

    def _arm(self, actor: Actor, at: int, act: Callable[[], None]) -> None:
        """At the `at`-th place from now on at which another thread, or a signal, may come in there."""
        assert actor.process is not None
        if actor.process.strands:
            self.interrupter.arm(self.chance.choice(actor.process.strands), at, act)

    def _cut(self, actor: Actor) -> None:
        """By its own strand, between two lines: the process is killed, and is there again some time later."""
        self.counts["cut between two lines"] += 1
        self._befell("kill", actor.name)
        actor.kill()
        self.scheduler.push(partial(self._again, actor), 2 * SECOND_US)
        raise Crash

    def _again(self, actor: Actor) -> None:
        actor.start()
        self._befell("over", actor.name)

    def _switch(self, until_us: int) -> None:
        """From now on, at any line, others may go on for a moment."""
        if self.now_us < until_us:
            actor = self.chance.choice([each for each in self.actors.values() if each.is_alive] or [None])
            if actor is not None:
                self._arm(actor, self.chance.choice((5, 50, 500)), self._pause)
            self.scheduler.push(partial(self._switch, until_us), 100_000)

    def _pause(self) -> None:
        self.counts["switched between two lines"] += 1
        self.scheduler.sleep_us(self.chance.choice((0, 1000, 200_000)))

    # --- from beginning to end ----------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """Raises `Violation`, or whatever the code under test should not have raised."""
        gc.disable()  # what it would end at some moment is not a matter of the seed
        try:
            with quiet(), as_in_spark(self.machine, self.contexts), self.machine.in_place():
                try:
                    self._play()
                finally:
                    self.interrupter.disarm_all()
                    self.scheduler.end()
        finally:
            gc.enable()
        self.counts["marked"] = sum(group.marked for group in self.judge.groups.values())
        self.counts["rewound"] = sum(len(group.rewound) for group in self.judge.groups.values())
        self.counts["marked for nothing"] = sum(group.needless for group in self.judge.groups.values())
        self.counts["again"] = sum(group.again for group in self.judge.groups.values())
        return Outcome(
            seed=self.plan.seed,
            steps=self.scheduler.steps,
            simulated_us=self.now_us,
            history=self.scheduler.history,
            facts=len(self.facts),
            counts=self.counts,
        )

    def _play(self) -> None:
        observer = self.machine.host_of(self.scheduler.process("observer"))
        self.machine.begin(observer, self._observe)
        while not self._is_over:
            self.scheduler.run(self.now_us + SECOND_US, MOST_STEPS)
            if self._violation is not None:
                raise self._violation
            for error in self.machine.deaths:
                raise error

    def _observe(self) -> None:
        """A process without trouble, which prepares all, and looks whether all is done."""
        plan = self.plan
        for queue, partitions in ((QUEUE, plan.partitions), (RESULTS, 2))[: len(self.groups)]:
            partq.create_queue(
                queue,
                partitions=partitions,
                store=self.url,
                rebalance_delay_s=plan.rebalance_delay_s,
                max_handoff_time_s=plan.max_handoff_time_s,
            )
        for group, queue in self.groups.items():
            self.queue(queue).create_group(group, starting="earliest", ownership="store")
        for name in plan.coordinators:
            self._begin(Coordinator(self, name))
        for name in plan.publishers:
            self._begin(Publisher(self, name))
        for name in plan.flows:
            self._begin(Flow(self, name, QUEUE, self.GROUP))
        for name in plan.queries:
            self._begin(Query(self, name))
        for name in plan.readers:
            self._begin(Flow(self, name, RESULTS, READERS))
        ends_s = 0.0
        for event in plan.happening:
            self.scheduler.push(partial(self._happen, event), round(event.at_s * SECOND_US))
            ends_s = max(ends_s, event.at_s + event.for_s)
        self.machine.sleep(ends_s + 1.0)
        self._await("the publishers have not ended", lambda: all(self.actors[each].is_done for each in plan.publishers))
        people = [each for each in self.actors.values() if isinstance(each, Operator)]
        self._await("the operators have not ended", lambda: all(each.is_done for each in people))
        self._await("not all is acknowledged", self._is_acknowledged)
        for name in (*plan.flows, *plan.queries, *plan.readers, *plan.coordinators):
            self.actors[name].is_done = True
            self.actors[name].stop()
        self._await("there are processes left", lambda: not any(each.is_alive for each in self.actors.values()))
        try:
            self.judge.complete({group: self._log(queue) for group, queue in self.groups.items()})
        except Violation as violation:
            self._violation = violation
        self._is_over = True

    def _await(self, problem: str, is_so: Callable[[], bool]) -> None:
        """Within what the timers allow, from the last thing on that befell anybody."""
        begun_us = self.now_us
        while not is_so():
            waited_s = (self.now_us - max(begun_us, self.judge.befell_us[-1])) / SECOND_US
            if waited_s > self.plan.settled_s + self.plan.messages * self.plan.pause_s * 2 + 20.0:
                self._violation = self._violation or Violation(f"{problem} after {waited_s:.0f} s")
            self.machine.sleep(1.0)

    def _begin(self, actor: Actor) -> None:
        self.actors[actor.name] = actor
        self.scheduler.push(actor.start, 0)

    def _is_acknowledged(self) -> bool:
        """The results last, because acknowledging the source may need them to be written."""
        for group, queue in self.groups.items():
            found = self.queue(queue).checkpoints(group).partitions
            if any(isinstance(each, PartitionCheckpoint) and each.lag for each in found):
                return False
        return True

    def _log(self, queue: str) -> dict[Place, Lying]:
        return {
            (each.partition, each.offset): Lying(each.key, each.value.decode(), _true_us(each.timestamp))
            for each in self.queue(queue).browse()
        }


def _true_us(of: datetime) -> int:
    return round((of.timestamp() - EPOCH_S) * SECOND_US)


def run_seed(seed: int) -> Outcome:
    """One world from beginning to end."""
    return World(Plan.draw(seed)).play()


def story(plan: Plan, most: int) -> Iterator[str]:
    """The last facts of a plan that fails."""
    world = World(plan)
    yield f"{plan}"
    yield from (f"event {number}: {event}" for number, event in enumerate(plan.events))
    try:
        world.play()
    except BaseException as error:  # noqa: BLE001 - it was told already
        yield from map(told, world.facts[-most:])
        yield f"{type(error).__name__}: {error}"
