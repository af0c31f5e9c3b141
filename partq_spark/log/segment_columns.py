"""Which columns a segment has, those of its messages and partq's own for headers and times; and from the bytes of a
slice to those that are wanted. Pure, no I/O.

An untyped queue's messages are `key` and `value`. A typed queue's are the columns of the version that they were staged
for, under their own names, so that any Arrow tool reads a segment (TYP-07). partq's own begin with `_`, which no column
of a queue does. The key is not stored twice.

What typed queues alone need is imported where it is used, here, in `segment`, `reading` and `fanout`: it would cost
each of Spark's workers 6 ms for untyped ones too.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
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


def payload_schema(columns: Columns | None, version: int | None = None) -> pa.Schema:
    """The messages' own columns in a queue with these (None: untyped), in a version of them, by default the present
    one. Raises `Corrupt` for a version that it does not have.
    """
    if columns is None:
        return PLAIN
    from partq_spark.log.schema.versions import schema_of

    return schema_of(columns, version)


@lru_cache(maxsize=64)
def segment_schema(
    columns: Columns | None = None, version: int | None = None, *, headers: bool = False, times: bool = False
) -> pa.Schema:
    """All columns of a segment. `headers`: there is a column of headers; `times`: of times of publishing, because it
    was compacted from several publishes. Raises as `payload_schema`.
    """
    schema = payload_schema(columns, version)
    if headers:
        schema = schema.append(pa.field(HEADERS_NAME, HEADERS))
    if times:
        schema = schema.append(pa.field(TIMES_NAME, TIMESTAMP, nullable=False))
    return schema


def schema_of_entry(entry: Entry, columns: Columns | None) -> pa.Schema:
    """Of an entry's segments; `columns` are the queue's. Raises `Corrupt` if they do not belong together."""
    if (entry.schema_version is None) != (columns is None):
        kind = "a typed" if columns is None else "an untyped"
        raise Corrupt(
            f"entry {entry.sequence} of the log is of {kind} queue, the head is not: restore both from a backup"
        )
    return segment_schema(columns, entry.schema_version, headers=entry.headers, times=entry.times)


def decoded(data: memoryview, schema: pa.Schema, only: Collection[str] | None) -> pa.RecordBatch:
    """The record batch whose columns are those of `schema`; with `only`, those of them that are named there, in their
    order (perhaps none: a batch knows its number of rows all the same). What is not wanted is neither decompressed nor
    copied, and nothing is checked but that it is Arrow at all.

    What is not compressed stays where it is, in `data`. Raises what Arrow raises, and `EOFError`.
    """
    if only is None:
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    wanted = [index for index, name in enumerate(schema.names) if name in only]
    if wanted == list(range(len(wanted))):  # the first ones: with a shorter schema Arrow looks no further
        return pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema([schema.field(index) for index in wanted]))
    # Only readers of streams and files can leave columns out. This costs 0.015 ms; to join the two parts would copy.
    stream = pa.PythonFile(_Parts(memoryview(schema.serialize()), data), mode="r")
    try:
        return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted)).read_next_batch()
    except StopIteration:
        raise EOFError("the end of a stream in place of a record batch") from None


class _Parts:
    """What Arrow reads a stream from: the schema's message, then that of the slice, handed over where they lie. A read
    beyond the end of a part gets less than it asks for, which Arrow refuses: no message goes beyond it.
    """

    closed = False

    def __init__(self, schema: memoryview, data: memoryview) -> None:
        self._left = [data, schema]  # the next one last

    def read(self, size: int) -> memoryview:
        part = self._left.pop()
        if size < len(part) or not self._left:
            self._left.append(part[size:])
        return part[:size]

    def close(self) -> None:
        """Arrow calls it; nothing is open."""
