"""The demo's Spark driver: one query publishes the flights as they come, others share them as the flows of a group.

A process of its own (`python -m partq_spark.demo.queries`). It does what it is told on standard input, one command per
line (`publish`, `join FLOW`, `kill FLOW`, `rest`, `prove`), and ends when that is closed. It prints one JSON
object per line about what it has done so far. The code of the queries is what a user would write.
"""

from __future__ import annotations

import argparse
import json
import os
import queue as queues
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

import partq_spark
from partq_spark.demo.flights import Feed, ddl
from partq_spark.demo.processes import streaming_readers
from partq_spark.demo.proof import COLUMNS, DELIVERED, prove
from partq_spark.spark.local import QUICK_LOGS

LOOK_S = 0.1
READER_WAIT_S = 120.0
PUBLISHER = "publisher"


READ: Final = f"{ddl(*COLUMNS)}, _metadata STRUCT<partition: INT, offset: BIGINT, redelivered: BOOLEAN>"
"""The columns that a flow's query asks for; nothing else is decoded."""


def publish_flights(spark: SparkSession, flights: Path, queue: Mapping[str, str], checkpoint: Path) -> StreamingQuery:
    """Publish every flight, a row of 19 columns, one file per micro-batch as files come."""
    return (
        spark.readStream.schema(ddl())
        .option("maxFilesPerTrigger", 1)
        .parquet(str(flights))
        .writeStream.format("partq")
        .options(**queue)
        .option("checkpointLocation", str(checkpoint))
        .queryName(PUBLISHER)
        .start()
    )


