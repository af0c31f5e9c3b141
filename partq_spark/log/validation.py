"""Checks of Arrow data that Arrow itself does not make: that texts are UTF-8, and that a record batch which came from a
store is what its metadata says. Pure: nothing here knows a store or a queue.

Neither Spark nor Parquet checks that a STRING is UTF-8, and Arrow believes both. What is published unchecked would
fail in every reader. A segment's checksum proves that its bytes are those that were published, not that they are sound:
wrong offsets would lead a reader out of Arrow's buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa


def first_bad(column: pa.Array, is_good: Callable[[pa.Array], bool]) -> int:
    """The index of the first value for which a part of the column is not good; there is one."""
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        if is_good(column.slice(first, half)):
            first, rows = first + half, rows - half
        else:
            rows = half
    return first


def is_utf8(column: pa.Array) -> bool:
    """Whether all texts in the column, nested ones too, are UTF-8; bytes may be anything."""
    kind = column.type
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        large = types.is_large_string(kind)
        if _is_ascii(column, large=large):
            return True
        try:
            # There and back copies nothing and looks at each byte: 3 to 7 ms for a million keys.
            column.cast(pa.large_binary() if large else pa.binary()).cast(kind)
        except pa.ArrowInvalid:
            return False
        return True
    if types.is_dictionary(kind):
        return is_utf8(column.dictionary_decode())
    if types.is_struct(kind):
        return all(map(is_utf8, column.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return is_utf8(column.flatten())
    return True


def _is_ascii(column: pa.Array, *, large: bool) -> bool:
    """Whether all texts in the column are ASCII, looked at as one: short ones one by one take ten times as long."""
    _, offsets, data = column.buffers()
    if len(column) == 0 or data is None:
        return True
    code, width = ("=q", 8) if large else ("=i", 4)
    (first,) = struct.unpack_from(code, offsets, width * column.offset)
    (end,) = struct.unpack_from(code, offsets, width * (column.offset + len(column)))
    return data.slice(first, end - first).to_pybytes().isascii()  # type: ignore[no-any-return]


def first_not_utf8(column: pa.Array) -> int | None:
    """The index of the first row with a text that is not UTF-8; None if all are."""
    return None if is_utf8(column) else first_bad(column, is_utf8)


def check_batch(batch: pa.RecordBatch, *, thoroughly: bool) -> None:
    """Raises `pa.ArrowInvalid`. Sizes, lengths and both ends of all offsets take 0.3 µs, however long the batch is.

    `thoroughly`: every offset too, which makes reading 7 to 25 % dearer: for callers that do much more with the batch.
    Texts were looked at when they were published (`first_not_utf8`), and what lies under a null was not.
    """
    batch.validate()
    for index, field in enumerate(batch.schema):
        if not field.nullable and batch.column(index).null_count:
            raise pa.ArrowInvalid(f"column {field.name} has nulls, it may have none")
    if thoroughly:
        for column in batch.columns:
            _as_bytes(column).validate(full=True)


def _as_bytes(column: pa.Array) -> pa.Array:
    """The same without texts and decimals, of which Arrow's full check would ask that they are UTF-8 and have no digit
    too many, under a null too.
    """
    kind = column.type
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_decimal(kind):
        return column.view(pa.binary(kind.byte_width))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        items = column.values  # of a map structs of keys and values
        _as_bytes(items).validate(full=True)
        return pa.ListArray.from_arrays(column.offsets, pa.nulls(len(items)))  # its own offsets are left to look at
    if pa.types.is_struct(kind):
        fields = [column.field(index) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_as_bytes(field) for field in fields], names=[field.name for field in kind])
    return column
