"""One Spark driver with the same settings for every side of a comparison, streaming queries run to their end, and sides
that take turns with such queries.

Every side runs once to warm up, then once in each round, so that a machine that slows down meanwhile slows all of them,
and in another order each round, so that what one leaves to the next (a disk that is busy yet, Python workers that have
ended) falls on all of them. Only what handled exactly as many rows as expected counts.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final

import psutil
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from partq_spark.spark.local import QUICK_LOGS
from tools.messages import DDL
from tools.report import Goal, Measure, Series

MASTER: Final = "local[2]"
DRIVER_MEMORY: Final = "2g"
QUERY_LIMIT_S: Final = 1800
_JVM_END_S: Final = 60
logger = logging.getLogger(__name__)
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One streaming query from `start()` to its end."""

    wall_s: float  # from before start() until the query has ended
    batches_s: float  # the sum of Spark's triggerExecution over all micro-batches
    rows: int


@contextmanager
def session(
    work: Path, jars: tuple[Path, ...] = (), *, home: Path | None = None, settings: Mapping[str, str] = NOTHING
) -> Iterator[SparkSession]:
    """A driver of its own in this process, whose JVM ends with it; `jars` go on its class path, `home` is its Spark
    home (None: the installed one), `settings` are what is not Spark's default.
    """
    builder: Any = SparkSession.builder
    builder = (
        builder.master(MASTER)
        .appName("partq bench")
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.sql.warehouse.dir", str(work / "spark-warehouse"))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config(map=dict(settings))
    )
    if jars:
        builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
    with _spark_home(home):
        spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    except Exception:
        logger.exception("within the session")  # Spark's message is in the JVM, which ends below
        raise
    finally:
        spark.stop()
        _end_jvm()


@contextmanager
def _spark_home(home: Path | None) -> Iterator[None]:
    """The JVM that starts meanwhile, and its workers, have it for their Spark home."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _end_jvm() -> None:
    """The next session of this process starts a new one."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is how it learns that nobody needs it any more
    gateway.proc.wait(_JVM_END_S)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


@contextmanager
def logs(spark: SparkSession, *, quick: bool) -> Iterator[None]:
    """Queries that run meanwhile write Spark's own logs without starting programs, or as they do by default."""
    if quick:
        spark.conf.set(*QUICK_LOGS)
    try:
        yield
    finally:
        spark.conf.unset(QUICK_LOGS[0])


LOGS: Final = {"Spark's default logs": False, "quick logs": True}
"""What tables call them, and whether they are `quick`."""


def run_to_end(writer: DataStreamWriter, checkpoint: Path) -> Run:
    """Start with trigger AvailableNow and a new Spark checkpoint, wait for the end; raises what the query raised.

    What earlier runs left to be written to the disk is written before the clock starts, or they would be paid for here.
    """
    os.sync()
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    begun_s = time.perf_counter()
    query = writer.start()
    try:
        if not query.awaitTermination(QUERY_LIMIT_S):
            raise TimeoutError(f"a query of the benchmark did not end within {QUERY_LIMIT_S} s: {query.status}")
        wall_s = time.perf_counter() - begun_s
    finally:
        query.stop()
    progress = [json.loads(each.json) for each in query.recentProgress]
    shutil.rmtree(checkpoint, ignore_errors=True)
    return Run(
        wall_s=wall_s,
        batches_s=sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000,
        rows=sum(source["numInputRows"] for each in progress for source in each["sources"]),
    )


def and_synced(run: Run) -> Run:
    """`run` with the time that it takes now until all that it wrote is on the disk, as it is when partq's sink ends."""
    begun_s = time.perf_counter()
    os.sync()
    took_s = time.perf_counter() - begun_s
    return replace(run, wall_s=run.wall_s + took_s, batches_s=run.batches_s + took_s)


def checked(run: Run, rows: int, what: str) -> Run:
    """`run` itself, if it handled exactly `rows` rows: a fast wrong answer is no result."""
    if run.rows != rows:
        raise RuntimeError(f"{what} handled {run.rows} rows, {rows} were expected: the measurement is void")
    return run


def parquet_stream(spark: SparkSession, folder: Path, ddl: str = DDL) -> DataFrame:
    """Spark's own streaming source over a folder of Parquet files."""
    return spark.readStream.schema(ddl).parquet(str(folder))


def driver_jvm() -> psutil.Process:
    """The JVM that this process started for its driver."""
    found = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} JVMs run below this process, one was expected")
    return found[0]


# --- sides that take turns --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison: a query that can be run again and again, and what partq's rate is to be of its own:
    `goal` for whole queries, `batches_goal` for their micro-batches alone.
    """

    name: str
    run: Callable[[], Run]
    goal: Goal | None = None
    batches_goal: Goal | None = None


def take_turns(sides: Sequence[Side], rounds: int, rows: int) -> list[list[Run]]:
    """Every side once to warm up (not counted), then once in each round, whose order its number decides; each run must
    have handled exactly `rows` rows.
    """
    runs: list[list[Run]] = [[] for _ in sides]
    for number in range(rounds + 1):
        name = f"round {number} of {rounds}" if number else "warm-up"
        pairs = [*zip(sides, runs, strict=True)]
        for side, done in Random(number).sample(pairs, len(pairs)):
            run = checked(side.run(), rows, side.name)
            logger.info("%s, %s: %.2f s, micro-batches %.2f s", name, side.name, run.wall_s, run.batches_s)
            if number:
                done.append(run)
    return runs


def measures(what: str, sides: Sequence[Side], runs: Sequence[Sequence[Run]]) -> list[Measure]:
    """The first side against every other: whole queries, then micro-batches alone."""
    whole, alone = (
        [_rate(side.name, done, seconds) for side, done in zip(sides, runs, strict=True)]
        for seconds in (lambda run: run.wall_s, lambda run: run.batches_s)
    )
    return [
        *(
            Measure(what=f"{what}, whole query", subject=whole[0], reference=other, goal=side.goal)
            for side, other in zip(sides[1:], whole[1:], strict=True)
        ),
        *(
            Measure(what=f"{what}, micro-batches alone", subject=alone[0], reference=other, goal=side.batches_goal)
            for side, other in zip(sides[1:], alone[1:], strict=True)
        ),
    ]


def _rate(name: str, runs: Sequence[Run], seconds: Callable[[Run], float]) -> Series:
    return Series(name=name, unit="k rows/s", samples=tuple(run.rows / seconds(run) / 1000 for run in runs))
