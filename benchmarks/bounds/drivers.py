"""How long a session takes to write its first messages and a query to start, read and end (`start`), and
what two of Spark's settings for its Python workers are worth to partq's source and sink (`workers`).
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bed import Bed, bed
from benchmarks.floor import BATCH_ROWS
from benchmarks.microbatch import FIRST_BATCHES, durations, publish_ahead
from benchmarks.parts import Settings
from benchmarks.processes import in_new_process
from benchmarks.spark import Run, checked, run_to_end, session
from partq_spark.log.admin import create_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.spark.local import make_home
from tools.report import Measure, compared

logger = logging.getLogger(__name__)


# --- starting ---------------------------------------------------------------------------------------------------------

QUERIES: Final = 6  # of one driver; the first starts what all of them need, and does not count
_ROWS: Final = 100
_LIMIT_S: Final = 300


def start(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Once with the Spark home that is installed, whose `pyspark.zip` every Python worker imports from, and once with
    one that has no such archive (`partq_spark.spark.local`). Each sample is a driver of its own; the two take turns,
    after one round to warm up the page cache.
    """
    homes = (make_home(settings.work / "spark-home").folder, None)
    found: list[list[dict[str, float]]] = [[], []]
    for number in range(settings.rounds + 1):
        for home, samples in zip(homes, found, strict=True):
            work = settings.work / f"{number}-{'light' if home else 'installed'}"
            samples.append(in_new_process(__name__, work, limit_s=_LIMIT_S, spark_home=home))
        logger.info("round %d: without the archive %s, with it %s", number, found[0][-1], found[1][-1])

    light, installed = (samples[1:] for samples in found)
    return [
        compared(
            what,
            "s",
            ("without the archive", [sample[name] for sample in light]),
            ("installed Spark home", [sample[name] for sample in installed]),
        )
        for what, name in (
            ("a session's first write, of 100 messages", "write_s"),
            ("a streaming query of one micro-batch, from `start()` to its end", "query_s"),
        )
    ], []


def _driver(work: Path) -> dict[str, float]:
    """One driver: a write, then queries, each of which reads everything."""
    url = f"file://{work}/store"
    create_queue(open_store(url), "default", "orders", 4)
    with session(work) as spark:
        rows = spark.createDataFrame(
            [(f"key{number % 7}", b"value") for number in range(_ROWS)], "key string, value binary"
        )
        begun_s = time.perf_counter()
        rows.write.format("partq").option("store", url).mode("append").save("orders")
        write_s = time.perf_counter() - begun_s
        taken_s = []
        for _ in range(QUERIES):
            stream = spark.readStream.format("partq").options(store=url, startingOffsets="earliest").load("orders")
            run = run_to_end(stream.writeStream.format("noop"), work / "checkpoint")
            taken_s.append(checked(run, _ROWS, "a query").wall_s)
    return {"write_s": write_s, "query_s": statistics.median(taken_s[1:])}


# --- settings for Python workers --------------------------------------------------------------------------------------

SIDES: Final[Mapping[str, Mapping[str, str]]] = {
    "Spark's default": {},
    "unix sockets": {"spark.python.unix.domain.socket.enabled": "true"},
    "pipelined": {"spark.python.udf.pipelined.enabled": "true"},
}
_BATCHES: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Of one driver. Rates are of whole queries, in thousands of rows a second; a micro-batch is in ms."""

    publishing: float
    reading: float
    reading_alone: float  # its micro-batches alone
    micro_batch: float


def workers(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Unix sockets in place of TCP between the JVM and its workers, and a thread of its own for writing to a worker
    while the task reads from it. Both are settings of a driver, so each sample has one of its own; they take turns.
    """
    found: dict[str, list[Sample]] = {name: [] for name in SIDES}
    for number in range(settings.rounds):
        for name, given in SIDES.items():
            with bed(settings, spark=given) as made:
                found[name].append(_sample(made, settings))
            logger.info("round %d of %d: %s, %s", number + 1, settings.rounds, name, found[name][-1])

    def samples(name: str, what: str) -> tuple[str, list[float]]:
        return name, [getattr(sample, what) for sample in found[name]]

    default, *others = SIDES
    return [
        compared(f"{title}: {name}", unit, samples(name, what), samples(default, what))
        for what, title, unit in (
            ("publishing", "publishing, whole query", "k rows/s"),
            ("reading", "reading, whole query", "k rows/s"),
            ("reading_alone", "reading, micro-batches alone", "k rows/s"),
            ("micro_batch", f"a micro-batch of {BATCH_ROWS} rows, into noop", "ms"),
        )
        for name in others
    ], []


def _sample(made: Bed, settings: Settings) -> Sample:
    stream = made.spark.readStream.format("partq").option("startingOffsets", "earliest")

    def published() -> tuple[QueueLog, Run]:
        queue = made.fresh_queue()
        return queue, checked(made.publishing("partq", made.options(queue)), settings.rows, "publishing")

    def read(queue: QueueLog) -> Run:
        return checked(made.reading(stream.options(**made.options(queue)).load), settings.rows, "reading")

    published()  # warms up, and so does the first read
    queue, publishing = published()
    read(queue)
    reading = read(queue)
    wanted = 20 if settings.quick else _BATCHES
    small = made.fresh_queue()
    publish_ahead(small, FIRST_BATCHES + wanted)
    steady = stream.options(**made.options(small), maxMessagesPerTrigger=BATCH_ROWS).load()
    return Sample(
        publishing=settings.rows / publishing.wall_s / 1000,
        reading=settings.rows / reading.wall_s / 1000,
        reading_alone=settings.rows / reading.batches_s / 1000,
        micro_batch=statistics.median(durations(steady.writeStream.format("noop"), made.fresh_folder(), wanted)),
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_driver(Path(sys.argv[1]))) + "\n")
