"""Streaming queries without Spark: what Spark asks of a reader, in Spark's order, over stores in memory, under a clock
that tests move.

A `Query` keeps the offset log and the commit log that Spark would keep, so that it can be killed at any point and
started again. The coordinator is the real one, as in the world of sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.heads import GroupFacts, group_facts
from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.membership import Membership
from partq_spark.group.model import GroupKey
from partq_spark.log import admin
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import segment_schema
from partq_spark.log.staged import stage_of
from partq_spark.query import offsets
from partq_spark.query.consumer import ConsumerLoop
from partq_spark.query.joining import create_group, membership_in
from partq_spark.query.participant import GroupParticipant
from partq_spark.query.planning import Spans
from partq_spark.spark.options import stream_source_options
from tests.group.session import world as sessions
from tests.group.session.world import KEY, Ticker
from tests.support.ownership import MemoryOwnership

TRIGGER_S = 0.1


class Row(NamedTuple):
    """One message as a query delivered it."""

    partition: int
    offset: int
    redelivered: bool


class World(sessions.World):
    """A queue in memory, its coordinator if there is one, and queries."""

    def __init__(
        self, *, partitions: int = 2, delay_s: float = 0.0, handoff_s: float = 3.0, store_url: str = "memory:"
    ) -> None:
        super().__init__(partitions=partitions, delay_s=delay_s, handoff_s=handoff_s, store_url=store_url)
        config = QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s)
        admin.create_queue(self.objects, KEY.namespace, KEY.queue, partitions, config, self.effects())
        self.queue = self.open_queue()
        self.group_facts()

    def open_queue(self) -> QueueLog:
        return QueueLog(self.objects, KEY.namespace, KEY.queue, self.effects(), retry_timeout_s=5.0)

    def group_facts(self) -> None:
        """What the coordinator knows of the queue, as it is now."""
        head = self.queue.refresh()
        self.ends = list(head.next)
        found = head.groups.get(KEY.group)
        if found is not None:
            self.facts: GroupFacts = group_facts(head, found)

    def checkpoints(self, queue_id: str = "", since: int | None = None) -> CheckpointStore:
        """As the queue has them now; of a group that is not there none counts."""
        head = self.queue.refresh()
        found = head.groups.get(KEY.group)
        if since is None:
            since = found.since_sequence if found is not None else head.sequence + 1
        return super().checkpoints(queue_id or head.queue_id, since)

    def coordinated(self) -> Ticker:
        """A coordinator that sees the group as soon as it is in the head."""
        ticker = self.coordinator()
        step = ticker.run

        def look() -> float:
            self.group_facts()
            return step() if KEY.group in self.queue.head.groups else 0.1

        ticker.run = look
        return ticker

    def publish(self, *counts: int) -> None:
        """So many messages to each partition, in one publish."""
        # A random partition for each message without a key would not do: keys are tried until they fall right.
        self.publish_keys([key for partition, count in enumerate(counts) for key in [self._key_of(partition)] * count])

    def publish_keys(self, keys: Sequence[str]) -> None:
        """A message for each of these keys, in one publish."""
        queue = self.open_queue()
        queue.refresh()
        stage = stage_of(queue.refresh())
        rows = [pa.array(keys, pa.string()), pa.array([b"x"] * len(keys), pa.binary())]
        with Stager(queue.store, stage, seed=self.token(), headers=False, compression="none") as stager:
            stager.add(pa.RecordBatch.from_arrays(rows, schema=segment_schema(False)))
            segment = stager.finish()
        publish(queue, stage, [segment] if segment is not None else [], None)
        self.group_facts()

    def _key_of(self, partition: int) -> str:
        count = self.queue.refresh().partitions
        return next(f"k{n}" for n in range(10_000) if partition_of(b"k%d" % n, count) == partition)

    def query(self, flow: str | None = None, **options: str) -> Query:
        return Query(self, flow, options)


class _Ownership(MemoryOwnership):
    """Waits in the world's time."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server, group=KEY)
        self._world = world

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        self._world.sleep(timeout_s)
        return None


@dataclass(slots=True)
class Batch:
    """One delivery of a micro-batch: `end` is its offset; a batch that is repeated is there again."""

    end: dict[str, Any]
    rows: list[Row]
    at_s: float


