"""Rows of a typed queue as Python values: what Arrow makes of them, but for a MAP, which is a dict.

A MAP whose keys a dict cannot hold, or could take for one another (FLOAT, DOUBLE, and what is nested), is a list of
pairs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as is_

Conversion = Callable[[Any], Any]


def rows_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A mapping of these columns for each row."""
    if not names:
        return ({} for _ in range(batch.num_rows))
    columns = [_values(batch.column(name)) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    change = _change(column.type)
    values: list[Any] = column.to_pylist()
    return values if change is None else [None if value is None else change(value) for value in values]


def _change(kind: pa.DataType) -> Conversion | None:
    """What has to be done with Arrow's values of a type; None: nothing."""
    if is_.is_map(kind):
        return _map(kind)
    if is_.is_struct(kind):
        inner = [(field.name, change) for field in kind if (change := _change(field.type)) is not None]
        return (
            (lambda value: value | {name: _changed(change, value[name]) for name, change in inner}) if inner else None
        )
    if is_.is_list(kind):
        element = _change(kind.value_type)
        return None if element is None else lambda value: [_changed(element, each) for each in value]
    return None


def _map(kind: pa.MapType) -> Conversion:
    key, item = _change(kind.key_type), _change(kind.item_type)
    made: Callable[[Any], Any] = list if is_.is_nested(kind.key_type) or is_.is_floating(kind.key_type) else dict
    return lambda value: made((_changed(key, name), _changed(item, each)) for name, each in value)


def _changed(change: Conversion | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)
