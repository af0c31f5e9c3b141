"""Typed queues for tests: how they are made, published to and read as rows. Nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from partq_spark.log import tree
from partq_spark.log.admin import create_queue
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import Stage, StagedSegment, stage_of
from partq_spark.log.publish import PublishResult, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of
from partq_spark.log.segment import segment_schema
from partq_spark.log.settings import QueueConfig
from partq_spark.log.staging import RUN_BYTES, Stager
from partq_spark.log.writers import PublishIdentity
from partq_spark.query.columns import wanted_columns
from tests.log.queues import HOUR_US, World, everything

Row = Mapping[str, Any]

DDL = "id INT NOT NULL, name STRING, total DECIMAL(5,2)"


def create(
    world: World,
    schema: str | pa.Schema = DDL,
    key: str | None = "id",
    partitions: int = 4,
    name: str = "orders",
    **config: Any,
) -> QueueLog:
    """A typed queue."""
    columns = columns_of(schema_from(schema), key)
    settings = QueueConfig(**config)
    return create_queue(world.store, "default", name, partitions, settings, world.clock.effects(), columns=columns)


def batch_of(rows: Sequence[Row], stage: Stage, *, headers: Sequence[Any] | None = None) -> pa.RecordBatch:
    """Rows with the columns of a stage's segment; what is not given is null."""
    assert stage.columns is not None
    schema = segment_schema(stage.columns, headers=headers is not None)
    fields = [[row.get(name) for row in rows] for name in schema.names]
    if headers is not None:
        fields[-1] = list(headers)
    columns = [pa.array(values, field.type) for values, field in zip(fields, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    taken = Conversion.to_queue(schema_of(stage.columns), schema_of(stage.columns))(batch)
    return taken if headers is None else batch


def staged(
    queue: QueueLog,
    stage: Stage,
    rows: Sequence[Row],
    *,
    seed: str = "test",
    headers: Sequence[Any] | None = None,
    run_bytes: int = RUN_BYTES,
) -> list[StagedSegment]:
    """One task's segment."""
    with Stager(queue.store, stage, seed=seed, headers=headers is not None, run_bytes=run_bytes) as stager:
        stager.add(batch_of(rows, stage, headers=headers))
        segment = stager.finish()
    return [segment] if segment is not None else []


def send(queue: QueueLog, rows: Sequence[Row], identity: PublishIdentity | None = None) -> PublishResult:
    """Stage and publish."""
    stage = stage_of(queue.refresh())
    return publish(queue, staged(queue, stage, rows), identity)


def pieces(queue: QueueLog, wanted: str | pa.Schema | None = None, view: tree.LogView | None = None) -> list[Piece]:
    """All that can be read, with the columns that are asked for."""
    head = queue.refresh()
    assert head.columns is not None
    payload = None if wanted is None else wanted_columns(head.columns, schema_from(wanted)).payload
    view = tree.view(head, everything(head)) if view is None else view
    return list(RangeReader(queue, head.queue_id, view, payload=payload).pieces())


def read(queue: QueueLog, wanted: str | pa.Schema | None = None) -> dict[int, list[dict[str, Any]]]:
    """The rows of every partition that has any, without partq's own columns; fails if offsets are not dense."""
    found: dict[int, list[dict[str, Any]]] = {}
    earliest = queue.refresh().earliest
    for piece in pieces(queue, wanted):
        mine = found.setdefault(piece.partition, [])
        assert piece.offset == earliest[piece.partition] + len(mine)
        piece.batch.validate(full=True)
        mine += rows_of(piece)
    return found


def rows_of(piece: Piece) -> list[dict[str, Any]]:
    """The rows of a piece, without partq's own columns."""
    own = [name for name in piece.batch.schema.names if not name.startswith("_")]
    rows: list[dict[str, Any]] = piece.batch.select(own).to_pylist()
    return rows


def read_flat(queue: QueueLog, wanted: str | pa.Schema | None = None) -> list[dict[str, Any]]:
    """All rows, partition after partition."""
    return [row for _, mine in sorted(read(queue, wanted).items()) for row in mine]


def compact_all(world: World, queue: QueueLog) -> None:
    """All that is there, as soon as it may be."""
    world.clock.now_us += HOUR_US
    steps = 0
    while compact(world.handle(queue.name)) is not None:
        steps += 1
        assert steps < 50
    assert steps
