"""One simulated world: its stores, publishers, coordinators and flows, and what becomes of them.

What flows do is in `consumers`, what must be true in `checker`. This module starts, stops and restarts.
"""

from __future__ import annotations

from functools import partial

from partq_spark.base.effects import Effects
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.documents.memory import DocumentsSnapshot
from partq_spark.group.documents.objects import ObjectDocuments
from partq_spark.group.model import AccessType, GroupState, Owner, Phase, RebalanceStatus
from partq_spark.group.ownership import Ownership
from partq_spark.group.ownership.encoding import STATE, decode_version
from tests.simulation import history as h
from tests.simulation.base import MOST_STEPS, SimulatedWorld
from tests.simulation.checker import Checker
from tests.simulation.consumers import Actor, Consumer
from tests.simulation.links import Link
from tests.simulation.objects import Objects, TrueObjects
from tests.simulation.plan import Plan
from tests.simulation.queue import KEYS, Head
from tests.simulation.stores import KEY, QUEUE_ID, SINCE, SimulatedOwnership
from tests.support.judge import demand
from tests.support.scheduler import SECOND_US, Process
from tests.world.outcome import Outcome, quiet

LOOK_US = SECOND_US // 4
NEVER_US = 10**12


class World(SimulatedWorld):
    """Everything of one seed. `conditional` False: checkpoints are swapped without comparing ETags."""

    def __init__(self, plan: Plan, *, conditional: bool = True, keep: int = 0) -> None:
        self.plan = plan
        self.checker = Checker()
        super().__init__(plan, "run", self.checker.judge, keep)
        self.head = Head(plan.settings, plan.partitions)
        self.objects = TrueObjects(
            self.scheduler,
            self._tokens,
            self.history,
            conditional=conditional,
        )
        self.checkpoints = CheckpointStore(self.objects, KEY, QUEUE_ID, since=SINCE, effects=Effects(time_us=lambda: 0))
        self._untold: set[int] = set()  # rewound by somebody who did not come to count it
        self._snapshots: list[DocumentsSnapshot] = []

    # --- processes ----------------------------------------------------------------------------------------------------

    def stores(self, process: Process, effects: Effects, *, flow: bool) -> tuple[Link, Ownership, Objects]:
        """A process' own ways to the stores."""
        link = Link(process, self.weather)
        objects = Objects(self.objects, link)
        if self.plan.objects:
            beside = ObjectDocuments(objects, effects)
            return link, SimulatedOwnership(beside, objects, link, self.history, effects, self.scheduler), objects
        return link, self.server.open(link, effects, group=KEY if flow else None), objects

    def start_coordinator(self, number: int) -> None:
        """The first one ends in good order after a while, if the plan says so."""
        life_us = self.plan.coordinator_life_us if number == 0 else 0
        stores = partial(self.stores, flow=False)
        self.run_coordinator(f"c{number}", KEY, self.head, stores, self.plan.restart_us, life_us)

    def start_flow(self, actor: Actor) -> None:
        """Begin a process for a flow identity; a process that ran it before may still be there, frozen or as a twin."""
        if actor.stopped:
            return  # it was begun again before its last process ended for good
        actor.begun += 1
        process = self.process(f"{actor.plan.name}/{actor.begun}")
        effects = self.effects(process)
        link, store, objects = self.stores(process, effects, flow=True)
        actor.processes.append(process)

        def again(delay_us: int) -> None:
            actor.processes.remove(process)
            if not actor.processes:  # nobody else runs under the name
                self.scheduler.push(partial(self.start_flow, actor), delay_us)

        def killed() -> None:
            self.counts["flow restarts"] += 1
            actor.stopped = actor.plan.deserter and len(actor.processes) == 1
            again(NEVER_US if actor.stopped else self.rng.randint(*self.plan.restart_us))

        def left() -> None:
            again(actor.plan.pause_us)

        process.on_killed = killed
        if not actor.plan.keeps:
            actor.mapping, actor.batch, actor.done = {}, {}, {}
        consumer = Consumer(
            plan=self.plan,
            actor=actor,
            process=process,
            link=link,
            store=store,
            objects=objects,
            head=self.head,
            effects=effects,
            history=self.history,
            weather=self.weather,
        )
        process.spawn("main", lambda: consumer.run(left))

    def start_twin(self, actor: Actor) -> None:
        """Somebody starts a second process under a name that is in use, or was until it froze."""
        if not self.weather.calm and not actor.stopped:
            self.counts["twins"] += 1
            self.start_flow(actor)

    # --- what happens by itself ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Now and then something for one of the partitions."""
        self._publish(self.rng.randrange(self.head.partitions), self.rng.randint(1, 8))
        if not self.weather.calm:
            self.scheduler.push(self.publish, int(self.plan.publish_us * (0.2 + 1.6 * self.rng.random())))

    def _publish(self, partition: int, count: int) -> None:
        partitions = self.head.partitions
        keys = tuple(self.rng.choices(range(partition, KEYS, partitions), k=count))
        self.history.add(h.Published(self.scheduler.now_us, partitions, keys))
        self.head.publish(keys)

    def alter(self) -> None:
        """Other settings, another access type."""
        self.counts["altered"] += 1
        self.head.alter(self.plan.settings_later)

    def resize(self, partitions: int) -> None:
        """More partitions, fewer, or those that were there before, whatever is under way (RES-01)."""
        before = self.head.partitions
        self.counts["grown" if partitions > before else "shrunk"] += partitions != before
        self.head.resize(partitions)

    def remember(self) -> None:
        """A copy of the ownership store that it may be set back to."""
        self._snapshots.append(self.server.memory.snapshot())
        if not self.weather.calm:
            self.scheduler.push(self.remember, self.rng.randint(SECOND_US // 2, 5 * SECOND_US))

    def lose(self, kind: str) -> None:
        """The ownership store forgets."""
        self.counts[kind] += 1
        self.history.add(h.StoreLost(self.scheduler.now_us, kind))
        if kind == "flush":
            self.server.memory.flush()
            return
        self.weather.lives += 1
        if kind == "empty":
            self.server.memory.restart_empty()
        else:
            self.server.memory.restore(self.rng.choice(self._snapshots))

    def rewind(self) -> None:
        """Somebody takes a partition back, and away from its owner, and counts that in the head."""
        partition = self.rng.randrange(len(self.head.ends))
        here = self.checker.partitions[partition]
        if not here.epoch:
            return
        self.counts["rewound"] += 1
        self.history.add(h.Rewinding(self.scheduler.now_us, partition))
        # At one instant: what a lost answer does to a rewind is not what is looked at here.
        to = self.rng.randint(max(0, here.offset - 20), here.offset)
        self.checkpoints.rewind(partition, to, fence=True, delivered=self.head.ends[partition])
        if self.rng.random() < 0.25:
            self.counts["rewinds cut off"] += 1
            self._untold.add(partition)
        else:
            self.scheduler.push(self.count_rewind, self.rng.choice((0, self.rng.randint(0, 2 * SECOND_US))))

    def count_rewind(self) -> None:
        """From now on coordinators can know of all rewinds before it."""
        self.head.count_rewind()
        self._untold.clear()

    def calm(self) -> None:
        """No faults from now on; frozen processes wake up."""
        super().calm()
        if any(partition >= self.head.partitions for partition in self._untold):
            self.count_rewind()  # nothing more comes into a partition that was removed: the command is repeated
        for partition in sorted(self._untold):
            self._publish(partition, 1)  # an owner that is idle learns of it with its next message

    # --- from beginning to end ----------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """Let everything happen, then wait until all is well. Raises `Violation`, or what should not have been
        raised.
        """
        plan, scheduler = self.plan, self.scheduler
        for number in range(plan.coordinators):
            scheduler.push(partial(self.start_coordinator, number), self.rng.randrange(SECOND_US))
        actors = [Actor(flow) for flow in plan.flows]
        for actor in actors:
            scheduler.push(partial(self.start_flow, actor), actor.plan.begins_us)
            if actor.plan.twin:
                scheduler.push(partial(self.start_twin, actor), self.rng.randrange(actor.plan.begins_us, plan.calm_us))
        for at_us, kind in plan.losses:
            scheduler.push(partial(self.lose, kind), at_us)
        for at_us in plan.rewinds_us:
            scheduler.push(self.rewind, at_us)
        if plan.losses:
            self.remember()
        if plan.altered_us:
            scheduler.push(self.alter, plan.altered_us)
        for at_us, partitions in plan.resizes:
            scheduler.push(partial(self.resize, partitions), at_us)
        scheduler.push(self.calm, plan.calm_us)
        self.publish()
        try:
            scheduler.run(plan.calm_us, MOST_STEPS)
            self.settle(actors)
        finally:
            scheduler.end()
            if self.history.broken is not None:
                raise self.history.broken
        self.checker.finish(dict(enumerate(self.head.ends)))
        self.counts["handoffs drained"] += self.checker.handoffs_drained
        self.counts["handoffs forced"] += self.checker.handoffs_forced
        return self.outcome()

    def settle(self, actors: list[Actor]) -> None:
        """After the faults: within the sum of the timers everything is Ready, even, and drained to the end."""
        until_us = self.scheduler.now_us + plan_bound_us(self.plan)
        while (missing := self.missing(actors)) and self.scheduler.now_us < until_us:
            self.scheduler.run(self.scheduler.now_us + LOOK_US, MOST_STEPS)
        demand(not missing, f"not settled {plan_bound_us(self.plan) / SECOND_US:.1f} s after the last fault:", missing)

    def stored_state(self) -> GroupState | None:
        """What the ownership store has."""
        body: bytes | None = None
        if self.plan.objects:
            body = self.objects.state_body()
        elif (stored := self.server.memory.groups.get(KEY, {}).get(STATE)) is not None:
            _, body = decode_version(stored.value, STATE)
        return decode_state(body, 0.0, "state") if body is not None else None

    def missing(self, actors: list[Actor]) -> str:
        """What is not as it shall be in the end; empty: all is well."""
        state = self.stored_state()
        if state is None:
            return "there is no state"
        if len(state.partitions) != self.head.partitions:
            return f"the queue has {self.head.partitions} partitions: {h.outline(state)}"
        if problem := uneven(state):
            return f"{problem}: {h.outline(state)}"
        alive = {actor.plan.name for actor in actors if not actor.stopped}
        bound = {flow.name for flow in state.flows.values() if flow.bound}
        if alive != bound:
            return f"bound are {sorted(bound)}, alive {sorted(alive)}: {h.outline(state)}"
        for number, end in enumerate(self.head.ends):
            here = self.checker.partitions[number]
            if here.offset != end:
                return f"partition {number} ends at {end}, its checkpoint at {here.offset}: {h.outline(state)}"
        return ""


def uneven(state: GroupState) -> str:
    """Why a group is not Ready and even; empty: it is."""
    if state.status is not RebalanceStatus.READY:
        return f"the status is {state.status.value}"
    bound = {Owner(flow.name, flow.instance): 0 for flow in state.flows.values() if flow.bound}
    for partition in state.partitions.values():
        if partition.phase is not Phase.OWNED or partition.owner not in bound:
            return f"partition {partition.partition} is not Ready"
        bound[partition.owner] += 1
    counts = sorted(bound.values())
    if state.settings.access_type is AccessType.EXCLUSIVE:
        return "" if counts and counts[-1] == len(state.partitions) else "not exclusive"
    return "" if counts and counts[-1] - counts[0] <= 1 else f"uneven: {counts}"


def plan_bound_us(plan: Plan) -> int:
    """The sum of all timers that may run one after the other once the faults have stopped."""
    settings = (plan.settings, plan.settings_later)
    bound_s = (
        plan.lease_timeout_s  # the leader is gone
        + 3 * plan.session_timeout_s  # a flow is gone: it is noticed, and its name becomes free
        + 2 * max(each.rebalance_delay_s for each in settings)
        + 2 * max(each.max_handoff_time_s for each in settings)
        + max(plan.restart_us) / SECOND_US
        + max(flow.pause_us + flow.work_us for flow in plan.flows) / SECOND_US
        + 2 * plan.rates.timeout_us / SECOND_US
        + 10.0
        + 3.0 * len(plan.resizes)  # one layout is dealt with after the other, and what is removed is looked for
    )
    return int(bound_s * SECOND_US)


def run_seed(seed: int, *, conditional: bool = True, keep: int = 0) -> Outcome:
    """One world from beginning to end. Raises `Violation`, or whatever the code under test should not have raised."""
    with quiet():
        return World(Plan.draw(seed), conditional=conditional, keep=keep).play()
