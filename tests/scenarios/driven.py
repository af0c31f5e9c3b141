"""A streaming query as scenarios drive it: Spark's two logs, and its questions to the production source one by one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

import partq
from partq_spark.spark.source import PartqDataSource
from tests.world.drivers import SOURCE
from tests.world.machine import Host
from tests.world.spark import Reader, ReaderDied

if TYPE_CHECKING:
    from tests.scenarios.stage import Stage, Step

GROUP: Final = "billing"
QUEUE: Final = "orders"
TRIGGER_S: Final = 0.1  # between two triggers of a query that runs
_FOR_EVER_US: Final = 10**15


class Row(NamedTuple):
    """One message as a query was given it."""

    partition: int
    offset: int
    marked: bool = False


class Query:
    """A streaming query with its Spark checkpoint. `start` begins a process; `kill` ends it, and it may start again."""

    def __init__(self, stage: Stage, flow: str | None, options: Mapping[str, str]) -> None:
        self.stage = stage
        given = {"path": QUEUE, "store": stage.world.url, "startingOffsets": "earliest", "retryTimeout": "30s"}
        given |= {**options, **({"flow": flow} if flow is not None else {})}
        if "group" in given and given.get("checkpoints") != "none":
            given.setdefault("checkpointInterval", "1s")
        self.options = given
        self.called = flow or f"query-{len(stage.world.scheduler.processes)}"
        self.log: list[dict[str, Any]] = []  # Spark's offset log
        self.committed = 0
        self.batches: list[list[Row]] = []
        self.values: list[bytes] = []
        self.failure: partq.PartqError | None = None
        self.during: Callable[[], object] = lambda: None  # what happens while a batch runs
        self._lives = 0
        self.host: Host
        self.jvm: Host
        self._process: Reader
        self._reader: Any

    # --- its process --------------------------------------------------------------------------------------------------

    def start(self, *, available_now: bool = False) -> Self:
        """A new process on the same Spark checkpoint. An unfinished batch is repeated at the first trigger."""
        world = self.stage.world
        self._lives += 1
        self.failure = None
        origin_s = 1000.0 * len(world.scheduler.processes)
        self.jvm = world.machine.host_of(world.scheduler.process(f"{self.called}/jvm", origin_s=origin_s))
        self._reader = PartqDataSource(CaseInsensitiveDict(self.options)).streamReader(SOURCE)
        self._process = Reader(world.machine, f"{self.called}/{self._lives}", self.jvm, lambda: self._reader)
        self.host = self._process.host
        if available_now:
            self.fix_target()
        return self

    def begun(self, *counts: int) -> Self:
        """Started, and past its first and empty batch. Then so many messages are published to each partition."""
        self.start()
        assert self.trigger()
        assert self.rows == []
        if counts:
            self.stage.publish(*counts)
        return self

    def fix_target(self) -> None:
        """As Trigger.AvailableNow does."""
        self.ask(self._reader.prepareForTriggerAvailableNow)

    def asking(self, call: Callable[[], Any]) -> Step:
        """One of Spark's questions, of which the answer is not awaited."""
        return self.stage.begin(lambda: self._process.ask(lambda _: call()), self.jvm)

    def ask(self, call: Callable[[], Any]) -> Any:
        return self.asking(call).result()

    def kill(self) -> Self:
        """Without a word."""
        self.stage.world.scheduler.kill(self.host.process)
        return self

    def stop(self) -> Self:
        """As Spark's SIGTERM does."""
        self._process.terminate()
        self.stage.until(lambda: not self.host.process.alive)
        return self

    def freeze(self, *, jvm: bool = False) -> None:
        """Or the JVM that it works for."""
        (self.jvm if jvm else self.host).process.frozen_until_us = self.stage.now_us + _FOR_EVER_US

    def thaw(self, *, jvm: bool = False) -> None:
        process = (self.jvm if jvm else self.host).process
        process.frozen_until_us = self.stage.now_us
        for strand in process.strands:
            self.stage.world.scheduler.push(strand, 0)

    # --- what Spark does ----------------------------------------------------------------------------------------------

    @property
    def at(self) -> dict[str, Any]:
        """The offset up to which everything is complete."""
        initial: dict[str, Any] = self._reader.initialOffset()
        return self.log[self.committed - 1] if self.committed else initial

    def _next_end(self, limited: bool = True) -> dict[str, Any]:
        limit = self._reader.getDefaultReadLimit() if limited else ReadAllAvailable()
        found: dict[str, Any] = json.loads(json.dumps(self._reader.latestOffset(self.at, limit)))
        return found

    def _read(self, end: dict[str, Any]) -> list[Row]:
        tables = [each for part in self._reader.partitions(self.at, end) for each in self._reader.read(part)]
        rows = []
        for each in (row for table in tables for row in table.to_pylist()):
            rows.append(Row(each["partition"], each["offset"], each["redelivered"]))
            self.values.append(each["value"])
        return rows

    def _has_next(self) -> bool:
        """Whether there is a batch. Then its end is written down."""
        if len(self.log) == self.committed:
            end = self._next_end()
            if end == self.at:
                return False
            self.log.append(end)
        return True

    def _trigger(self) -> bool:
        """By its main thread, while it runs."""
        if not self._has_next():
            return False
        self.batches.append(self._read(self.log[self.committed]))
        self.committed += 1
        return True

    def announce(self, *, limited: bool = True) -> dict[str, Any]:
        """Spark asks for an end, and does not write it down."""
        found: dict[str, Any] = self.ask(lambda: self._next_end(limited))
        return found

    def plan(self) -> Self:
        """The first half of a trigger: the end of the next batch is in the offset log."""
        self.log.append(self.announce())
        return self

    def deliver(self) -> list[Row]:
        """The second half, without the commit."""
        rows: list[Row] = self.ask(lambda: self._read(self.log[self.committed]))
        self.batches.append(rows)
        self.during()
        return rows

    def commit(self) -> Self:
        self.committed += 1
        return self

    def trigger(self) -> bool:
        """One trigger; whether it made a batch."""
        if not self.ask(self._has_next):
            return False
        self.deliver()
        self.commit()
        return True

    def run(self) -> Self:
        """Trigger again and again from now on."""
        self.stage.begin(self._run, self.jvm)
        return self

    def _run(self) -> None:
        while self.failure is None:
            try:
                self._process.ask(lambda _: self._trigger())
            except ReaderDied:
                return
            except partq.PartqError as error:
                self.failure = error
            self.stage.world.machine.sleep(TRIGGER_S)

    def drain(self) -> Self:
        """Trigger until nothing comes any more."""
        while self.trigger():
            pass
        return self

    def goes_on_from(self, other: Query) -> Self:
        """Another query on that one's Spark checkpoint."""
        self.log, self.committed = list(other.log), other.committed
        return self

    def forget(self, log: int, commits: int | None = None) -> Self:
        """An older copy of the Spark checkpoint is put back: so many batches are in its logs."""
        del self.log[log:]
        self.committed = log if commits is None else commits
        return self

    # --- what came of it ----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def offsets(self, partition: int) -> list[int]:
        return [row.offset for row in self.rows if row.partition == partition]

    @property
    def report(self) -> dict[str, Any]:
        """`latestOffset` of its progress."""
        return self.ask(self._reader.reportLatestOffset) or {"partitions": {}}

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(map(int, self.report["partitions"]))

    @property
    def epochs(self) -> dict[int, int]:
        return {int(p): each["epoch"] for p, each in self.report["partitions"].items()}

    @property
    def name(self) -> str:
        """The flow's."""
        return str(self.log[-1]["flow"])


