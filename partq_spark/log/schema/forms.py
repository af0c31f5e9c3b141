"""What Arrow does not do by itself with columns: the same values in another form, as the texts that keys are, and their
bytes; that texts are UTF-8, and that a record batch which came from a store is what its metadata says. Pure; knows no
store and no queue.

What is nested is taken apart and built anew: where a struct is null, Spark's JVM has null in its fields too, be they
NOT NULL, and Arrow's own casts refuse that in places (26.0); of list views they make other lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.log.schema.columns import Columns

_MOST_OFFSET: Final = 2**31 - 1
VIEWS: Final = (pa.string_view(), pa.binary_view())


def as_form(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as `kind`, of which their type is another form. Raises `pa.ArrowInvalid` for one that is not."""
    if column.type == kind:
        return column
    if is_.is_null(column.type):
        return pa.nulls(len(column), kind)
    if is_.is_dictionary(column.type):
        words = column.dictionary
        if words.type in VIEWS or is_.is_nested(words.type):
            return as_form(words, kind).take(column.indices)  # Arrow takes none of views (26.0)
        # Decoded first: of a part of a column all words are there, and one that is not used may be none of `kind`.
        return as_form(words.take(column.indices), kind)
    mask = column.is_null() if column.null_count else None
    if is_.is_struct(kind) and is_.is_struct(column.type):
        # Flattened: what a null struct has in its fields means nothing, an index into a dictionary may lead nowhere.
        fields = column.flatten() if mask is not None else [column.field(at) for at in range(kind.num_fields)]
        inner = [as_form(field, kind.field(at).type) for at, field in enumerate(fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if is_.is_map(kind) and is_.is_map(column.type):
        entries = entries_of(column)
        pairs = entries.flatten()
        keys, items = as_form(pairs.field(0), kind.key_type), as_form(pairs.field(1), kind.item_type)
        return pa.MapArray.from_arrays(_offsets(entries), keys, items, type=kind, mask=mask)
    if is_.is_list(kind):
        elements = as_form(pc.list_flatten(column), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), elements, type=kind, mask=mask)
    if _ends_late(column):
        column = column.take(pa.arange(0, len(column)))
    return column.cast(kind)


def _ends_late(column: pa.Array) -> bool:
    """Whether Arrow cannot cast the texts or bytes, few as they may be, because they lie more than 2 GiB behind the
    beginning of their buffer (26.0): of large ones it refuses that, of those of a fixed size it takes others.
    """
    end = column.offset + len(column)
    if is_.is_fixed_size_binary(column.type):
        last = end * column.type.byte_width
    elif len(column) and (is_.is_large_string(column.type) or is_.is_large_binary(column.type)):
        offsets = column.buffers()[1]
        last = pa.Array.from_buffers(pa.int64(), 1, [None, offsets], offset=end)[0].as_py()
    else:
        return False
    return bool(last > _MOST_OFFSET)


def entries_of(column: pa.Array) -> pa.Array:
    """Maps as lists of structs of key and value; copies nothing."""
    entries = column.values
    kind = pa.list_(pa.field("entries", entries.type, nullable=False))
    buffers = column.buffers()[:2]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, column.offset, [entries])


def _offsets(column: pa.Array) -> pa.Array:
    """Of lists, from 0 on: where each begins among all elements that can be seen. Those of a part of a column begin
    elsewhere, and may lead through elements of what is null.
    """
    lengths = pa.concat_arrays([pa.arange(0, 1), pc.list_value_length(column).cast(pa.int64())])
    # Without a number among the arguments, for which PyArrow would import pandas.
    return pc.fill_null_forward(pc.cumulative_sum(lengths, skip_nulls=True)).cast(pa.int32())


# ---- the partition key of a message


def keys_of(messages: pa.RecordBatch, columns: Columns | None) -> pa.Array:
    """The keys of messages, as text: the key column cast to STRING as Spark SQL casts (conformance TYP-03). `columns`
    are those of the typed queue whose rows they are, under its names; None of an untyped one.
    """
    if columns is None:
        return messages.column("key")
    return pa.nulls(messages.num_rows, pa.string()) if columns.key is None else texts_of(messages.column(columns.key))


def texts_of(keys: pa.Array) -> pa.Array:
    """The texts of a key column of one of `types.KEY_TYPES`; null stays null. Bytes are believed to be UTF-8:
    publishing checks the texts (`segment.check_keys`).
    """
    if is_.is_string(keys.type):
        return keys
    if is_.is_binary(keys.type):
        return pc.cast(keys, pa.string(), safe=False)
    return pc.cast(keys, pa.string())


# ---- how many bytes each row has

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


# ---- what Arrow believes

# Neither Spark nor Parquet checks that a STRING is UTF-8, and Arrow believes both. What is published unchecked would
# fail in every reader. A segment's checksum proves that its bytes are those that were published, not that they are
# sound: wrong offsets would lead a reader out of Arrow's buffers.


def first_bad(column: pa.Array, look: Callable[[pa.Array], object]) -> int:
    """The index of the first value of which `look`, at a part of the column that has it, raises `pa.ArrowInvalid`;
    there is one.
    """
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        try:
            look(column.slice(first, half))
        except pa.ArrowInvalid:
            rows = half
        else:
            first, rows = first + half, rows - half
    return first


def check_utf8(column: pa.Array) -> None:
    """Raises `pa.ArrowInvalid` unless all texts in the column, nested ones too, are UTF-8; bytes may be anything."""
    kind = column.type
    if is_.is_string(kind) or is_.is_large_string(kind):
        large = is_.is_large_string(kind)
        if not _is_ascii(column, large=large):
            # There and back copies nothing and looks at each byte: 3 to 7 ms for a million keys.
            column.cast(pa.large_binary() if large else pa.binary()).cast(kind)
    elif is_.is_dictionary(kind):
        check_utf8(column.dictionary_decode())
    elif is_.is_struct(kind):
        for field in column.flatten():
            check_utf8(field)
    elif is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        check_utf8(column.flatten())


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
    try:
        check_utf8(column)
    except pa.ArrowInvalid:
        return first_bad(column, check_utf8)
    return None


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
    if is_.is_string(kind):
        return column.view(pa.binary())
    if is_.is_decimal(kind):
        return column.view(pa.binary(kind.byte_width))
    if is_.is_list(kind) or is_.is_map(kind):
        items = column.values  # of a map structs of keys and values
        _as_bytes(items).validate(full=True)
        return pa.ListArray.from_arrays(column.offsets, pa.nulls(len(items)))  # its own offsets are left to look at
    if is_.is_struct(kind):
        fields = [column.field(index) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_as_bytes(field) for field in fields], names=[field.name for field in kind])
    return column
