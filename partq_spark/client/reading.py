"""Messages as tables: which columns, and how slices of the log become them. Reading without a group is nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from partq_spark.log import tree
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import schema_of
from partq_spark.query import columns as source_columns
from partq_spark.query import planning
from partq_spark.query.columns import TypedColumns, default_typed_columns, named_typed_columns
from partq_spark.query.settings import Boundary, WantedColumns, default_columns, named_columns

Wanted = WantedColumns | TypedColumns
_log = logging.getLogger("partq.client")


def read(queue: QueueLog, starting: Boundary, ending: Boundary, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """The messages between two places, as a stream of Arrow batches that is read on demand. Raises `Invalid`."""
    head = queue.refresh()
    wanted = wanted_columns(head.columns, columns)
    spans = planning.between(head, starting, ending, ("starting", "ending"), queue.offsets_at)
    log = planning.log_view(head, spans, fail_on_data_loss=True, warn=_log.warning)
    return stream(pieces(queue, head.queue_id, log, True, head.columns, wanted), queue.name, {}, wanted)


def wanted_columns(columns: Columns | None, names: Sequence[str] | None) -> Wanted:
    """The columns of a table, by their names; None: all but headers. `columns` are those of a typed queue. Raises
    `Invalid`.
    """
    if columns is None:
        return default_columns(False) if names is None else named_columns(names)
    return default_typed_columns(columns, False) if names is None else named_typed_columns(columns, names)


def pieces(
    queue: QueueLog,
    queue_id: str,
    log: tree.LogView,
    fail_on_data_loss: bool,
    columns: Columns | None,
    wanted: Wanted | None,
) -> Iterator[Piece]:
    """What the log has of the columns that are wanted; None: all of it."""
    payload = None if columns is None else schema_of(columns) if wanted is None else wanted.payload
    only = None if wanted is None else wanted.stored
    return RangeReader(queue, queue_id, log, fail_on_data_loss=fail_on_data_loss, payload=payload, only=only).pieces()


def stream(
    found: Iterator[Piece] | Sequence[Piece], queue: str, below: Mapping[int, int], wanted: Wanted
) -> pa.RecordBatchReader:
    """As a table of these columns; `below`: of each partition before which offset messages are marked."""
    batches = source_columns.batches(iter(found), queue=queue, wanted=wanted, redelivered_below=below)
    return pa.RecordBatchReader.from_batches(source_columns.batch_schema(wanted), batches)