def share_flights(
    spark: SparkSession, flow: str, queue: Mapping[str, str], output: Path, checkpoint: Path
) -> StreamingQuery:
    """Read the group's share of the queue, and write each micro-batch to a folder of its own, so that one that comes
    again replaces itself. `row` is the order in which messages came, `delivered_us` when.
    """

    def write(batch: DataFrame, number: int) -> None:
        batch = batch.coalesce(1).withColumn("row", F.monotonically_increasing_id())
        batch = batch.withColumn("delivered_us", F.lit(time.monotonic_ns() // 1000))
        batch.write.mode("overwrite").parquet(f"{output}/flow={flow}/batch={number}")

    return (
        spark.readStream.format("partq")
        .options(**queue)
        .option("flow", flow)
        .option("startingOffsets", "earliest")
        .schema(READ)
        .load()
        .select(*COLUMNS, "_metadata.*")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .queryName(flow)
        .start()
    )


class Rows(StreamingQueryListener):
    """Counts each query's rows as its micro-batches complete."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        name = event.progress.name or ""
        self.of[name] = self.of.get(name, 0) + event.progress.numInputRows

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def report(event: str, **facts: object) -> None:
    """One line for the process that started this one."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 -- stdout is this process's interface


class DemoQueries:
    """The queries of one demo. `obey` one command, `look` from time to time."""

    def __init__(
        self, spark: SparkSession, work: Path, queue: Mapping[str, str], shared: Mapping[str, str], partitions: int
    ) -> None:
        self._spark = spark
        self._partitions = partitions
        self._work = work
        self._queue = queue
        self._shared = shared
        self._feed: Feed | None = None
        self._rows = Rows()
        self._queries: dict[str, StreamingQuery] = {}
        self._readers: dict[str, int] = {}
        self._killed: list[StreamingQuery] = []
        self._told = 0
        self._published_s = 0.0
        self._begun_s = time.monotonic()
        spark.streams.addListener(self._rows)

    def obey(self, command: str) -> bool:
        """Do it; False when it was the last thing to do."""
        word, _, name = command.partition(" ")
        match word:
            case "join":
                self._join(name)
            case "kill":
                self._kill(name)
            case "publish":
                self._publish()
            case "rest":
                self._fed().hurry()
            case "prove":
                self._prove()
                return False
            case _:
                raise ValueError(f"unknown command {command!r}")
        return True

    def look(self) -> None:
        """Let flights come in at their pace, tell how far they are. Raises what ended a query."""
        self._give()
        for query in self._queries.values():
            failure = query.exception()
            if failure is not None:
                raise failure
        published = self._rows.of.get(PUBLISHER, 0)
        if published != self._told:
            self._told = published
            self._published_s = time.monotonic() - self._begun_s
            report("progress", published=published)

    def _fed(self) -> Feed:
        if self._feed is None:
            raise ValueError("nothing is published yet")
        return self._feed

    def _give(self) -> None:
        if self._feed is not None:
            self._feed.give()

    def _publish(self) -> None:
        incoming = self._work / "incoming"
        self._feed = Feed(self._work / "flights", incoming)
        self._queries[PUBLISHER] = publish_flights(
            self._spark, incoming, self._queue, self._work / "publish-checkpoint"
        )
        self._begun_s = time.monotonic()

    def _join(self, flow: str) -> None:
        before = streaming_readers(os.getpid())
        checkpoint = self._work / f"{flow}-checkpoint"
        query = share_flights(self._spark, flow, self._shared, self._work / "delivered", checkpoint)
        self._queries[flow] = query
        until_s = time.monotonic() + READER_WAIT_S
        while not (new := streaming_readers(os.getpid()) - before):
            if query.exception() is not None or time.monotonic() > until_s:
                raise query.exception() or TimeoutError(f"Spark started no reader for {flow} in {READER_WAIT_S:.0f} s")
            time.sleep(LOOK_S)
            self._give()
        (self._readers[flow],) = new

    def _kill(self, flow: str) -> None:
        """End a flow without a word: its reader process is gone from one instant to the next, its query fails."""
        query = self._queries.pop(flow)
        pid = self._readers.pop(flow)
        os.kill(pid, signal.SIGKILL)
        report("killed", flow=flow, pid=pid, at_ms=time.time_ns() // 1_000_000)
        self._killed.append(query)

    def _prove(self) -> None:
        read_s = time.monotonic() - self._begun_s
        for query in self._queries.values():
            if query.name != PUBLISHER:
                query.processAllAvailable()  # what comes twice would still come now
            query.stop()
        for query in self._killed:
            query.stop()  # it has failed; whatever batch it was in the middle of has ended
        published = self._rows.of.get(PUBLISHER, 0)
        self._spark.read.parquet(str(self._work / "delivered")).createOrReplaceTempView(DELIVERED)
        outcome = prove(
            lambda text: [row.asDict() for row in self._spark.sql(text).collect()],
            self._fed().flights,
            self._partitions,
        )
        times = {"published_s": self._published_s, "read_s": read_s}
        report("proved", ok=outcome.ok, published=published, read=outcome.delivered, **times, **asdict(outcome))


def run(work: Path, queue: Mapping[str, str], shared: Mapping[str, str], partitions: int) -> None:
    """Obey until `prove` has been done or standard input is closed."""
    commands: queues.SimpleQueue[str] = queues.SimpleQueue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    temporary = str(work / "tmp")
    Path(temporary).mkdir(exist_ok=True)
    begun_s = time.monotonic()
    spark = (
        SparkSession.builder.master("local[4]")
        .appName("partq demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.local.dir", temporary)
        .config(*QUICK_LOGS)
        # It lives for less than a minute: the compiler that starts fast is the faster one.
        .config(
            "spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir={temporary}"
        )
        .getOrCreate()
    )
    partq_spark.register(spark)
    report("started", spark=spark.version, seconds=time.monotonic() - begun_s)
    driver = DemoQueries(spark, work, queue, shared, partitions)
    while True:
        try:
            if not driver.obey(commands.get(timeout=LOOK_S)):
                break
        except queues.Empty:
            driver.look()
    spark.stop()


def _listen(commands: queues.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    os._exit(3)  # the process that started this is gone; the JVM and its workers end with their parent


def main() -> None:
    """Command line: a folder to work in, the queue, its partitions, the group and where that keeps who has what."""
    parser = argparse.ArgumentParser(description="the demo's queries; started by `partq demo`")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    for name in ("store", "namespace", "queue", "group", "ownership", "session"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    queue = {"store": given.store, "namespace": given.namespace, "queue": given.queue}
    shared = {**queue, "group": given.group, "ownership": given.ownership, "sessionTimeout": f"{given.session}s"}
    try:
        run(given.work, queue, shared, given.partitions)
    except Exception as error:  # noqa: BLE001 -- the other process has to learn of any error
        report("failed", error=str(error))
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
