"""A group in memory with a clock that tests move: coordinators that run the real runtime, and flows made by hand.

A flow here is only what a flow leaves in the stores: its record, its heartbeat, its checkpoint. What is asserted of all
of them lives in the tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from coordinator.core.invariants import violations
from coordinator.heads import GroupFacts, group_facts
from coordinator.leadership import StoreLife
from coordinator.logs import FieldValue
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, GroupState, Owner, Phase
from partq_spark.group.ownership import StateDocument
from partq_spark.log import admin
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.objects.memory import MemoryStore
from tests.support.ownership import MemoryOwnership, OwnershipServer
from tests.support.way import Way

T = TypeVar("T")
KEY: Final = GroupKey("default", "orders", "billing")
SESSION_S: Final = 10.0
BEAT_S: Final = 1.0


@dataclass
class Lines:
    """A log that tests read."""

    lines: list[tuple[str, str, dict[str, FieldValue]]] = field(default_factory=list)

    def __call__(self, level: str, event: str, /, **facts: FieldValue) -> None:
        self.lines.append((level, event, facts))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]

    def of(self, event: str) -> list[dict[str, FieldValue]]:
        return [facts for _, each, facts in self.lines if each == event]


class World:
    """One queue with one group, and who takes part."""

    def __init__(self, *, partitions: int = 4, config: QueueConfig | None = None, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1000.0
        self.log = Lines()
        self.objects = MemoryStore(clock=lambda: self.now_s, rng=self.rng)
        self.server = OwnershipServer(now_s=lambda: self.now_s, token=self.token)
        self.queue = admin.create_queue(self.objects, KEY.namespace, KEY.queue, partitions, config, self.effects())
        admin.create_group(self.queue, KEY.group, (0,) * partitions)
        self.coordinators: list[Coordinator] = []
        self.flows: list[HandFlow] = []

    def token(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def effects(self, skew_s: float = 0.0) -> Effects:
        return Effects(
            now_s=lambda: self.now_s + skew_s,
            time_us=lambda: int(self.now_s * 1e6),
            sleep=lambda _: None,
            uniform=self.rng.uniform,
            token=self.token,
        )

    def coordinator(self, name: str = "c1", *, skew_s: float = 0.0) -> Coordinator:
        made = Coordinator(self, name, skew_s)
        self.coordinators.append(made)
        return made

    def flow(self, name: str, mapping: Mapping[int, int] | None = None) -> HandFlow:
        made = HandFlow(self, name)
        made.bind(mapping or {})
        self.flows.append(made)
        return made

    def altered(self, change: Callable[[Head], Head]) -> None:
        """Change the queue's head, by hand."""
        self.queue.change(lambda head: replace(change(head), sequence=head.sequence + 1))

    def published(self, end: int) -> None:
        """As if so many messages were in every partition."""
        self.altered(lambda head: replace(head, next=(end,) * len(head.next)))

    def settle(self, most_s: float = 1.0) -> None:
        """Let the coordinators do what they want to do soon; a wait for others ends with `most_s`."""
        end_s = self.now_s + most_s
        while self.now_s < end_s:
            next_s = min(each.step() for each in self.coordinators)
            if next_s > most_s / 2:
                return
            self.now_s += next_s

    def run(self, duration_s: float, every_s: float = 0.25) -> None:
        """Let time pass: flows beat, coordinators look."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s - 1e-9:
            self.now_s += every_s
            for flow in self.flows:
                flow.live()
            for each in self.coordinators:
                each.step()

    # --- looking ------------------------------------------------------------------------------------------------------

    def checkpoints(self) -> Mapping[int, Checkpoint]:
        return lifecycle.checkpoints_of(self.queue, KEY.group).list_checkpoints()

    def state(self) -> GroupState:
        document = self.server.open().read_state(KEY)
        assert isinstance(document, StateDocument)
        state = decode_state(document.body, self.now_s, "state")
        assert violations(state) == ()
        return state

    def owners(self) -> dict[int, str | None]:
        """Who has what, as state and checkpoints agree; '…' for what is on its way."""
        state, marks = self.state(), self.checkpoints()
        owners: dict[int, str | None] = {}
        for number, partition in state.partitions.items():
            owners[number] = partition.owner.flow if partition.owner is not None else None
            if partition.phase is not Phase.OWNED and partition.phase is not Phase.FREE:
                owners[number] = "…"
            elif partition.owner is not None:
                mark = marks[number]
                assert (mark.owner, mark.epoch) == (partition.owner, partition.epoch), number
        return owners

    def counts(self) -> dict[str, int]:
        found = list(self.owners().values())
        return {str(name): found.count(name) for name in sorted({str(each) for each in found})}


class Killed(BaseException):
    """The end of a process; not an `Exception`, so that no code under test handles it."""


class Faults:
    """What strikes one coordinator's calls to the stores: a number counts down with every call, before and after."""

    def __init__(self) -> None:
        self.calls = 0
        self.strike_at = 0  # 0: never
        self.error: BaseException = Killed()
        self.struck = ""
        self.hook: Callable[[str], None] | None = None

    def point(self, verb: str) -> None:
        if self.hook is not None:
            self.hook(verb)
        self.calls += 1
        if self.calls == self.strike_at:
            self.struck = verb
            raise self.error


