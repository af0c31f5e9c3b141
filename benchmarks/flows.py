"""Part `flows`: what it costs a streaming query to be a flow of a group, and how long a handoff between two holds back.

A real redis-server, a real coordinator process with its defaults, and the queries in one driver, on one machine.
"""

from __future__ import annotations

import json
import logging
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.bed import Bed, bed
from benchmarks.bounds.flow import wait_for_state
from benchmarks.floor import BATCH_ROWS
from benchmarks.microbatch import FIRST_BATCHES, durations, publish_ahead
from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.processes import watched
from benchmarks.spark import Run, Side, checked, measures, take_turns
from partq_spark.group.model import GroupKey, GroupState, Phase
from partq_spark.log.admin import alter_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tools.processes import coordinator, readers_among
from tools.report import Goal, Measure, figure
from tools.servers import RedisServer, running

BATCH_S: Final = 1.0
"""How long a busy flow's micro-batches take."""

_TRIGGER: Final = "100 milliseconds"
_IDLE_S: Final = 20.0
_EVERY_S: Final = 0.2
_BATCHES: Final = 100
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Reading, small micro-batches, an idle flow's processor time, the pauses of handoffs."""
    log = settings.work / "coordinator.log"
    with (
        bed(settings) as made,
        running(RedisServer()) as redis,
        coordinator(settings.work, made.store, redis.url, namespace=NAMESPACE),
    ):
        group = _Group(made, redis.url, log)
        found = _reading(group, settings)
        found.append(_added_time(group, settings))
        found.append(_idle(group, 3.0 if settings.quick else _IDLE_S))
        found += _pauses(group, settings)
    return found, []


