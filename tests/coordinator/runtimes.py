"""One group's leaders, step by step: the real runtimes over stores in memory, whose every call tests may strike, with a
clock that tests move. A flow here is only what a flow leaves in the stores: its record, its heartbeat, its checkpoint.

Whole processes are in `tests.world`; here is what depends on the very call between two of which something happens.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from coordinator.core.invariants import violations
from coordinator.heads import GroupFacts, group_facts
from coordinator.logs import FieldValue
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import Checkpoint, FlowRecord, GroupKey, GroupState, Owner, Phase
from partq_spark.group.ownership import StateDocument
from partq_spark.log import admin, groups
from partq_spark.log.model import Head
from partq_spark.log.settings import QueueConfig
from tests.support.memory_store import MemoryStore
from tests.support.ownership import MemoryOwnership, OwnershipServer
from tests.support.way import Hooked

KEY: Final = GroupKey("default", "orders", "billing")
SESSION_S: Final = 10.0
BEAT_S: Final = 1.0


class Lines(logging.Handler):
    """What coordinators tell, from now on: level, event and facts of each."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[str, str, dict[str, FieldValue]]] = []
        logging.getLogger("partq.coordinator").handlers = [self]  # in place of an earlier test's

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append((record.levelname.lower(), record.getMessage(), getattr(record, "facts", {})))

    def of(self, event: str) -> list[dict[str, FieldValue]]:
        return [facts for _, each, facts in self.all if each == event]


class World:
    """One queue with one group, and who takes part."""

    def __init__(self, *, partitions: int = 4, config: QueueConfig | None = None) -> None:
        self.rng = random.Random(1)
        self.now_s = 1000.0
        self.log = Lines()
        self.objects = MemoryStore(clock=lambda: self.now_s, rng=self.rng)
        self.server = OwnershipServer(now_s=lambda: self.now_s, rng=self.rng)
        self.queue = admin.create_queue(self.objects, KEY.namespace, KEY.queue, partitions, config, self.effects())
        groups.create_group(self.queue, KEY.group, (0,) * partitions)
        self.coordinators: list[Coordinator] = []
        self.flows: list[HandFlow] = []

    def token(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def effects(self) -> Effects:
        return Effects(
            now_s=lambda: self.now_s,
            time_us=lambda: int(self.now_s * 1e6),
            sleep=lambda _: None,
            uniform=self.rng.uniform,
            token=self.token,
        )

    def coordinator(
        self, name: str = "c1", *, group: str = KEY.group, beside: Coordinator | None = None
    ) -> Coordinator:
        """`beside`: another group's, in whose process it is."""
        made = Coordinator(self, name, KEY._replace(group=group), beside)
        self.coordinators.append(made)
        return made

    def flow(self, name: str) -> HandFlow:
        made = HandFlow(self, name)
        made.bind({})
        self.flows.append(made)
        return made

    def altered(self, change: Callable[[Head], Head]) -> None:
        """Change the queue's head, by hand."""
        self.queue.change(lambda head: replace(change(head), sequence=head.sequence + 1))

    def published(self, end: int) -> None:
        """As if so many messages were in every partition."""
        self.altered(lambda head: replace(head, next=(end,) * len(head.next)))

    def settle(self) -> None:
        """Let the coordinators do what they want to do soon; a wait for others ends after a second."""
        end_s = self.now_s + 1.0
        while self.now_s < end_s:
            next_s = min(each.step() for each in self.coordinators)
            if next_s > 0.5:
                return
            self.now_s += next_s

    def run(self, duration_s: float) -> None:
        """Let time pass: flows beat, coordinators look."""
        for _ in range(round(duration_s * 4)):
            self.now_s += 0.25
            for flow in self.flows:
                flow.live()
            for each in self.coordinators:
                each.step()

    # --- looking ------------------------------------------------------------------------------------------------------

    def checkpoints(self) -> Mapping[int, Checkpoint]:
        return checkpoints_of(self.queue, KEY.group).list_readable()[0]

    def state(self) -> GroupState:
        document = self.server.open().read_state(KEY)
        assert isinstance(document, StateDocument)
        state = decode_state(document.body, self.now_s, "state")
        assert violations(state) == ()
        return state

    def owners(self) -> dict[int, str]:
        """Who has what, as state and checkpoints agree; '…' for what is on its way."""
        marks = self.checkpoints()
        owners = {}
        for number, partition in self.state().partitions.items():
            owned = partition.phase is Phase.OWNED
            assert not owned or (marks[number].owner, marks[number].epoch) == (partition.owner, partition.epoch)
            owners[number] = partition.owner.flow if owned and partition.owner is not None else "…"
        return owners

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.owners().values()))


