"""Slices of any version, brought to the columns and types that a reader loaded: null for what came later, widened, or
narrowed with a check; values are not looked at otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.columns import Column, Columns, shown_names
from partq_spark.log.schema.ddl import parse_type, type_text
from partq_spark.log.schema.forms import as_form

RowPlace = Callable[[int], str]
"""Says for people where a row of a slice lies."""


@dataclass(frozen=True, slots=True)
class Bringing:
    """How slices with certain columns become a reader's: for each of the reader's columns, in order, where it stands in
    a slice; None: it came later, and is null. Made once for many slices.
    """

    schema: pa.Schema
    places: tuple[int | None, ...]

    @classmethod
    def of(cls, given: pa.Schema, schema: pa.Schema) -> Bringing | None:
        """From the columns of slices to those of a reader. None: they are the same, and nothing is to be done."""
        if given.names == schema.names and given.types == schema.types:
            return None
        there = {name: index for index, name in enumerate(given.names)}
        return cls(schema, tuple(there.get(name) for name in schema.names))

    def __call__(self, batch: pa.RecordBatch, where: RowPlace) -> pa.RecordBatch:
        """The batch with the reader's columns. Raises `Invalid` for the first value that does not fit a type that was
        widened after the reader had loaded it.
        """
        columns = [
            brought(None if place is None else batch.column(place), batch.num_rows, field, where)
            for field, place in zip(self.schema, self.places, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with columns of an earlier version as one with the columns of `schema`, of which none is narrower."""
    bringing = Bringing.of(batch.schema, schema)
    return batch if bringing is None else bringing(batch, "row {}".format)


def brought(column: pa.Array | None, rows: int, field: pa.Field, where: RowPlace) -> pa.Array:
    """A slice's column, None if it has none, as `field` of a reader. Raises as `Bringing`."""
    if column is None:
        return pa.nulls(rows, field.type)
    if column.type == field.type:
        return column
    if is_.is_nested(field.type):
        return as_form(column, field.type)  # no nested column is widened: less is NOT NULL in the reader's type
    found = _cast(column, field.type)
    if found is None:
        row = _first_that_does_not_fit(column, field.type)
        raise Invalid(
            f"{where(row)}, column {field.name!r}: {column[row].as_py()} does not fit {type_text(field.type)}, the type"
            f" that this query loaded; the column is {type_text(column.type)} by now: load again (stop the query and"
            " start it, or name the column's new type in .schema())"
        )
    return found


def chosen_columns(columns: Columns, wanted: pa.Schema) -> pa.Schema:
    """The columns that a reader asks for, `wanted` in the normal form, under the names that the queue has for them:
    what a `RangeReader` takes. Names match exactly, else in another case.

    A type may be any that the column has had. Raises `Invalid`: no such column, one that is named twice, another type,
    NOT NULL for one that may be null.
    """
    fields: list[pa.Field] = []
    for field in wanted:
        column = columns.column(field.name)
        if column is None:
            raise Invalid(f"column {field.name!r} is none of the queue's: name some of {shown_names(columns.names)}")
        if any(known.name == column.name for known in fields):
            raise Invalid(f"column {column.name!r} is asked for twice: name it once")
        _check_type(column, field)
        fields.append(pa.field(column.name, field.type, field.nullable))
    return pa.schema(fields)


def _check_type(column: Column, field: pa.Field) -> None:
    if not any(_gives(parse_type(text), field.type) for text in column.types()):
        had = [text for text in column.types() if text != column.type]
        before = f" (before that {', '.join(had)})" if had else ""
        raise Invalid(
            f"column {field.name!r} is asked for as {type_text(field.type)}, it is {column.type}{before}: ask for that "
            "and cast it in the query"
        )
    if not field.nullable and column.nullable:
        raise Invalid(f"column {field.name!r} is asked for as NOT NULL, it may be null: leave NOT NULL out")


def _gives(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether it is the same type, where what may not be null may also be asked for as what may."""
    if is_.is_map(kind) and is_.is_map(wanted):
        return _gives(kind.key_type, wanted.key_type) and _gives(kind.item_type, wanted.item_type)
    if is_.is_list(kind) and is_.is_list(wanted):
        return _gives(kind.value_type, wanted.value_type)
    if is_.is_struct(kind) and is_.is_struct(wanted) and kind.num_fields == wanted.num_fields:
        return all(
            have.name == want.name and (want.nullable or not have.nullable) and _gives(have.type, want.type)
            for have, want in zip(kind, wanted, strict=True)
        )
    return bool(kind == wanted)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The same values as `kind`; None if one of them does not fit."""
    try:
        found = column.cast(kind)
    except pa.ArrowInvalid:
        return None
    if is_.is_float32(kind) and not _same(column, found.cast(column.type)):
        return None  # Arrow rounds without a word
    return found


def _same(left: pa.Array, right: pa.Array) -> bool:
    """Whether numbers with a point are equal, row by row; NaN equals NaN. Both are null in the same rows."""
    equal = pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return bool(pc.all(equal, min_count=0).as_py())  # without the nulls


def _first_that_does_not_fit(column: pa.Array, kind: pa.DataType) -> int:
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        if _cast(column.slice(first, half), kind) is None:
            rows = half
        else:
            first, rows = first + half, rows - half
    return first
