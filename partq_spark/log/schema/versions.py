"""The versions of a typed queue's columns: the first one, what each is in Arrow, and the next one, which loses and
changes no value. Pure.

What could lose or change a value is refused in words: a column that goes, gets another name or a type that does not
hold all values of the one it has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
import pyarrow as pa

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log.schema.columns import Column, Columns, FormerType, find_name, name_text, same_columns
from partq_spark.log.schema.ddl import parse_ddl, parse_struct_json, parse_type, type_text
from partq_spark.log.schema.types import KEY_TYPES, check_columns, normal_schema, widens

MAX_VERSION: Final = 10_000
"""Stops a program that alters in a loop. Every version adds a column or widens one, so few queues can come near."""

MOST_BYTES: Final = 256 * 1024
"""Of a queue's columns in its head, with their former types: every publish writes the head anew."""


def schema_from(given: str | pa.Schema) -> pa.Schema:
    """The columns that a user gives, in the normal form: a DDL, the JSON of a `StructType`, or an Arrow schema. Raises
    `Invalid` by place or column.
    """
    if isinstance(given, pa.Schema):
        return normal_schema(given)
    return parse_struct_json(given) if given.lstrip().startswith("{") else parse_ddl(given)


def columns_of(schema: pa.Schema, key: str | None = None) -> Columns:
    """Columns in the normal form (`schema_from`), as a queue begins with them.

    `key` as `find_name` finds it. Raises `Invalid`.
    """
    check_columns(schema)
    columns = tuple(Column(name=field.name, type=type_text(field.type), nullable=field.nullable) for field in schema)
    return _not_too_large(Columns(columns=columns, key=None if key is None else _key_in(schema, key)))


@lru_cache(maxsize=64)
def schema_of(columns: Columns, version: int | None = None) -> pa.Schema:
    """The columns of a version, of today by default: what slices of this version hold. Raises `Corrupt` for types that
    no queue has: the head was written by somebody who did not know its format.
    """
    version = columns.version if version is None else version
    if version > columns.version:
        raise Corrupt(
            f"version {version} of a queue's columns was asked for, its head has {columns.version}: was the store "
            "restored from an older copy? restore all of it"
        )
    try:
        found = pa.schema(
            pa.field(column.name, parse_type(column.type_at(version)), column.nullable)
            for column in columns.columns
            if column.since <= version
        )
        check_columns(found)
    except Invalid as error:
        raise Corrupt(f"the head has columns that no queue can have ({error}): restore it from a backup") from None
    return found


# ---- changes


def with_added(columns: Columns, ddl: str) -> Columns:
    """With the columns that `ddl` names behind those of today. Raises `Invalid`: a name that is there, NOT NULL
    (messages that are there have no value for it), whatever `parse_ddl` refuses.
    """
    added = parse_ddl(ddl)
    version = _next_version(columns)
    for field in added:
        known = columns.column(field.name)
        if known is not None:
            raise Invalid(f"column {field.name!r} cannot be added: there is {known.name!r} of type {known.type}")
        if not field.nullable:
            raise Invalid(
                f"column {field.name!r} cannot be added as NOT NULL: messages that are there have no value for it; "
                "leave NOT NULL out"
            )
    new = tuple(Column(name=field.name, type=type_text(field.type), since=version) for field in added)
    check_columns(pa.schema([*schema_of(columns), *added]))
    return _not_too_large(msgspec.structs.replace(columns, columns=(*columns.columns, *new), version=version))


def with_widened(columns: Columns, ddl: str) -> Columns:
    """With the types that `ddl` gives to columns. Raises `Invalid`: no such column, a type that could lose or change a
    value, the same type.
    """
    changed = {column.name: column for column in columns.columns}
    version = _next_version(columns)
    for field in parse_ddl(ddl):
        known = columns.column(field.name)
        if known is None:
            raise Invalid(f"column {field.name!r} cannot be widened: the queue has {', '.join(changed)}")
        narrow, wide = parse_type(known.type), field.type
        if not field.nullable and known.nullable:
            raise Invalid(f"column {known.name!r} may be null, and stays so: leave NOT NULL out")
        if not widens(narrow, wide):
            raise Invalid(
                f"column {known.name!r} of type {known.type} cannot become {type_text(wide)}: {_ways_from(narrow)}"
            )
        changed[known.name] = msgspec.structs.replace(
            known, type=type_text(wide), former=(*known.former, FormerType(known.type, version - 1))
        )
    return _not_too_large(msgspec.structs.replace(columns, columns=tuple(changed.values()), version=version))