class Coordinator:
    """One process' runtime, with a view of the stores of its own. `hook` hears of each of its calls and may raise."""

    hook: Callable[[str], None] = staticmethod(lambda _: None)

    def __init__(self, world: World, name: str, key: GroupKey, beside: Coordinator | None) -> None:
        self.world = world
        self.key = key
        self.ownership: MemoryOwnership = beside.ownership if beside is not None else world.server.open()
        effects = world.effects()
        objects = Hooked(world.objects)
        objects.before = lambda kind, _: self.hook(f"objects.{kind}")
        self.runtime = GroupRuntime(
            key,
            store=self.ownership,
            checkpoints=lambda facts: CheckpointStore(
                objects, key, facts.queue_id, since=facts.since, ends=world.queue.head.next, effects=effects
            ),
            facts_now=self.facts,
            settings=Settings(name=name),
            effects=effects,
        )
        self.stopped = False

    def facts(self) -> GroupFacts:
        head = self.world.queue.refresh()
        return group_facts(head, head.groups[self.key.group])

    def step(self) -> float:
        if self.stopped:
            return 1.0
        self.world.server.before = self.hook
        try:
            return self.runtime.step(self.facts())
        except Unavailable:
            return 0.1
        finally:
            self.world.server.before = lambda _: None


class HandFlow:
    """What a flow leaves in the stores."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.store: MemoryOwnership = world.server.open()
        self.says: FlowRecord
        self.beats = False
        self._beaten_s = 0.0

    @property
    def owner(self) -> Owner:
        return Owner(self.name, self.says.instance)

    def bind(self, mapping: Mapping[int, int]) -> None:
        """A new instance, over a new connection: also when the store said that its heartbeat is gone."""
        self.store = self.world.server.open()
        found = self.store.read_flow(KEY, self.name)
        self.says = FlowRecord(
            flow=self.name,
            instance=self.world.token(),
            queue_id=self.world.queue.head.queue_id,
            bound=True,
            session_timeout_s=SESSION_S,
            mapping=mapping,
        )
        self.store.bind(KEY, self.says, replaces=found.token if found is not None else None)
        self.beats = True
        self._beaten_s = self.world.now_s

    def live(self) -> None:
        """A heartbeat, if one is due."""
        if self.beats and self.world.now_s - self._beaten_s >= BEAT_S:
            self.store.beat(KEY, self.says)
            self._beaten_s = self.world.now_s

    def die(self) -> None:
        """kill -9."""
        self.beats = False

    def unbind(self) -> None:
        self.store.unbind(KEY, self.name, self.says.instance)
        self.beats = False

    def mapping(self) -> dict[int, int]:
        """What it has at the moment, with epochs."""
        return {n: p.epoch for n, p in self.world.state().partitions.items() if p.owner == self.owner}

    def write(self, partition: int, offset: int, may_reach: int) -> None:
        """Acknowledged before `offset`, perhaps delivered up to `may_reach`; it says so if nothing is in hand."""
        checkpoints = checkpoints_of(self.world.queue, KEY.group)
        held = checkpoints.read(partition)
        assert held is not None
        assert held.owner == self.owner
        checkpoints.write(
            held, offset=offset, may_reach=may_reach, marked=held.redelivered_below, origin=None, swap=False
        )
        if offset == may_reach:
            self.says = replace(self.says, closes=self.says.closes + 1)
            self.store.beat(KEY, self.says)


def two_flows(delay_s: float = 0.0) -> tuple[World, HandFlow, HandFlow]:
    """A coordinator, 1,000 messages in each of four partitions, and flows `a` and `b` that have two each."""
    world = World(config=QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=2.0))
    world.coordinator()
    world.published(1000)
    a = world.flow("a")
    world.settle()
    b = world.flow("b")
    world.run(delay_s + 2)
    assert world.counts() == {"a": 2, "b": 2}
    return world, a, b
