"""How many bytes each row of a column has, for the limit of one message, and the pieces in which a batch that is in
another form can be written out in bounded memory. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.log.schema.forms import VIEWS, entries_of

_ZERO = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])[0]  # for a plain 0 PyArrow imports pandas


def row_bytes(batch: pa.RecordBatch) -> pa.Array:
    """The bytes of the values of each row, as Arrow keeps them (int64): texts and bytes by their length, numbers by
    their width, what is nested by what it holds.
    """
    sizes = _sizes(batch.column(0))
    for column in batch.columns[1:]:
        sizes = pc.add(sizes, _sizes(column))
    return sizes


def pieces(batch: pa.RecordBatch, columns: Sequence[int], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """`batch` in pieces in which these columns, which may be views or indices into a dictionary whose few texts are
    long, have at most so many bytes once each row has its own, or one row.
    """
    sizes = row_bytes(batch.select(columns)) if columns and batch.num_rows else None
    if sizes is None or pc.sum(sizes).as_py() <= most_bytes:
        yield batch
        return
    first = size = 0
    for row, more in enumerate([*sizes.to_pylist(), most_bytes + 1]):  # the last is no row: it ends the last piece
        if row > first and size + more > most_bytes:
            yield batch.slice(first, row - first)
            first, size = row, 0
        size += more


def _sizes(column: pa.Array) -> pa.Array:
    kind = column.type
    if is_.is_dictionary(kind):
        return pc.fill_null(_sizes(column.dictionary).take(column.indices), _ZERO)
    if kind in VIEWS:
        return _view_lengths(column)
    if is_.is_string(kind) or is_.is_binary(kind) or is_.is_large_string(kind) or is_.is_large_binary(kind):
        return pc.fill_null(pc.binary_length(column), _ZERO).cast(pa.int64())
    if is_.is_map(kind):
        return _sizes(entries_of(column))
    if is_.is_nested(kind) and not is_.is_struct(kind):
        lengths = pc.fill_null(pc.list_value_length(column), _ZERO).cast(pa.int64())
        ends = pc.cumulative_sum(lengths)
        # The bytes of so many elements, from the first on.
        upto = pa.concat_arrays([pa.arange(0, 1), pc.cumulative_sum(_sizes(column.flatten()))])
        return pc.subtract(upto.take(ends), upto.take(pc.subtract(ends, lengths)))
    if is_.is_struct(kind):
        inner = pa.RecordBatch.from_arrays(column.flatten(), names=[field.name for field in kind])
        return row_bytes(inner)
    rows = len(column)  # all of one width: as a buffer, because pa.array imports pandas
    width = struct.pack("=q", kind.bit_width // 8)
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(width * rows)], null_count=0)


def _view_lengths(column: pa.Array) -> pa.Array:
    """Arrow tells none of views (26.0); they are the first 4 of the 16 bytes of each."""
    first, end = 4 * column.offset, 4 * (column.offset + len(column))
    lengths = pa.Array.from_buffers(pa.int32(), end, [None, column.buffers()[1]]).take(pa.arange(first, end, 4))
    return pc.if_else(column.is_valid(), lengths, _ZERO).cast(pa.int64())
