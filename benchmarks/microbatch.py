"""Part `microbatch`: what a small micro-batch costs, partq to partq, against the bare Python source and sink (`floor`).

Each with Spark's own logs as they are by default, and with the setting that writes them without starting programs
(`partq_spark.spark.local`). All four run in the same JVM, one after the other, in turns. What is compared is
`triggerExecution` of Spark's query progress: planning, reading, writing and committing one micro-batch, the logs of the
Spark checkpoint included. The first micro-batches of a query start Python processes and fill caches, and do not count.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.floor import BATCH_ROWS, FloorSource
from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.spark import LOGS, logs, session
from benchmarks.staging import publish_rows
from partq_spark.log.admin import create_queue, delete_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tools.messages import make_messages
from tools.report import Goal, Measure, compared

WARM_UP_BATCHES: Final = 100
BATCHES: Final = 100
FIRST_BATCHES: Final = 10  # of every query, not counted: worker start, imports, an empty batch that fixes positions
_LIMIT_S: Final = 300.0
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """One warm-up of 100 micro-batches a side, then rounds of 100 a side."""
    batches = 20 if settings.quick else BATCHES
    with session(settings.work) as spark:
        spark.dataSource.register(FloorSource)
        sides = {"partq": _partq, "bare Python source and sink": _floor}
        medians: dict[tuple[str, str], list[float]] = {(name, each): [] for each in LOGS for name in sides}
        for number in range(settings.rounds + 1):
            wanted = batches if number else min(batches, WARM_UP_BATCHES)
            for (name, each), found in medians.items():
                with logs(spark, quick=LOGS[each]):
                    median = statistics.median(sides[name](spark, settings.work, wanted))
                logger.info("round %d of %d: %s, %s %.0f ms", number, settings.rounds, name, each, median)
                if number:  # the first warms up
                    found.append(median)
    partq, floor = sides
    what = f"a micro-batch of {BATCH_ROWS} rows, median of {batches}"
    default, quick = LOGS
    return [
        *(
            compared(
                f"{what}, {each}",
                "ms",
                (partq, medians[partq, each]),
                (floor, medians[floor, each]),
                Goal(sign="<=", limit=1.1),
            )
            for each in LOGS
        ),
        compared(
            f"{what}, {quick}", "ms", (partq, medians[partq, quick]), (f"partq, {default}", medians[partq, default])
        ),
    ], []


def _floor(spark: SparkSession, work: Path, batches: int) -> list[float]:
    stream = spark.readStream.format("bench_floor").option("batches", FIRST_BATCHES + batches).load()
    return durations(stream.writeStream.format("bench_floor"), work / "floor-checkpoint", batches)


def _partq(spark: SparkSession, work: Path, batches: int) -> list[float]:
    """From a queue in which everything has been published, 5 messages a publish, to an empty queue."""
    store = open_store(f"file://{work}/store")
    source, sink = (create_queue(store, NAMESPACE, name, PARTITIONS) for name in ("from", "to"))
    publish_ahead(source, FIRST_BATCHES + batches)
    try:
        return durations(
            _stream(spark, source).writeStream.format("partq").options(**_options(sink)),
            work / "partq-checkpoint",
            batches,
        )
    finally:
        delete_queue(source)
        delete_queue(sink)


def _options(queue: QueueLog) -> dict[str, str]:
    return {"store": queue.store.url, "namespace": queue.namespace, "queue": queue.name}


def _stream(spark: SparkSession, queue: QueueLog) -> DataFrame:
    source = spark.readStream.format("partq").options(**_options(queue), startingOffsets="earliest")
    return source.option("maxMessagesPerTrigger", BATCH_ROWS).load()


def publish_ahead(queue: QueueLog, publishes: int) -> None:
    """As a small producer would: each publish has a segment of its own with five messages."""
    messages = make_messages(publishes * BATCH_ROWS).combine_chunks()
    for number in range(publishes):
        publish_rows(queue, messages.slice(number * BATCH_ROWS, BATCH_ROWS), seed=str(number))


def durations(writer: DataStreamWriter, checkpoint: Path, batches: int) -> list[float]:
    """`triggerExecution` in ms of `batches` micro-batches with five rows each, the first ones left out."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
    try:
        _wait(query, FIRST_BATCHES + batches - 1)
        progress = [json.loads(each.json) for each in query.recentProgress]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    found = [
        (each["durationMs"]["triggerExecution"], each["sources"][0]["numInputRows"])
        for each in progress
        if each["batchId"] >= FIRST_BATCHES
    ][:batches]
    rows = {rows for _, rows in found}
    if len(found) < batches or rows != {BATCH_ROWS}:
        raise RuntimeError(f"{len(found)} micro-batches of {rows} rows ran, {batches} of {BATCH_ROWS} were expected")
    return [float(duration) for duration, _ in found]


def _wait(query: StreamingQuery, last_batch: int) -> None:
    """Until the micro-batch of this number is complete; looks rarely, since a look takes the driver's time."""
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        error = query.exception()
        if error is not None:
            raise error
        last = query.lastProgress
        if last is not None and last.batchId >= last_batch:
            return
        time.sleep(1.0)
    raise TimeoutError(f"micro-batch {last_batch} was not complete within {_LIMIT_S:.0f} s: {query.status}")
