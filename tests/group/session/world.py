"""A world of one thread in which flows, a coordinator and their stores live under clocks of their own.

A session that waits lets the world go on: heartbeats beat, the coordinator looks. All is the real code over the stores
in memory; what goes wrong is made to go wrong by the tests, through the servers' hooks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from coordinator.heads import GroupFacts
from coordinator.leadership import StoreLife
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.checksums import sealed
from partq_spark.group.claims import Claim, Position, View
from partq_spark.group.codec import decode_state
from partq_spark.group.model import GroupKey, GroupSettings, GroupState, Owner
from partq_spark.group.ownership import StateDocument
from partq_spark.group.session import Session, SessionSettings
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore
from tests.support.flow_loop import Batch
from tests.support.ownership import OwnershipServer

KEY = GroupKey("default", "orders", "billing")
QUEUE_ID = "00aa00aa00aa00aa"
SETTINGS = SessionSettings(session_timeout_s=10.0, beat_interval_s=1.0, checkpoint_interval_s=1.0)
STEP_S = 0.05


@dataclass(slots=True)
class Ticker:
    """Something that happens again and again while the world goes on."""

    run: Callable[[], float]  # returns when to run again, in seconds
    due_s: float
    busy: bool = False
    frozen: bool = False


class World:
    """Stores, time, and everybody who lives on them. `now_s` is the true time, which nobody knows."""

    def __init__(
        self, *, partitions: int = 2, delay_s: float = 0.0, handoff_s: float = 3.0, store_url: str = "memory:"
    ) -> None:
        self.now_s = 1000.0
        self.rng = random.Random(7)
        self._tokens = count(1)
        self.objects = MemoryStore(clock=lambda: self.now_s, rng=self.rng, url=store_url)
        self.server = OwnershipServer(now_s=lambda: self.now_s, token=self.token)
        self.facts = GroupFacts(
            queue_id=QUEUE_ID,
            settings=GroupSettings(rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s),
            partitions=tuple(range(partitions)),
            starts=dict.fromkeys(range(partitions), 0),
        )
        self.ends = [1000] * partitions
        self.tickers: list[Ticker] = []
        self.log: list[tuple[str, str]] = []

    def token(self) -> str:
        return f"t{next(self._tokens):04}"

    def _note(self, level: str, event: str, /, **facts: object) -> None:
        self.log.append((event, str(facts.get("reason", ""))))

    # --- time ---------------------------------------------------------------------------------------------------------

    def effects(self, skew_s: float = 0.0) -> Effects:
        """One process's, with a clock that is wrong by `skew_s`."""
        return Effects(
            now_s=lambda: self.now_s + skew_s,
            time_us=lambda: int(self.now_s * 1e6),
            sleep=self.sleep,
            uniform=self.rng.uniform,
            token=self.token,
        )

    def sleep(self, duration_s: float) -> None:
        """Let everybody else go on for so long."""
        until_s = self.now_s + duration_s
        while self.now_s < until_s:
            self.now_s = min(self.now_s + STEP_S, until_s)
            for ticker in list(self.tickers):
                if not ticker.busy and not ticker.frozen and ticker.due_s <= self.now_s:
                    ticker.busy = True
                    ticker.due_s = self.now_s + ticker.run()
                    ticker.busy = False

    def until(self, look: Callable[[], bool], wait_s: float = 60.0) -> None:
        """Wait for something that must happen."""
        until_s = self.now_s + wait_s
        while not look():
            assert self.now_s < until_s, f"did not happen in {wait_s:g} s: {self.state()}"
            self.sleep(STEP_S)

    # --- who lives here -----------------------------------------------------------------------------------------------

    def coordinator(self, *, skew_s: float = 0.0) -> Ticker:
        """A coordinator that looks as often as it asks for."""
        store = self.server.open()
        runtime = GroupRuntime(
            KEY,
            store=store,
            life=StoreLife(store),
            checkpoints=lambda facts: self.checkpoints(facts.queue_id, facts.since),
            ends=lambda _: self.ends,
            settings=Settings(name="coordinator"),
            effects=self.effects(skew_s),
            log=self._note,
        )

        def step() -> float:
            try:
                return min(runtime.step(self.facts), 0.1)  # as if it were told of all news
            except Unavailable:
                return 0.1

        return self.lives(step)

    def lives(self, run: Callable[[], float]) -> Ticker:
        ticker = Ticker(run, self.now_s)
        self.tickers.append(ticker)
        return ticker

    def checkpoints(self, queue_id: str = QUEUE_ID, since: int = 0) -> CheckpointStore:
        return CheckpointStore(self.objects, KEY, queue_id, since=since, effects=self.effects())

    def flow(self, name: str, settings: SessionSettings = SETTINGS, *, skew_s: float = 0.0) -> Process:
        return Process(self, name, settings, skew_s)

    # --- what is stored -----------------------------------------------------------------------------------------------

    def state(self) -> GroupState | None:
        found = self.server.open().read_state(KEY)
        return decode_state(found.body, self.now_s, "the state") if isinstance(found, StateDocument) else None

    def owner(self, partition: int) -> tuple[str | None, int]:
        """Flow and epoch in the checkpoint."""
        found = self.checkpoints().read(partition)
        return (None, 0) if found is None else (found.owner.flow if found.owner else None, found.epoch)

    def offset(self, partition: int) -> int | None:
        found = self.checkpoints().read(partition)
        return found.offset if found is not None else None

    def seize(self, partition: int, to: Owner | None, epoch: int) -> None:
        """Rewrite a checkpoint behind everybody's back."""
        found = self.objects.load(self.checkpoints().name_of(partition))
        assert isinstance(found, Document)
        metadata = {**found.metadata, "epoch": str(epoch)}
        for key, value in (("flow", to and to.flow), ("instance", to and to.instance)):
            metadata.pop(key)
            if value:
                metadata[key] = value
        self.objects.swap(self.checkpoints().name_of(partition), sealed(metadata), expected=found.etag)

    def handoffs(self) -> int:
        return sum(event == "pause" for event, _ in self.log)


