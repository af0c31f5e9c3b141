"""Which columns a segment has: those of its messages, and partq's own for headers and times. Pure, no I/O.

An untyped queue's messages are `key` and `value`. A typed queue's are the columns of the version that they were staged
for, under their own names, so that any Arrow tool reads a segment (TYP-07). partq's own begin with `_`, which no column
of a queue does. The key is not stored twice.

What typed queues alone need is imported where it is used, here, in `segment`, `reading` and `fanout`: it would cost
each of Spark's workers 6 ms for untyped ones too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import pyarrow as pa

from partq_spark.base.errors import Corrupt
from partq_spark.log.model import Entry
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.types import TIMESTAMP

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

PLAIN: Final = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary(), nullable=False)])

HEADERS_NAME: Final = "_headers"
TIMES_NAME: Final = "_timestamp"


@dataclass(frozen=True, kw_only=True)
class SegmentColumns:
    """`payload`: the messages' own. `headers`: there is a column of headers; `times`: of times of publishing, because
    it was compacted from several publishes. Made once for many slices.
    """

    payload: pa.Schema
    headers: bool = False
    times: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns, in their order."""
        schema = self.payload
        if self.headers:
            schema = schema.append(pa.field(HEADERS_NAME, HEADERS))
        if self.times:
            schema = schema.append(pa.field(TIMES_NAME, TIMESTAMP, nullable=False))
        return schema


@lru_cache(maxsize=64)
def segment_columns(
    columns: Columns | None, version: int | None = None, *, headers: bool = False, times: bool = False
) -> SegmentColumns:
    """Of segments of a queue with these columns (None: untyped), in a version of them, by default the present one.
    Raises `Corrupt` for a version that it does not have.
    """
    if columns is None:
        return SegmentColumns(payload=PLAIN, headers=headers, times=times)
    from partq_spark.log.schema.versions import schema_of

    return SegmentColumns(payload=schema_of(columns, version), headers=headers, times=times)


def columns_of_entry(entry: Entry, columns: Columns | None) -> SegmentColumns:
    """Of an entry's segments; `columns` are the queue's. Raises `Corrupt` if they do not belong together."""
    if (entry.schema_version is None) != (columns is None):
        kind = "a typed" if columns is None else "an untyped"
        raise Corrupt(
            f"entry {entry.sequence} of the log is of {kind} queue, the head is not: restore both from a backup"
        )
    return segment_columns(columns, entry.schema_version, headers=entry.headers, times=entry.times)


def segment_schema(headers: bool, times: bool = False) -> pa.Schema:
    """All columns of an untyped queue's segment."""
    return segment_columns(None, headers=headers, times=times).schema
