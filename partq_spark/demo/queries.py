"""Spark in the demo: one query publishes the flights as they come, others share them as the flows of a group.

The code of the queries is what a user would write. What is asked of Spark is done in a thread of its own, one thing
after the other, so that the story's screen lives on meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.query import StreamingQuery

import partq_spark
from partq_spark.base.errors import Unavailable
from partq_spark.demo.flights import DELIVERED, PROOF_COLUMNS, Feed, ddl, prove
from partq_spark.demo.processes import end, streaming_readers
from partq_spark.spark.local import QUICK_LOGS, make_home

LOOK_S = 0.1
READER_WAIT_S = 120.0
PUBLISHER = "publisher"


READ: Final = f"{ddl(*PROOF_COLUMNS)}, _metadata STRUCT<partition: INT, offset: BIGINT, redelivered: BOOLEAN>"
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
        .select(*PROOF_COLUMNS, "_metadata.*")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .queryName(flow)
        .start()
    )


class DemoQueries:
    """Spark and the queries of one demo. A context manager that leaves nothing alive; Spark starts with it. `do` has it
    do something; `look` from time to time.
    """

    def __init__(
        self, work: Path, log: Path, queue: Mapping[str, str], shared: Mapping[str, str], partitions: int
    ) -> None:
        """`work`: the folder that all is written to; `log`: where Spark's own words go."""
        self._partitions = partitions
        self._work = work
        self._queue = queue
        self._shared = shared
        self._log = log
        self._feed: Feed | None = None
        self._queries: dict[str, StreamingQuery] = {}
        self._readers: dict[str, int] = {}
        self._killed: list[StreamingQuery] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._under_way: list[Future[None]] = []
        self.killed_ms: dict[str, int] = {}  # Unix time
        self.facts: dict[str, Any] = {}  # the proof, when it is made

    def __enter__(self) -> Self:
        self.do(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait_for(self._under_way[:1])  # until Spark is there, nothing is known that could be ended
        if (context := SparkContext._active_spark_context) is not None:  # noqa: SLF001 - its only name
            context._accumulatorServer.shutdown()  # noqa: SLF001 - else it would say on stderr that Spark has gone
        if (gateway := SparkContext._gateway) is not None:  # noqa: SLF001
            # Else py4j's own thread, which tells the JVM what is no longer needed, would say so too.
            gateway.gateway_client.is_connected = False
            end(gateway.proc)
        self._thread.shutdown()

    def do(self, work: Callable[..., None], *arguments: str) -> None:
        """Have one of the methods below called when what was asked for before is done."""
        self._under_way.append(self._thread.submit(work, *arguments))

    def look(self) -> None:
        """Let flights come in at their pace. Raises `Unavailable` when something has failed."""
        if self._feed is not None:
            self._feed.give()
        failures = [each.exception() for each in self._under_way if each.done()]
        failures += [query.exception() for query in list(self._queries.values())]
        for failure in failures:
            if failure is not None:
                said = str(failure) or "no message"
                raise Unavailable(f"the demo's Spark queries failed: {said}; see {self._log}") from failure

    @property
    def is_idle(self) -> bool:
        """Whether all that was asked for is done."""
        return all(each.done() for each in self._under_way)

    # --- what can be done ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish what comes from now on."""
        incoming = self._work / "incoming"
        feed = Feed(self._work / "flights", incoming)
        self._queries[PUBLISHER] = publish_flights(
            self._spark, incoming, self._queue, self._work / "publish-checkpoint"
        )
        self._feed = feed

    def join(self, flow: str) -> None:
        """Start a query that shares the queue."""
        before = streaming_readers(os.getpid())
        checkpoint = self._work / f"{flow}-checkpoint"
        query = share_flights(self._spark, flow, self._shared, self._work / "delivered", checkpoint)
        self._queries[flow] = query
        until_s = time.monotonic() + READER_WAIT_S
        while not (new := streaming_readers(os.getpid()) - before):
            if query.exception() is not None or time.monotonic() > until_s:
                raise query.exception() or TimeoutError(f"Spark started no reader for {flow} in {READER_WAIT_S:.0f} s")
            time.sleep(LOOK_S)
        (self._readers[flow],) = new

    def kill(self, flow: str) -> None:
        """End a flow without a word: its reader process is gone from one instant to the next, its query fails."""
        self._killed.append(self._queries.pop(flow))
        os.kill(self._readers.pop(flow), signal.SIGKILL)
        self.killed_ms[flow] = time.time_ns() // 1_000_000

    def rest(self) -> None:
        """Let all flights that are left come now."""
        self._fed().hurry()

    def prove(self) -> None:
        """Count what was delivered."""
        for query in self._queries.values():
            if query.name != PUBLISHER:
                query.processAllAvailable()  # what comes twice would still come now
            query.stop()
        for query in self._killed:
            query.stop()  # it has failed; whatever batch it was in the middle of has ended
        self._spark.read.parquet(str(self._work / "delivered")).createOrReplaceTempView(DELIVERED)
        outcome = prove(
            lambda text: [row.asDict() for row in self._spark.sql(text).collect()],
            self._fed().flights,
            self._partitions,
        )
        self.facts = {"ok": outcome.ok, "read": outcome.delivered, **asdict(outcome)}

    def _fed(self) -> Feed:
        if self._feed is None:
            raise ValueError("nothing is published yet")
        return self._feed

    def _start(self) -> None:
        """Spark, whose own words go to the log."""
        # Workers must be this Python: the first python3 on PATH may have no partq (spark-traps.md 27).
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "SPARK_HOME" not in os.environ:
            os.environ["SPARK_HOME"] = str(make_home(self._work / "spark").folder)
        temporary = self._work / "tmp"
        temporary.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "spark.master": "local[4]",
            "spark.app.name": "partq demo",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.streaming.pollingDelay": "50ms",  # between looks for new files or messages
            "spark.local.dir": str(temporary),
            # It lives for less than a minute: what starts fast is faster, of compilers and of garbage collectors.
            "spark.driver.extraJavaOptions": (
                f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={temporary}"
            ),
        }
        conf = SparkConf().setAll([*settings.items(), QUICK_LOGS])
        with self._log.open("a") as log:
            # Ctrl-C reaches the demo alone, which then ends Spark in order.
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": log, "stderr": log, "start_new_session": True}
            )
        SparkContext(conf=conf, gateway=gateway)
        self._spark = SparkSession.builder.getOrCreate()
        partq_spark.register(self._spark)