class Application:
    """What acknowledges by hand for a flow, in a process of its own on the same machine."""

    def __init__(self, stage: Stage, flow: str) -> None:
        self._stage, self._flow = stage, flow

    def in_hand(self) -> partq.InHand:
        def ask() -> partq.InHand:
            store = self._stage.world.url
            return partq.Acknowledger(queue=QUEUE, group=GROUP, flow=self._flow, store=store).in_hand()

        found: partq.InHand = self._stage.begin(ask).result()
        return found

    def acknowledge(self, offsets: Mapping[int, int], hand: partq.InHand | None = None) -> frozenset[int]:
        """Of what it has in hand now, or had in hand then; for which partitions that counts."""
        then = hand or self.in_hand()
        found: frozenset[int] = self._stage.begin(lambda: then.acknowledge(offsets)).result()
        return found


def begun(*queries: Query) -> Sequence[Query]:
    """Started, one after the other, each past its first and empty batch."""
    return [query.begun() for query in queries]


def delivered(*queries: Query) -> Counter[tuple[int, int]]:
    """How often each partition and offset came, to any of the queries."""
    return Counter((row.partition, row.offset) for query in queries for row in query.rows)


def again(first: int, to: int, partition: int = 0) -> list[Row]:
    """Messages that come marked."""
    return [Row(partition, offset, True) for offset in range(first, to)]


def new(first: int, to: int, partition: int = 0) -> list[Row]:
    """Messages that do not."""
    return [Row(partition, offset, False) for offset in range(first, to)]
