"""A typed queue's columns as the head keeps them, with what they were in earlier versions, and how they may change.

A slice names the version that it was written with, and every version can be told from the columns of today: a column
says since when it is there and which types it had until when. So one list is enough however often it was altered.
Types stand here in Spark's words (`ddl`), because a head is read by people and by programs that need no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Self

import msgspec
import pyarrow as pa
from msgspec import Struct

from partq_spark.base.errors import Invalid
from partq_spark.base.json_documents import Positive
from partq_spark.log.schema.ddl import ddl_of, name_text, parse_ddl, parse_type, type_text
from partq_spark.log.schema.types import KEY_TYPES, check_columns, widens

MAX_VERSION: Final = 10_000
"""Bounds what is kept of former types, and stops a program that alters in a loop."""


class FormerType(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a column's type was, up to and with a version."""

    type: str
    until: Positive


class Column(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column. `since` is the first version that has it, `former` its types before this one, oldest first."""

    name: str
    type: str
    nullable: bool = True
    since: Positive = 1
    former: tuple[FormerType, ...] = ()

    def type_at(self, version: int) -> str:
        """Its type in a version that has it."""
        return next((former.type for former in self.former if version <= former.until), self.type)

    def types(self) -> Iterator[str]:
        """All types that it has had, the oldest first."""
        yield from (former.type for former in self.former)
        yield self.type


class Columns(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The columns of a typed queue, version `version` of them. `key` is the name of that which decides the partition;
    None: messages have no key.
    """

    columns: tuple[Column, ...]
    key: str | None = None
    version: Positive = 1

    @classmethod
    def of(cls, schema: pa.Schema, key: str | None = None) -> Self:
        """Columns in the normal form (`types.normal_schema`, `parse_ddl`), as a queue begins with them.

        `key` is found as Spark finds it: by its name, else by its name in another case. Raises `Invalid`.
        """
        check_columns(schema)
        columns = tuple(
            Column(name=field.name, type=type_text(field.type), nullable=field.nullable) for field in schema
        )
        return cls(columns=columns, key=None if key is None else _key_in(schema, key))

    def at(self, version: int) -> pa.Schema:
        """The columns of a version: of what slices of this version hold."""
        return _schema_at(self, version)

    @property
    def schema(self) -> pa.Schema:
        """The columns of today."""
        return self.at(self.version)

    @property
    def ddl(self) -> str:
        """The columns of today as people read them."""
        return ddl_of(self.schema)

    def column(self, name: str) -> Column | None:
        """By its exact name, else by its name in another case."""
        exact = next((column for column in self.columns if column.name == name), None)
        return exact or next((column for column in self.columns if column.name.lower() == name.lower()), None)

    # ---- changes

    def with_added(self, ddl: str) -> Columns:
        """With the columns that `ddl` names behind those of today. Raises `Invalid`: a name that is there, NOT NULL
        (messages that are there have no value for it), whatever `parse_ddl` refuses.
        """
        added = parse_ddl(ddl)
        version = self._next_version()
        for field in added:
            known = self.column(field.name)
            if known is not None:
                raise Invalid(f"column {field.name!r} cannot be added: there is {known.name!r} of type {known.type}")
            if not field.nullable:
                raise Invalid(
                    f"column {field.name!r} cannot be added as NOT NULL: messages that are there have no value for it;"
                    " leave NOT NULL out"
                )
        new = tuple(Column(name=field.name, type=type_text(field.type), since=version) for field in added)
        changed = msgspec.structs.replace(self, columns=(*self.columns, *new), version=version)
        check_columns(changed.schema)
        return changed

    def with_widened(self, ddl: str) -> Columns:
        """With the types that `ddl` gives to columns. Raises `Invalid`: no such column, a type that could lose or
        change a value, the same type.
        """
        columns = {column.name: column for column in self.columns}
        version = self._next_version()
        for field in parse_ddl(ddl):
            known = self.column(field.name)
            if known is None:
                raise Invalid(f"column {field.name!r} cannot be widened: the queue has {', '.join(columns)}")
            narrow, wide = parse_type(known.type), field.type
            if not field.nullable and known.nullable:
                raise Invalid(f"column {known.name!r} may be null, and stays so: leave NOT NULL out")
            if not widens(narrow, wide):
                raise Invalid(
                    f"column {known.name!r} of type {known.type} cannot become {type_text(wide)}:"
                    f" {_ways_from(narrow)}"
                )
            columns[known.name] = msgspec.structs.replace(
                known, type=type_text(wide), former=(*known.former, FormerType(known.type, version - 1))
            )
        return msgspec.structs.replace(self, columns=tuple(columns.values()), version=version)

    def _next_version(self) -> int:
        if self.version >= MAX_VERSION:
            raise Invalid(f"the queue's columns were altered {self.version - 1} times, and no more is possible")
        return self.version + 1


@lru_cache(maxsize=64)
def _schema_at(columns: Columns, version: int) -> pa.Schema:
    return pa.schema(
        pa.field(column.name, parse_type(column.type_at(version)), column.nullable)
        for column in columns.columns
        if column.since <= version
    )


def _key_in(schema: pa.Schema, key: str) -> str:
    found = [name for name in schema.names if name == key] or [
        name for name in schema.names if name.lower() == key.lower()
    ]
    if not found:
        raise Invalid(f"key column {key!r} is none of the queue's: {', '.join(map(name_text, schema.names))}")
    kind = schema.field(found[0]).type
    if kind not in KEY_TYPES:
        allowed = ", ".join(type_text(allowed) for allowed in KEY_TYPES)
        raise Invalid(
            f"key column {found[0]!r} has type {type_text(kind)}: a key may be {allowed}, because its text decides the"
            " partition"
        )
    return found[0]


def _ways_from(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return "a DECIMAL may get more digits, and none fewer on either side of the point"
    if kind == pa.float32():
        return "a FLOAT may become DOUBLE"
    if pa.types.is_signed_integer(kind) and kind != pa.int64():
        return "whole numbers may become wider ones, TINYINT → SMALLINT → INT → BIGINT"
    return "this type cannot be widened; add a column instead (--add-column)"
