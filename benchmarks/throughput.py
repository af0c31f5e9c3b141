"""Parts `read` and `publish`: how many messages a second, against Spark's Parquet source and sink, and against Kafka.

All sides of a comparison take turns in one driver, round by round, over the same rows. Nothing but the queries lies
within the clock: folders, queues and topics are made before and removed after.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.bed import Bed, bed
from benchmarks.kafka import note as kafka_note
from benchmarks.ready_made import ReadySource, write_ready
from benchmarks.report import Goal, Measure, Series
from benchmarks.settings import PARTITIONS, Settings
from benchmarks.spark import Run, checked, parquet_stream
from partq_spark.log.admin import delete_queue
from partq_spark.query.schema import default_columns
from partq_spark.spark.options import batch_source_options
from partq_spark.spark.reader import PartqBatchReader, read_task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison: a query that can be run again and again, and what partq's rate is to be of its own."""

    name: str
    run: Callable[[], Run]
    goal: Goal | None = None


def take_turns(sides: Sequence[Side], rounds: int, rows: int) -> list[list[Run]]:
    """Every side once to warm up (not counted), then A B A B …; each run must have handled exactly `rows` rows."""
    runs: list[list[Run]] = [[] for _ in sides]
    for number in range(rounds + 1):
        name = f"round {number} of {rounds}" if number else "warm-up"
        for side, done in zip(sides, runs, strict=True):
            run = checked(side.run(), rows, side.name)
            logger.info("%s, %s: %.2f s, micro-batches %.2f s", name, side.name, run.wall_s, run.batches_s)
            if number:
                done.append(run)
    return runs


def read(settings: Settings) -> tuple[list[Measure], list[str]]:
    """AvailableNow into noop: a queue; its columns in Parquet and ready made; `key` and `value` in Parquet; a topic."""
    with bed(settings) as made:
        queue = made.fresh_queue()
        checked(made.publishing("partq", made.options(queue)), settings.rows, "publishing the rows to be read")
        messages = made.spark.read.format("partq").options(**made.options(queue)).load()
        ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in messages.schema.fields)
        all_columns, two_columns = made.fresh_folder(), made.fresh_folder()
        messages.write.parquet(str(all_columns))
        messages.select("key", "value").write.parquet(str(two_columns))

        stream = made.spark.readStream.format("partq").options(**made.options(queue), startingOffsets="earliest")
        sides = [
            Side(name="partq", run=lambda: made.reading(stream.load)),
            Side(
                name="Parquet source",
                run=lambda: made.reading(lambda: parquet_stream(made.spark, all_columns, ddl)),
                goal=Goal(sign=">=", limit=1.0),
            ),
            Side(
                name="Parquet source, key and value only",
                run=lambda: made.reading(lambda: parquet_stream(made.spark, two_columns)),
            ),
        ]
        sides.insert(2, _ready_made(made, settings.rows, ddl, made.options(queue)))
        if (topics := made.topics) is not None:
            topic = topics.fresh()
            checked(made.publishing("kafka", topics.sink(topic)), settings.rows, "publishing the rows to Kafka")
            sides.append(
                Side(
                    name="Kafka source",
                    run=lambda: made.reading(lambda: topics.stream(topic)),
                    goal=Goal(sign=">=", limit=3.0),
                )
            )
        runs = take_turns(sides, settings.rounds, settings.rows)
        return measures("reading", sides, runs), [kafka_note()] if made.topics else []


def _ready_made(made: Bed, rows: int, ddl: str, options: dict[str, str]) -> Side:
    """A Python source that only gives out what partq made before: how much of the time is Spark's own."""
    reader = PartqBatchReader(batch_source_options(options), default_columns(False))
    file = made.fresh_folder()
    write_ready(file, read_task(reader.partitions()[0]))
    made.spark.dataSource.register(ReadySource)
    stream = made.spark.readStream.format("bench_ready").options(file=str(file), ddl=ddl, rows=rows, tasks=PARTITIONS)
    return Side(name="bare Python source, batches ready made", run=lambda: made.reading(stream.load))


def publish(settings: Settings) -> tuple[list[Measure], list[str]]:
    """AvailableNow from a Parquet stream: into a new queue, a new Parquet folder, a new topic."""
    with bed(settings) as made:
        sides = [
            Side(name="partq", run=lambda: _to_partq(made)),
            Side(name="Parquet file sink", run=lambda: _to_parquet(made), goal=Goal(sign=">=", limit=1.0)),
        ]
        if made.topics is not None:
            sides.append(Side(name="Kafka sink", run=lambda: _to_kafka(made), goal=Goal(sign=">=", limit=2.0)))
        runs = take_turns(sides, settings.rounds, settings.rows)
        return measures("publishing", sides, runs), [kafka_note()] if made.topics else []


def _to_partq(made: Bed) -> Run:
    queue = made.fresh_queue()
    run = made.publishing("partq", made.options(queue))
    if queue.refresh().messages != run.rows:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {run.rows} were published: the run is void")
    delete_queue(queue)
    return run


def _to_parquet(made: Bed) -> Run:
    folder = made.fresh_folder()
    run = made.publishing("parquet", {"path": str(folder)})
    shutil.rmtree(folder)
    return run


def _to_kafka(made: Bed) -> Run:
    if made.topics is None:
        raise RuntimeError("Kafka is not running: ask for it with --peer kafka")
    topic = made.topics.fresh()
    run = made.publishing("kafka", made.topics.sink(topic))
    made.topics.delete(topic)
    return run


# --- the lines of the table -------------------------------------------------------------------------------------------


def measures(verb: str, sides: Sequence[Side], runs: Sequence[Sequence[Run]]) -> list[Measure]:
    """The first side against every other: whole queries, which the goals are about, then micro-batches alone."""

    def compared(what: str, seconds: Callable[[Run], float], goals: bool) -> list[Measure]:
        series = [_rate(side.name, done, seconds) for side, done in zip(sides, runs, strict=True)]
        return [
            Measure(what=f"{verb}, {what}", subject=series[0], reference=other, goal=side.goal if goals else None)
            for side, other in zip(sides[1:], series[1:], strict=True)
        ]

    return [
        *compared("whole query", lambda run: run.wall_s, True),
        *compared("micro-batches alone", lambda run: run.batches_s, False),
    ]


def _rate(name: str, runs: Sequence[Run], seconds: Callable[[Run], float]) -> Series:
    return Series(name=name, unit="k rows/s", samples=tuple(run.rows / seconds(run) / 1000 for run in runs))
