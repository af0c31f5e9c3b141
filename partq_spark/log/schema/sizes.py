"""How many bytes each row of a column has, for the limit of one message. Pure."""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.log.schema.forms import entries_of

_ZERO = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])[0]  # for a plain 0 PyArrow imports pandas


def row_bytes(batch: pa.RecordBatch) -> pa.Array:
    """The bytes of the values of each row, as Arrow keeps them (int64): texts and bytes by their length, numbers by
    their width, what is nested by what it holds.
    """
    sizes = _sizes(batch.column(0))
    for column in batch.columns[1:]:
        sizes = pc.add(sizes, _sizes(column))
    return sizes


def _sizes(column: pa.Array) -> pa.Array:
    kind = column.type
    if is_.is_string(kind) or is_.is_binary(kind):
        return pc.fill_null(pc.binary_length(column), _ZERO).cast(pa.int64())
    if is_.is_map(kind):
        return _sizes(entries_of(column))
    if is_.is_list(kind):
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
