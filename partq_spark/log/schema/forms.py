"""The same values in another form of Arrow's, and the entries of maps. Pure; knows no queue and refuses nothing.

What is nested is taken apart and built anew: where a struct is null, Spark's JVM has null in its fields too, be they
NOT NULL, and Arrow's own casts refuse that in places (26.0); of list views they make other lists.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

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