class Query:
    """A streaming query with its Spark checkpoint. `start` begins a process, `kill` ends it, and it may start again."""

    def __init__(self, world: World, flow: str | None, options: dict[str, str]) -> None:
        self.world = world
        given = {"queue": KEY.queue, "store": "file:///nowhere", "group": KEY.group, "ownership": "store"}
        given |= {"startingOffsets": "earliest", "retryTimeout": "30s", **options}
        if given.get("checkpoints") != "none":
            given.setdefault("checkpointInterval", "1s")
        if flow is not None:
            given["flow"] = flow
        self.options = stream_source_options(given)
        self.ends: list[dict[str, Any]] = []  # Spark's offset log
        self.committed = 0
        self.batches: list[Batch] = []
        self.failure: PartqError | None = None
        self.during: Callable[[], None] = lambda: None  # what happens while a batch runs
        self._tickers: list[Ticker] = []
        self.consumer: ConsumerLoop

    # --- a process ----------------------------------------------------------------------------------------------------

    def start(self, *, available_now: bool = False) -> Query:
        """A new process on the same Spark checkpoint. An unfinished batch is repeated at the first trigger."""
        group = self.options.group
        assert group is not None
        queue, effects = self.world.open_queue(), self.world.effects()
        self.failure = None
        participant = GroupParticipant(
            queue,
            self.options,
            effects,
            create_group=lambda: create_group(queue, self.options, group),
            join=self._join,
        )
        self.consumer = ConsumerLoop(queue, self.options, participant, effects=effects)
        if available_now:
            self.consumer.fix_target()
        self._tickers = [self.world.lives(self._beat)]
        return self

    def _join(self, flow: str, head: Head) -> tuple[Membership, CheckpointStore]:
        group = self.options.group
        assert group is not None
        world = self.world
        checkpoints = world.checkpoints(head.queue_id, head.groups[group.name].since_sequence)
        ownership = None if group.ownership == "none" else _Ownership(world)
        member = membership_in(self.consumer.queue, group, flow, head, checkpoints, ownership, world.effects())
        return member, checkpoints

    def _beat(self) -> float:
        member = self.consumer.member
        if member is not None:
            try:
                member.beat()
            except Unavailable:
                pass
        return 1.0

    def kill(self) -> Query:
        """Without a word."""
        for ticker in self._tickers:
            self.world.tickers.remove(ticker)
        self._tickers = []
        return self

    def stop(self) -> Query:
        """As Spark's SIGTERM does."""
        self.consumer.stop()
        return self.kill()

    def freeze(self) -> None:
        for ticker in self._tickers:
            ticker.frozen = True

    def thaw(self) -> None:
        for ticker in self._tickers:
            ticker.frozen = False

    # --- what Spark does ----------------------------------------------------------------------------------------------

    @property
    def at(self) -> dict[str, Any]:
        """The offset up to which everything is complete."""
        return self.ends[self.committed - 1] if self.committed else dict(offsets.INITIAL)

    def trigger(self) -> bool:
        """One trigger; whether it made a batch."""
        if len(self.ends) == self.committed:
            end = self.consumer.next_end(self.at)
            if end == self.at:
                return False
            self.ends.append(end)
        self.deliver()
        self.committed += 1
        return True

    def plan(self) -> dict[str, Any]:
        """Only the first half of a trigger: the end of the next batch is in the offset log."""
        self.ends.append(self.consumer.next_end(self.at))
        return self.ends[-1]

    def deliver(self) -> list[Row]:
        """Only the second half, without the commit."""
        end = self.ends[self.committed]
        nothing: list[Row] = []
        rows = self.consumer.batch(self.at, end, _read, nothing)
        self.batches.append(Batch(end, rows, self.world.now_s))
        self.during()
        return rows

    def run(self) -> Query:
        """Trigger again and again from now on, beside whatever else goes on in the world."""

        def again() -> float:
            if self.failure is None:
                try:
                    self.trigger()
                except PartqError as error:
                    self.failure = error
            return TRIGGER_S

        self._tickers.append(self.world.lives(again))
        return self

    def drain(self) -> Query:
        """Trigger until nothing comes any more."""
        while self.trigger():
            pass
        return self

    # --- what came of it ----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch.rows]

    def offsets(self, partition: int) -> list[int]:
        return [row.offset for row in self.rows if row.partition == partition]

    @property
    def partitions(self) -> tuple[int, ...]:
        """What it has, as its progress would say."""
        told = self.consumer.report()
        return tuple(int(p) for p in told["partitions"]) if told is not None else ()

    @property
    def epochs(self) -> dict[int, int]:
        told = self.consumer.report()
        return {int(p): each["epoch"] for p, each in told["partitions"].items()} if told is not None else {}

    @property
    def name(self) -> str:
        """The flow's."""
        end = offsets.decode(self.ends[-1])
        assert end is not None
        assert end.flow is not None
        return end.flow


def _read(_head: Head, spans: Spans) -> list[Row]:
    return [
        Row(partition, offset, offset < span.redelivered_below)
        for partition, span in sorted(spans.items())
        for offset in range(span.start, span.to)
    ]


def begun(world: World, *queries: Query) -> Sequence[Query]:
    """Started, one after the other, each past its first empty batch."""
    for query in queries:
        query.start()
        assert query.trigger()
        assert query.rows == []
    return queries


def delivered(*queries: Query) -> Counter[tuple[int, int]]:
    """How often each partition and offset came, to any of the queries."""
    return Counter((row.partition, row.offset) for query in queries for row in query.rows)


def expected(world: World) -> Counter[tuple[int, int]]:
    """Everything that the queue has, once."""
    return Counter((p, offset) for p, end in enumerate(world.queue.refresh().next) for offset in range(end))