class HookedObjects(Way):
    """The object store as one coordinator reaches it."""

    def __init__(self, store: MemoryStore, faults: Faults) -> None:
        super().__init__(store)
        self._faults = faults

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self._faults.point(f"objects.{kind}")
        answer = effect()
        self._faults.point(f"objects.{kind} answered")
        return answer


class Coordinator:
    """One process' runtime, with a view of the stores and a clock of its own."""

    def __init__(self, world: World, name: str, skew_s: float) -> None:
        self.world = world
        self.ownership = world.server.open()
        self.faults = Faults()
        effects = world.effects(skew_s)
        objects = HookedObjects(world.objects, self.faults)
        queue = QueueLog(objects, KEY.namespace, KEY.queue)
        self.runtime = GroupRuntime(
            KEY,
            store=self.ownership,
            life=StoreLife(self.ownership),
            checkpoints=lambda facts: CheckpointStore(objects, KEY, facts.queue_id, since=facts.since, effects=effects),
            ends=lambda queue_id: queue.require(queue_id).next,
            facts_now=self.facts,
            settings=Settings(name=name),
            effects=effects,
            log=world.log,
        )
        self.stopped = False

    def facts(self) -> GroupFacts:
        head = self.world.queue.refresh()
        return group_facts(head, head.groups[KEY.group])

    def step(self) -> float:
        if self.stopped:
            return 1.0
        server = self.world.server
        server.before = self.faults.point
        server.after = lambda verb: self.faults.point(f"{verb} answered")
        try:
            return self.runtime.step(self.facts())
        except Killed:
            self.stopped = True
            return 1.0
        except Unavailable:
            return 0.1
        finally:
            server.before = server.after = lambda _: None


class HandFlow:
    """What a flow leaves in the stores."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.store: MemoryOwnership = world.server.open()
        self.instance = ""
        self.beats = False
        self.deliveries: dict[int, Delivery] = {}
        self._beaten_s = 0.0

    @property
    def owner(self) -> Owner:
        return Owner(self.name, self.instance)

    def bind(self, mapping: Mapping[int, int]) -> None:
        found = self.store.read_flow(KEY, self.name)
        incarnation = self.store.incarnation()
        former: tuple[str, ...] = ()
        if found is not None and found[0].incarnation == incarnation:
            former = (found[0].instance, *found[0].former)
        self.instance = self.world.token()
        record = FlowRecord(
            flow=self.name,
            instance=self.instance,
            queue_id=self.world.queue.head.queue_id,
            incarnation=incarnation,
            bound=True,
            session_timeout_s=SESSION_S,
            mapping=mapping,
            deliveries=self.deliveries,
            former=former,
        )
        self.store.bind(KEY, record, replaces=found[1] if found is not None else None)
        self.beats = True
        self._beaten_s = self.world.now_s

    def live(self) -> None:
        """A heartbeat, if one is due."""
        if self.beats and self.world.now_s - self._beaten_s >= BEAT_S:
            self.store.beat(KEY, self.name, self.instance)
            self._beaten_s = self.world.now_s

    def die(self) -> None:
        """kill -9."""
        self.beats = False

    def unbind(self) -> None:
        self.store.unbind(KEY, self.name, self.instance)
        self.beats = False

    def mapping(self) -> dict[int, int]:
        """What it has at the moment, with epochs."""
        if self.store.read_state(KEY) is None:
            return {}
        return {n: p.epoch for n, p in self.world.state().partitions.items() if p.owner == self.owner}

    def deliver(self, partition: int, end: int, *, acknowledged: int = 0) -> bool:
        """As a session does it: on condition that the state is still the one that says it may."""
        document = self.store.read_state(KEY)
        assert isinstance(document, StateDocument)
        found = decode_state(document.body, 0.0, "state").partitions[partition]
        if found.phase is not Phase.OWNED or found.owner != self.owner:
            return False
        entry = Delivery(epoch=found.epoch, delivered=end, acknowledged=acknowledged)
        self.deliveries[partition] = entry
        return self.store.deliver(KEY, self.name, self.instance, {partition: entry}, state_token=document.token)

    def acknowledge(self, partition: int, offset: int) -> None:
        """The checkpoint first, then the record."""
        checkpoints = lifecycle.checkpoints_of(self.world.queue, KEY.group)
        held = checkpoints.read(partition)
        assert held is not None
        assert held.owner == self.owner
        checkpoints.update_checkpoint(held, offset)
        entry = replace(self.deliveries[partition], acknowledged=offset)
        self.deliveries[partition] = entry
        self.store.report(KEY, self.name, self.instance, {partition: entry})


def two_flows(world: World, delay_s: float) -> tuple[HandFlow, HandFlow]:
    """A coordinator, messages, and two flows `a` and `b` with two partitions each, when all has settled."""
    world.coordinator()
    world.published(1000)
    a = world.flow("a")
    world.settle()
    b = world.flow("b")
    world.run(delay_s + 2)
    assert world.counts() == {"a": 2, "b": 2}
    return a, b