class Process:
    """A process that is a flow: its session, and the heartbeat beside it. It ends without a word by `kill`."""

    def __init__(self, world: World, name: str, settings: SessionSettings, skew_s: float) -> None:
        self.world = world
        self.store = world.server.open(KEY)
        self.checkpoints = world.checkpoints()
        self.session = Session(
            self.store, self.checkpoints, KEY, QUEUE_ID, name, settings, world.effects(skew_s), start_of=lambda _: 5
        )
        self.heart = world.lives(self._beat)
        self.views: list[View] = []

    def _beat(self) -> float:
        try:
            self.session.beat()
        except Unavailable:
            pass
        return self.session.settings.beat_interval_s

    def look(self) -> View:
        view = self.session.observe()
        self.views.append(view)
        return view

    def deliver(self, partition: int, end: int) -> bool:
        return self.session.deliver({partition: end})

    def acknowledge(self, partition: int, offset: int, epoch: int | None = None) -> bool:
        at = self.views[-1].claims[partition].epoch if epoch is None else epoch
        return partition in self.session.acknowledge({partition: Position(at, offset)})

    def has(self, *partitions: int) -> bool:
        """It has exactly these, by a look of its own, and may deliver them."""
        return tuple(self.look().deliverable) == partitions

    def record_entry(self, partition: int) -> tuple[int, int, int]:
        found = self.world.server.open().read_flow(KEY, self.session.flow)
        assert found is not None
        entry = found[0].deliveries[partition]
        return entry.epoch, entry.delivered, entry.acknowledged

    def freeze(self) -> None:
        self.heart.frozen = True

    def thaw(self) -> None:
        self.heart.frozen = False

    def kill(self) -> None:
        self.world.tickers.remove(self.heart)


def bound(process: Process, wait_s: float = 5.0) -> View:
    """Bind, and be answered."""
    binding = process.session.bind(wait_s=wait_s)
    assert binding.answered
    process.views.append(binding.view)
    return binding.view


def with_settings(**changes: object) -> SessionSettings:
    return replace(SETTINGS, **changes)  # type: ignore[arg-type] # any of its fields


def batch_of(claim: Claim, end: int) -> Batch[int]:
    """What follows a claim's position, up to `end`; each message is its offset."""
    return Batch(
        partition=claim.partition,
        begin=claim.position,
        end=end,
        messages=range(claim.position, end),
        redelivered_below=claim.redelivered_below,
    )