@dataclass(slots=True)
class _Group:
    """Queries that share a queue by Redis; every one with a Spark checkpoint of its own."""

    bed: Bed
    ownership: str
    log: Path
    groups: int = 0

    def fresh(self) -> str:
        """A group that nobody used."""
        self.groups += 1
        return f"group-{self.groups}"

    def stream(self, queue: QueueLog, **options: str) -> DataFrame:
        """From the beginning."""
        given = {**self.bed.options(queue), "startingOffsets": "earliest", **options}
        return self.bed.spark.readStream.format("partq").options(**given).load()

    def pauses(self) -> Sequence[Pause]:
        """All so far, by the coordinator's log."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return list(_handoffs(lines))


class Pause(NamedTuple):
    """Of a partition on its way to another flow."""

    begun_s: float
    pause_s: float


def _handoffs(lines: Sequence[Mapping[str, Any]]) -> Iterator[Pause]:
    """A pause ends at the next line that shows the partition in somebody's hands. `lines`: a coordinator's log."""
    begun_s: dict[tuple[str, int], float] = {}
    for line in lines:
        if line.get("event") in ("pause", "resume", "assign"):
            key = str(line.get("group")), int(line["partition"])
            at_s = datetime.fromisoformat(line["time"]).timestamp()
            if key in begun_s:
                yield Pause(begun_s[key], at_s - begun_s.pop(key))
            if line["event"] == "pause":
                begun_s[key] = at_s


# --- what it costs ----------------------------------------------------------------------------------------------------


def _reading(group: _Group, settings: Settings) -> list[Measure]:
    """The same messages by a flow that shares its group, and by one that has it to itself."""
    queue = group.bed.fresh_queue()
    checked(group.bed.publishing("partq", group.bed.options(queue)), settings.rows, "publishing the rows to be read")

    def reading(ownership: str) -> Callable[[], Run]:
        return lambda: group.bed.reading(lambda: group.stream(queue, group=group.fresh(), ownership=ownership))

    sides = [
        Side(name="shared by Redis", run=reading(group.ownership)),
        Side(name="ownership=none", run=reading("none"), goal=Goal(sign=">=", limit=0.97)),
    ]
    return measures("reading as a flow", sides, take_turns(sides, settings.rounds, settings.rows))


def _added_time(group: _Group, settings: Settings) -> Measure:
    """Per micro-batch of a few rows, against the same query without a group."""
    wanted = 20 if settings.quick else _BATCHES

    def side(**options: str) -> float:
        queue = group.bed.fresh_queue()
        publish_ahead(queue, FIRST_BATCHES + wanted)
        stream = group.stream(queue, maxMessagesPerTrigger=str(BATCH_ROWS), **options)
        return statistics.median(durations(stream.writeStream.format("noop"), group.bed.fresh_folder(), wanted))

    added = []
    for number in range(settings.rounds + 1):
        alone, shared = side(), side(group=group.fresh(), ownership=group.ownership)
        logger.info("round %d: alone %.1f ms, shared %.1f ms", number, alone, shared)
        if number:
            added.append(shared - alone)
    what = f"a micro-batch of {BATCH_ROWS} rows: what a group, Redis and checkpoints add, medians of {wanted}"
    return figure(what, added, "ms", most=5)


def _idle(group: _Group, for_s: float) -> Measure:
    """The reader process of a flow without messages, default trigger and pollInterval."""
    queue = group.bed.fresh_queue()
    with _running(group, _noop(group.stream(queue, group=group.fresh(), ownership=group.ownership))):
        time.sleep(5.0)  # it has bound, and its imports are behind it
        part, _ = watched(_reader_process(), for_s)
    return figure("the reader process of an idle flow", [part], "% of a core", most=1)


def _reader_process() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    found = readers_among(each for each in children if each.status() != psutil.STATUS_ZOMBIE)  # one that has just ended
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} reader processes run below this process, one was expected")
    return found[0]


# --- how long a handoff holds back ------------------------------------------------------------------------------------


def _pauses(group: _Group, settings: Settings) -> list[Measure]:
    """A second flow joins and leaves again, rounds times: half of the partitions are handed to it each time."""
    idle_ms = [1000 * each.pause_s for each in _joins(group, settings.rounds, _noop)]
    busy = _Busy()
    late_ms = []
    for each in _joins(group, settings.rounds, busy.writer, publishing=True):
        ends = [end_s for end_s in busy.ends_s if end_s >= each.begun_s]
        late_ms.append(1000 * (each.begun_s + each.pause_s - min(ends)) if ends else 0.0)
    busy_what = f"between flows busy with batches of {BATCH_S:g} s: pause beyond the end of the running batch"
    idle_what = "pause of a partition between two idle flows, trigger 100 ms, no listener"
    return [figure(idle_what, idle_ms, "ms", most=150), figure(busy_what, late_ms, "ms", most=200)]


def _joins(
    group: _Group,
    rounds: int,
    writer: Callable[[DataFrame], DataStreamWriter],
    *,
    publishing: bool = False,
) -> list[Pause]:
    queue = group.bed.fresh_queue()
    alter_queue(queue, rebalance_delay_s=0.0, max_handoff_time_s=30.0)
    name = group.fresh()
    before = len(group.pauses())

    def query() -> DataStreamWriter:
        return writer(group.stream(queue, group=name, ownership=group.ownership)).trigger(processingTime=_TRIGGER)

    key = GroupKey(NAMESPACE, queue.name, name)
    with _publishing(queue) if publishing else nullcontext(), _running(group, query()):
        _wait_for_shares(group, key, PARTITIONS)
        for _ in range(rounds):
            with _running(group, query()):
                _wait_for_shares(group, key, PARTITIONS // 2, PARTITIONS // 2)
                time.sleep(2 * BATCH_S if publishing else 0.5)
            _wait_for_shares(group, key, PARTITIONS)
    found = list(group.pauses()[before:])
    if len(found) < rounds * PARTITIONS // 2:
        raise RuntimeError(f"{len(found)} handoffs took place, {rounds * PARTITIONS // 2} were expected")
    return found


@dataclass(slots=True)
class _Busy:
    """A sink that takes its time."""

    ends_s: list[float] = field(default_factory=list)

    def writer(self, stream: DataFrame) -> DataStreamWriter:
        def take(batch: DataFrame, _batch_id: int) -> None:
            batch.count()
            time.sleep(BATCH_S)
            self.ends_s.append(time.time())

        return stream.writeStream.foreachBatch(take)


def _noop(stream: DataFrame) -> DataStreamWriter:
    return stream.writeStream.format("noop")


@contextmanager
def _publishing(queue: QueueLog) -> Iterator[None]:
    """A few messages to some partitions, again and again."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_EVERY_S):
            publish_ahead(queue, 8)  # so that every partition is in every batch

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _running(group: _Group, writer: DataStreamWriter) -> Iterator[StreamingQuery]:
    query = writer.option("checkpointLocation", str(group.bed.fresh_folder())).start()
    try:
        yield query
    finally:
        query.stop()


def _wait_for_shares(group: _Group, key: GroupKey, *counts: int) -> None:
    """Until so many partitions are each flow's, by the group's state."""

    def shared(state: GroupState) -> bool:
        owners = Counter(each.owner for each in state.partitions.values() if each.phase is Phase.OWNED)
        return sorted(owners.values()) == sorted(counts)

    wait_for_state(group.ownership, open_store(group.bed.store), key, shared)