def check_same(present: Columns | None, wanted: Columns | None, queue: str) -> None:
    """Raises `Invalid` unless a queue has these columns and this key today, whatever they were before (None: untyped):
    says what would be lost or changed, and what can be done.
    """
    if present is None and wanted is None:
        return
    if wanted is None:
        raise Invalid(
            f"queue {queue!r} is typed, its messages are rows, and it cannot become untyped: create another queue "
            "without a schema and publish to that"
        )
    if present is None:
        raise Invalid(
            f"queue {queue!r} is untyped, its messages are key and value, and it cannot become typed: create another "
            "queue with the schema and publish to that"
        )
    if same_columns(present, wanted):
        if present.key == wanted.key:
            return
        raise Invalid(
            f"queue {queue!r} has key column {present.key or 'none'}, not {wanted.key or 'none'}: it decides in which "
            "partition each message is, and stays; create another queue for another key"
        )
    for column in present.columns:
        found = wanted.column(column.name)
        if found is None or found.name != column.name:
            raise Invalid(
                f"column {column.name!r} of queue {queue!r} cannot be dropped or get another name: messages that are "
                "there have it, and queries read it; leave it, or create another queue"
            )
        if str(found) != str(column):
            narrow, wide = parse_type(column.type), parse_type(found.type)
            how = _ways_from(narrow)
            if narrow == wide:
                how = "whether it may be null was said when the queue was created, and stays"
            elif widens(narrow, wide):
                how = f"widen it with `partq queue alter {queue} --widen '{name_text(column.name)} {found.type}'`"
            raise Invalid(
                f"column {column.name!r} of queue {queue!r} is {column}, and naming a schema does not make it {found}: "
                f"{how}"
            )
    new = next(column for column in wanted.columns if present.column(column.name) is None)
    raise Invalid(
        f"queue {queue!r} has no column {new.name!r}: add it with `partq queue alter {queue} --add-column '{new}'`"
    )


def _next_version(columns: Columns) -> int:
    if columns.version >= MAX_VERSION:
        raise Invalid(
            f"the queue's columns were altered {columns.version - 1} times, and no more is possible: create another "
            "queue with the columns that you need"
        )
    return columns.version + 1


def _not_too_large(columns: Columns) -> Columns:
    size = len(msgspec.json.encode(columns))
    if size > MOST_BYTES:
        raise Invalid(
            f"the queue's columns, with the types that they had before, would take {size} bytes of its head, which "
            f"every publish writes; at most {MOST_BYTES} are allowed: create another queue with fewer columns or "
            "shorter names, or nest what belongs together in a STRUCT"
        )
    return columns


def _key_in(schema: pa.Schema, key: str) -> str:
    found = find_name(schema.names, key)
    if found is None:
        raise Invalid(f"key column {key!r} is none of the queue's: {', '.join(map(name_text, schema.names))}")
    kind = schema.field(found).type
    if kind not in KEY_TYPES:
        allowed = ", ".join(type_text(allowed) for allowed in KEY_TYPES)
        raise Invalid(
            f"key column {found!r} has type {type_text(kind)}: a key may be {allowed}, because its text decides the"
            " partition"
        )
    return found


def _ways_from(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return "a DECIMAL may get more digits, and none fewer on either side of the point"
    if kind == pa.float32():
        return "a FLOAT may become DOUBLE"
    if pa.types.is_signed_integer(kind) and kind != pa.int64():
        return "whole numbers may become wider ones, TINYINT → SMALLINT → INT → BIGINT"
    return "this type cannot be widened; add a column instead (--add-column)"
