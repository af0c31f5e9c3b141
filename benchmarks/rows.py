"""Part `rows`: messages that are rows of 19 columns, in a typed queue, in Kafka as JSON and as Avro, in Parquet files.

The rows are the demo's flights, repeated. A streaming query publishes them from Parquet; another reads them and
aggregates the delay by carrier, or gives all columns to noop. partq stores the columns as they are, and a reader names
those that it wants; what Kafka has is made and parsed by Spark's own functions; Parquet files are what one would keep
without a queue, and Spark reads no more of their columns than a query needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.avro.functions import from_avro, to_avro

import partq
from benchmarks.bed import Bed, bed
from benchmarks.jars import avro
from benchmarks.kafka import note as kafka_note
from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.spark import Run, Side, checked, measures, run_to_end, take_turns
from benchmarks.throughput import (
    BARE_SINK,
    BARE_SOURCE,
    DURABLE_SINK,
    Published,
    once,
    ready_made,
    to_files,
    to_kafka,
    to_nothing,
    to_parquet,
)
from partq_spark.demo.flights import COLUMNS, KEY, ddl, load
from tools.messages import write_parquet
from tools.report import Goal, Measure

CARRIER: Final = "carrier"
DELAY: Final = "dep_delay"
TWO: Final = (CARRIER, DELAY)

_SHUFFLE: Final = {"spark.sql.shuffle.partitions": "2"}
"""As many as cores: 16 carriers need no 200 stores of state, which would hide what is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One of the ways that are compared, and what partq's rates are to be of its own."""

    name: str
    publish: Callable[[Bed], Published]
    publishing: Goal | None = None
    reading: Goal | None = None


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Publishing, then reading what each way has: two columns, aggregated, and all 19. The first way is partq."""
    ways, jars = _ways(settings.peer), avro().paths if settings.peer else ()
    with bed(settings, write=write_flights, ddl=ddl(), jars=jars, spark=_SHUFFLE) as made:
        synced = Way(name="Parquet files, and sync", publish=partial(to_parquet, synced=True))
        sides = [_publishing(way, made) for way in ways]
        sides += [
            _publishing(synced, made),
            Side(name=BARE_SINK, run=lambda: to_nothing(made)),
            Side(name=DURABLE_SINK, run=lambda: to_files(made), goal=Goal(sign=">=", limit=0.97)),
        ]
        found = measures("publishing", sides, take_turns(sides, settings.rounds, settings.rows))
        kept = [way.publish(made) for way in ways]
        for way, each in zip(ways, kept, strict=True):
            checked(each.run, settings.rows, f"publishing for {way.name}")
        expected = _by_carrier(made.spark.read.parquet(str(made.folder))).collect()
        aggregating = [
            Side(
                name=way.name,
                run=partial(_aggregated, made, partial(each.source, TWO), expected),
                goal=way.reading,
                batches_goal=way.reading,
            )
            for way, each in zip(ways, kept, strict=True)
        ]
        whole = [
            Side(name=way.name, run=partial(made.reading, partial(each.source, list(COLUMNS))))
            for way, each in zip(ways, kept, strict=True)
        ]
        two, all_columns = _ready_made(made, settings.rows, kept[0])
        aggregating.append(Side(name=BARE_SOURCE, run=partial(_aggregated, made, two)))
        whole.append(Side(name=BARE_SOURCE, run=partial(made.reading, all_columns)))
        runs = take_turns([*aggregating, *whole], settings.rounds, settings.rows)
        found += measures("reading, delay by carrier", aggregating, runs[: len(aggregating)])
        found += measures("reading, all 19 columns", whole, runs[len(aggregating) :])
    return found, [kafka_note(), f"Avro: {avro().artifacts[0]}."] if settings.peer else []


# --- the rows ---------------------------------------------------------------------------------------------------------

_AVRO: Final[Mapping[str, object]] = {
    "BIGINT": "long",
    "STRING": "string",
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
}


_flights: Final[Callable[[], pa.Table]] = cache(load)


def avro_schema() -> str:
    """Of a record with all columns, each of which may be null."""
    fields = [{"name": name, "type": [_AVRO[kind], "null"]} for name, kind in COLUMNS.items()]
    return json.dumps({"type": "record", "name": "flight", "fields": fields})


def write_flights(folder: Path, rows: int) -> None:
    """The flights, repeated until they are `rows`, as a folder of Parquet files."""
    write_parquet(folder, rows, lambda begin, count, _: _repeated(begin, begin + count))


def _repeated(begin: int, end: int) -> pa.Table:
    """Rows `begin` to `end` of flights without end."""
    once = len(_flights())
    pieces = []
    while begin < end:
        start = begin % once
        pieces.append(_flights().slice(start, min(once - start, end - begin)))
        begin += len(pieces[-1])
    return pa.concat_tables(pieces)


# --- the ways ---------------------------------------------------------------------------------------------------------


def _ways(peer: str | None) -> list[Way]:
    def goal(limit: float) -> Goal:
        return Goal(sign=">=", limit=limit)

    ways = [
        Way(name="partq", publish=_to_partq),
        Way(name="Parquet files", publish=to_parquet, publishing=goal(0.9), reading=goal(0.75)),
    ]
    if peer is not None:
        ways += [
            Way(name="Kafka, JSON", publish=_to_json, publishing=goal(3.0), reading=goal(5.0)),
            Way(name="Kafka, Avro", publish=_to_avro, publishing=goal(2.0), reading=goal(3.0)),
        ]
    return ways


def _to_partq(made: Bed) -> Published:
    queue = partq.create_queue(
        made.fresh_name(), partitions=PARTITIONS, schema=ddl(), key=KEY, store=made.store, namespace=NAMESPACE
    )
    options = made.options(queue)
    run = made.publishing("partq", options)
    if (held := queue.describe().messages) != run.rows:
        raise RuntimeError(f"{queue} has {held} messages, {run.rows} were published: the run is void")

    def source(columns: Sequence[str]) -> DataFrame:
        stream = made.spark.readStream.format("partq").options(**options, startingOffsets="earliest")
        return stream.schema(ddl(*columns)).load()

    return Published(run=run, source=source, remove=queue.delete, options=options)


def _to_json(made: Bed) -> Published:
    row = F.from_json(F.col("value").cast("string"), ddl())
    return to_kafka(made, _encoded(made, F.to_json(F.struct(*COLUMNS))), row)


def _to_avro(made: Bed) -> Published:
    schema = avro_schema()
    return to_kafka(made, _encoded(made, to_avro(F.struct(*COLUMNS), schema)), from_avro(F.col("value"), schema))


def _encoded(made: Bed, value: Column) -> DataFrame:
    """The rows as messages."""
    return made.rows().select(F.col(KEY).alias("key"), value.alias("value"))


# --- the queries ------------------------------------------------------------------------------------------------------


def _publishing(way: Way, made: Bed) -> Side:
    return Side(name=way.name, run=once(way.publish, made), goal=way.publishing, batches_goal=way.publishing)


def _by_carrier(rows: DataFrame) -> DataFrame:
    """Of every carrier: how many flights, and the sum of their delays."""
    return rows.groupBy(CARRIER).agg(F.count("*").alias("flights"), F.sum(DELAY).alias("delay"))


def _ready_made(made: Bed, rows: int, published: Published) -> list[Callable[[], DataFrame]]:
    """Two of the columns, and all of them, from a Python source that only gives out what partq made before."""
    return [ready_made(made, rows, ddl(*columns), published.options) for columns in (TWO, tuple(COLUMNS))]


def _aggregated(made: Bed, load: Callable[[], DataFrame], expected: list[Row] | None = None) -> Run:
    """One query that keeps the delays by carrier; a fast wrong answer is no result."""
    last: list[Row] = []

    def take(batch: DataFrame, _batch_id: int) -> None:
        last[:] = batch.collect()

    writer = _by_carrier(load()).writeStream.outputMode("complete").foreachBatch(take)
    run = run_to_end(writer, made.fresh_folder())
    if expected is not None and sorted(last) != sorted(expected):
        raise RuntimeError(f"delays by carrier are {last}, {expected} were expected: the measurement is void")
    return run
