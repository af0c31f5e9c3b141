"""Slices of any version, brought to the columns and types that a reader loaded: null for what came later, widened, or
narrowed with a check; values are not looked at otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.ddl import type_text


def brought(column: pa.Array | None, rows: int, field: pa.Field, where: Callable[[int], str]) -> pa.Array:
    """A slice's column, None if it has none, as `field` of a reader. `where` says where a row lies, for people.

    Raises `Invalid` for the first value that does not fit a type that was widened after the reader had loaded it.
    """
    if column is None:
        return pa.nulls(rows, field.type)
    if column.type == field.type:
        return column
    try:
        narrow = column.cast(field.type)
    except pa.ArrowInvalid:
        narrow = column.cast(field.type, safe=False)
        raise _does_not_fit(column, narrow, field, where) from None
    if is_.is_float32(field.type) and not _same(column, narrow.cast(column.type)):
        raise _does_not_fit(column, narrow, field, where)
    return narrow


def _same(left: pa.Array, right: pa.Array) -> bool:
    return pc.all(_equal(left, right), min_count=0).as_py()


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    """Per row; null equals null, and NaN equals NaN."""
    same = pc.fill_null(pc.equal(left, right), pc.and_(left.is_null(), right.is_null()))
    if not is_.is_floating(left.type):
        return same
    return pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))


def _does_not_fit(column: pa.Array, narrow: pa.Array, field: pa.Field, where: Callable[[int], str]) -> Invalid:
    row = _first_changed(column, narrow)
    return Invalid(
        f"{where(row)}, column {field.name!r}: {column[row].as_py()} does not fit {type_text(field.type)}, the type that"
        f" this query loaded; the column is {type_text(column.type)} by now: load again (stop the query and start it,"
        " or name the column's new type in .schema())"
    )


def _first_changed(column: pa.Array, narrow: pa.Array) -> int:
    """The first row whose value is another one; there is one."""
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        if _same(column.slice(first, half), narrow.slice(first, half).cast(column.type, safe=False)):
            first, rows = first + half, rows - half
        else:
            rows = half
    return first
