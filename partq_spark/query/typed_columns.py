"""The columns that a reader of a typed queue gives: the payload's own, under their names, and `_metadata`, a struct of
what partq knows of each message. No pyspark.

Which of them are wanted is decided here, once, where the queue's head is at hand; what is decided travels to the tasks,
which look nothing up. `schema` has the columns of untyped queues, and `columns` makes batches of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.bring import chosen_columns
from partq_spark.log.schema.columns import Column, Columns, shown_names
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.types import normal
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment_columns import headers_name, times_name
from partq_spark.query.columns import ARROW_TYPES
from partq_spark.query.schema import SOURCE_TYPES

METADATA: Final = "_metadata"

METADATA_TYPES: Final[Mapping[str, pa.DataType]] = {
    name: ARROW_TYPES[kinds[0]] for name, kinds in SOURCE_TYPES.items() if name not in ("key", "value")
}
"""The fields of `_metadata`, called as the columns of an untyped queue's reader are."""

_STORED: Final = {"headers": headers_name(typed=True), "timestamp": times_name(typed=True)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedColumns:
    """The columns that a reader of a typed queue gives, in its order.

    `schema` is that of its batches. `payload` are those of them that the log has, in the same order, under the names
    that the queue has for them. `metadata` names the fields of `_metadata` in their order, by `METADATA_TYPES`; it is
    empty where `_metadata` is not wanted.
    """

    schema: pa.Schema
    payload: pa.Schema
    metadata: tuple[str, ...] = ()

    @property
    def metadata_at(self) -> int | None:
        """Where `_metadata` stands in `schema`."""
        own = (index for index, name in enumerate(self.schema.names) if name.lower() == METADATA)
        return next(own, None) if self.metadata else None

    @property
    def stored(self) -> tuple[str, ...]:
        """What they need of partq's own columns of a segment; of the payload the log decodes `payload` alone."""
        return tuple(_STORED[name] for name in self.metadata if name in _STORED)


def default_typed_columns(columns: Columns, include_headers: bool) -> TypedColumns:
    """For readers that name none: all columns of today, then `_metadata`."""
    payload = schema_of(columns)
    names = tuple(name for name in METADATA_TYPES if include_headers or name != "headers")
    return TypedColumns(schema=payload.append(_metadata_field(names)), payload=payload, metadata=names)


def named_typed_columns(columns: Columns, names: Sequence[str]) -> TypedColumns:
    """The columns of these names as they are today; `_metadata` without headers. Raises `Invalid` as
    `wanted_typed_columns`.
    """
    if isinstance(names, str):
        raise Invalid(f"columns={names!r} is not allowed: give a list of names")
    today, default = schema_of(columns), default_typed_columns(columns, include_headers=False).schema
    fields = []
    for name in names:
        column = columns.column(name)
        if column is not None:
            fields.append(today.field(column.name).with_name(name))
        elif name.lower() == METADATA:
            fields.append(default.field(METADATA).with_name(name))
        else:
            raise _unknown(columns, name)
    return wanted_typed_columns(columns, pa.schema(fields))


def wanted_typed_columns(columns: Columns, wanted: pa.Schema) -> TypedColumns:
    """The columns that a reader names, with types of Arrow: a column's may be any that it has had. Names match exactly,
    else in another case; a reader's columns are called as it calls them.

    Raises `Invalid` for the first that the queue does not have so.
    """
    if not len(wanted):
        raise Invalid(f"no column is named: name some of {_named(columns)}")
    metadata: tuple[str, ...] = ()
    payload: list[pa.Field] = []
    for field in wanted:
        column = columns.column(field.name)
        if column is not None:
            _check_form(column, field)
            payload.append(field)
        elif field.name.lower() != METADATA:
            raise _unknown(columns, field.name)
        elif metadata:
            raise Invalid(f"column {METADATA!r} is asked for twice: name it once")
        else:
            metadata = _metadata(field)
    return TypedColumns(schema=wanted, payload=chosen_columns(columns, pa.schema(payload)), metadata=metadata)


def _check_form(column: Column, field: pa.Field) -> None:
    """Raises `Invalid` for a type that is not in the normal form, as `chosen_columns` wants it."""
    found = normal(field.type)
    if found is None:
        raise Invalid(f"column {field.name!r} is asked for as {field.type}, it is {column.type}: ask for that")
    if found != field.type:
        raise Invalid(
            f"column {field.name!r} is asked for as {column.type} whose elements or values are never null"
            " (containsNull, valueContainsNull): in a queue they may be, leave that out"
        )


def _metadata(field: pa.Field) -> tuple[str, ...]:
    """The fields that `_metadata` is asked for with."""
    allowed = ", ".join(f"{name}: {type_text(kind)}" for name, kind in METADATA_TYPES.items())
    asked = str(field.type) if normal(field.type) is None else type_text(field.type)
    if not field.nullable:
        raise Invalid(f"column {METADATA!r} is asked for as NOT NULL: leave NOT NULL out")
    if not is_.is_struct(field.type) or not field.type.num_fields:
        raise Invalid(f"column {METADATA!r} is asked for as {asked}: it is STRUCT<{allowed}>, or some of these fields")
    names: list[str] = []
    for inner in field.type:
        name = _metadata_name(inner.name)
        if name is None:
            raise Invalid(f"column {METADATA!r} has no field {inner.name!r}: it is STRUCT<{allowed}>")
        if name in names:
            raise Invalid(f"field {inner.name!r} of column {METADATA!r} is asked for twice: name it once")
        if inner.type != METADATA_TYPES[name] or not inner.nullable:
            raise Invalid(
                f"column {METADATA!r} is asked for as {asked}: its field {name!r} is {type_text(METADATA_TYPES[name])},"
                " without NOT NULL"
            )
        names.append(name)
    return tuple(names)


def _metadata_name(name: str) -> str | None:
    return next((known for known in METADATA_TYPES if known == name.lower()), None)


def _metadata_field(names: Sequence[str]) -> pa.Field:
    return pa.field(METADATA, pa.struct([pa.field(name, METADATA_TYPES[name]) for name in names]))


def _unknown(columns: Columns, name: str) -> Invalid:
    return Invalid(f"column {name!r} is none of the queue's: name some of {_named(columns)}")


def _named(columns: Columns) -> str:
    return f"{shown_names(columns.names)} and {METADATA}"
