"""Parts `read` and `publish`: how many messages a second, against Spark's Parquet source and sink, against a Python
source and sink that do nothing, and against Kafka.

All sides of a comparison take turns in one driver, round by round, over the same rows. Nothing but the queries lies
within the clock: folders, queues and topics are made before and removed after.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame

from benchmarks.bed import Bed, bed
from benchmarks.floor import FloorSource, ReadySource, write_ready
from benchmarks.kafka import note as kafka_note
from benchmarks.parts import PARTITIONS, Settings
from benchmarks.spark import Run, Side, checked, measures, parquet_stream, take_turns
from partq_spark.log.admin import delete_queue
from partq_spark.query.settings import default_ddl
from partq_spark.spark.local import make_home
from partq_spark.spark.options import batch_source_options
from partq_spark.spark.reader import PartqBatchReader, read_task
from tools.report import FLOOR, Goal, Measure

ALL: Final = default_ddl(False)
TEXTS: Final = "key string, value string"
BARE_SOURCE: Final = f"{FLOOR} source, batches ready made"
BARE_SINK: Final = f"{FLOOR} sink, keeps nothing"
DURABLE_SINK: Final = "bare and durable Python sink"


# --- reading ----------------------------------------------------------------------------------------------------------


def read(settings: Settings) -> tuple[list[Measure], list[str]]:
    """AvailableNow into noop: a queue, its columns in Parquet and ready made, a topic; all columns, and two as text.
    In a driver with the installed Spark home, then (without Kafka) in one with a home from `partq spark-home`.
    """
    with bed(settings) as made:
        found = _read(made, settings)
    light = make_home(settings.work / "spark-home").folder
    with bed(replace(settings, peer=None), home=light) as made:
        found += [replace(each, what=f"{each.what}, home without archive") for each in _read(made, settings)]
    return found, [kafka_note()] if settings.peer else []


def _read(made: Bed, settings: Settings) -> list[Measure]:
    queue = made.fresh_queue()
    checked(made.publishing("partq", made.options(queue)), settings.rows, "publishing the rows to be read")
    all_columns, two_columns = made.fresh_folder(), made.fresh_folder()
    messages = made.spark.read.format("partq").options(**made.options(queue))
    messages.load().write.parquet(str(all_columns))
    messages.schema(TEXTS).load().write.parquet(str(two_columns))

    def queued(wanted: str) -> DataFrame:
        stream = made.spark.readStream.format("partq").options(**made.options(queue), startingOffsets="earliest")
        return (stream if wanted is ALL else stream.schema(wanted)).load()

    def sides(wanted: str, folder: Path, goal: Goal | None = None) -> list[Side]:
        """The same columns of the queue, of Parquet files, and ready made."""
        ready = ready_made(made, settings.rows, wanted, made.options(queue))
        files = partial(made.reading, lambda: parquet_stream(made.spark, folder, wanted))
        return [
            Side(name="partq", run=lambda: made.reading(lambda: queued(wanted))),
            Side(name="Parquet source", run=files, goal=goal),
            Side(name=BARE_SOURCE, run=lambda: made.reading(ready), batches_goal=Goal(sign=">=", limit=0.95)),
        ]

    seven = sides(ALL, all_columns, Goal(sign=">=", limit=1.0))
    two = sides(TEXTS, two_columns)
    if (topics := made.topics) is not None:
        topic = topics.fresh()
        checked(made.publishing("kafka", topics.sink(topic)), settings.rows, "publishing the rows to Kafka")
        kafka = partial(made.reading, lambda: topics.stream(topic))
        seven.append(Side(name="Kafka source", run=kafka, goal=Goal(sign=">=", limit=3.0)))
    runs = take_turns([*seven, *two], settings.rounds, settings.rows)
    return [
        *measures("reading all seven columns", seven, runs[: len(seven)]),
        *measures("reading `key` and `value` as text", two, runs[len(seven) :]),
    ]


def ready_made(made: Bed, rows: int, ddl: str, options: Mapping[str, str]) -> Callable[[], DataFrame]:
    """A stream by a Python source that only gives out what partq made before of a queue's columns: how much of the time
    is Spark's own.
    """
    reader = PartqBatchReader(batch_source_options(options), made.spark.createDataFrame([], ddl).schema)
    file = made.fresh_folder()
    write_ready(file, read_task(reader.partitions()[0]))
    made.spark.dataSource.register(ReadySource)
    stream = made.spark.readStream.format(ReadySource.name())
    return stream.options(file=str(file), ddl=ddl, rows=rows, tasks=PARTITIONS).load


# --- publishing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """All rows, published by one query to a new place: how long it took, how the columns that one names are read, how
    the place goes away; and the options by which partq finds it, if it is a queue.
    """

    run: Run
    source: Callable[[Sequence[str]], DataFrame]
    remove: Callable[[], object]
    options: Mapping[str, str] = field(default_factory=dict)


def publish(settings: Settings) -> tuple[list[Measure], list[str]]:
    """AvailableNow from a Parquet stream: into a new queue, a Parquet folder, sinks that keep nothing, or all as it
    comes, a topic.
    """

    def least(limit: float) -> Goal:
        return Goal(sign=">=", limit=limit)

    with bed(settings) as made:
        sides = [
            Side(name="partq", run=once(_to_partq, made)),
            Side(name="Parquet file sink", run=once(to_parquet, made), goal=least(0.9)),
            Side(name="Parquet file sink, and sync", run=once(partial(to_parquet, synced=True), made)),
            Side(name=BARE_SINK, run=partial(to_nothing, made), goal=least(0.75)),
            Side(name=DURABLE_SINK, run=partial(to_files, made), goal=least(0.95)),
        ]
        if made.topics is not None:
            sides.append(Side(name="Kafka sink", run=once(to_kafka, made), goal=least(1.6)))
        runs = take_turns(sides, settings.rounds, settings.rows)
        return measures("publishing", sides, runs), [kafka_note()] if made.topics else []


def once(to: Callable[[Bed], Published], made: Bed) -> Callable[[], Run]:
    """Publish, and take away what was published."""

    def run() -> Run:
        published = to(made)
        published.remove()
        return published.run

    return run


def _to_partq(made: Bed) -> Published:
    queue = made.fresh_queue()
    options = made.options(queue)
    run = made.publishing("partq", options)
    if queue.refresh().messages != run.rows:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {run.rows} were published: the run is void")
    return Published(
        run=run,
        source=lambda columns: made.spark.readStream.format("partq").options(**options).load().select(*columns),
        remove=partial(delete_queue, queue),
        options=options,
    )


def to_parquet(made: Bed, *, synced: bool = False) -> Published:
    """The rows, to a new folder by Spark's file sink."""
    folder = made.fresh_folder()
    return Published(
        run=made.publishing("parquet", {"path": str(folder)}, synced=synced),
        source=lambda columns: parquet_stream(made.spark, folder, made.ddl).select(*columns),
        remove=partial(shutil.rmtree, folder),
    )


def to_kafka(made: Bed, messages: DataFrame | None = None, row: Column | None = None) -> Published:
    """The rows, or what `messages` makes of them, to a new topic; `row` makes rows of the messages again."""
    topic = made.kafka.fresh()

    def source(columns: Sequence[str]) -> DataFrame:
        stream = made.kafka.stream(topic)
        return stream if row is None else stream.select(row.alias("row")).select(*(f"row.{name}" for name in columns))

    run = made.publishing("kafka", made.kafka.sink(topic), messages)
    return Published(run=run, source=source, remove=partial(made.kafka.delete, topic))


def to_nothing(made: Bed) -> Run:
    """The rows, to a Python sink that keeps nothing."""
    made.spark.dataSource.register(FloorSource)
    return made.publishing(FloorSource.name(), {})


def to_files(made: Bed) -> Run:
    """The rows, to a Python sink that keeps the batches as they come in one file for each task."""
    made.spark.dataSource.register(FloorSource)
    folder = made.fresh_folder()
    run = made.publishing(FloorSource.name(), {"folder": str(folder)})
    shutil.rmtree(folder)
    return run
