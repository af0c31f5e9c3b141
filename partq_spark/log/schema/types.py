"""The types that a typed queue keeps, each in one form of Arrow's: what foreign forms mean, and what may widen to what.

The normal form is what Spark's readers want to the letter (spark-traps.md 11): `to_arrow_schema(schema, "UTC")`.
Elements of arrays and values of maps may always be null; columns and fields of structs only where they are not NOT
NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.errors import Invalid

MAX_COLUMNS: Final = 1000
MAX_DEPTH: Final = 32
"""A column that is no ARRAY, MAP or STRUCT is one deep. Arrow's files nest 63 deep at most, and a map takes two."""
TOO_DEEP: Final = f"nested more than {MAX_DEPTH} deep: nest less, or keep a part of it as text"

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_OTHERS: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
"""Other forms of the same values, or of some of them."""
SIMPLE_TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
"""By the words of Spark's DDL for them: those that are in the normal form as they are."""
_AS_THEY_ARE: Final = frozenset(SIMPLE_TYPES.values())


def list_of(element: pa.DataType) -> pa.DataType:
    """An ARRAY."""
    return pa.list_(pa.field("element", element))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """A MAP."""
    return pa.map_(key, pa.field("value", value))


def normal(kind: pa.DataType, most_deep: int = MAX_DEPTH) -> pa.DataType | None:
    """The normal form of whatever holds the same values: large and view types, dictionaries, other units and zones of
    time, unsigned numbers, which a wider signed type holds. None: a queue keeps no such values, or they are nested more
    than `most_deep` deep.

    A form that may hold more than the normal one (nanoseconds) is checked value by value when it is published.
    """
    if most_deep < 1:
        return None
    if kind in _AS_THEY_ARE:
        return kind
    if kind in _OTHERS:
        return _OTHERS[kind]
    if is_.is_dictionary(kind):
        return normal(kind.value_type, most_deep)
    if is_.is_fixed_size_binary(kind):
        return pa.binary()
    if is_.is_timestamp(kind):
        return TIMESTAMP_NTZ if kind.tz is None else TIMESTAMP
    if is_.is_decimal(kind):
        fits = kind.precision <= 38 and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else None
    return _nested(kind, most_deep - 1)


def _nested(kind: pa.DataType, most_deep: int) -> pa.DataType | None:
    if is_.is_map(kind):
        key, value = normal(kind.key_type, most_deep), normal(kind.item_type, most_deep)
        return None if key is None or value is None else map_of(key, value)
    if is_.is_struct(kind) and kind.num_fields:
        inner = [(field, normal(field.type, most_deep)) for field in kind]
        if any(found is None for _, found in inner):
            return None
        return pa.struct([pa.field(field.name, found, field.nullable) for field, found in inner])
    if _is_any_list(kind):
        element = normal(kind.value_type, most_deep)
        return None if element is None else list_of(element)
    return None


def _is_any_list(kind: pa.DataType) -> bool:
    lists = (is_.is_list, is_.is_large_list, is_.is_fixed_size_list, is_.is_list_view, is_.is_large_list_view)
    return any(is_list(kind) for is_list in lists)


def filled(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """`given`, in which VOID (of a NULL without a type, or of an empty array) is of the type that is wanted there, at
    any depth; whether null may stand there is seen by the values.
    """
    if is_.is_null(given):
        return wanted
    if is_.is_struct(given) and is_.is_struct(wanted) and given.num_fields == wanted.num_fields:
        pairs = zip(given, wanted, strict=True)
        return pa.struct([field.with_type(filled(field.type, other.type)) for field, other in pairs])
    if is_.is_map(given) and is_.is_map(wanted):  # Arrow has no keys of VOID
        return pa.map_(given.key_type, filled(given.item_type, wanted.item_type))
    if _is_any_list(given) and is_.is_list(wanted):
        return pa.list_(filled(given.value_type, wanted.value_type))
    return given


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """Columns in the normal form, without metadata, checked. Raises `Invalid` by column."""
    fields = []
    for field in schema:
        kind = normal(field.type)
        if kind is None:
            _check_depth(field)
            raise Invalid(
                f"schema: column {field.name!r} has type {field.type}, which a queue does not keep: cast it, or keep it"
                " as text"
            )
        fields.append(pa.field(field.name, kind, field.nullable))
    found = pa.schema(fields)
    check_columns(found)
    return found


def check_columns(schema: pa.Schema) -> None:
    """Raises `Invalid` for columns, in the normal form, that no queue can have: their number, depth and names."""
    if not 1 <= len(schema) <= MAX_COLUMNS:
        raise Invalid(f"schema has {len(schema)} columns, 1 to {MAX_COLUMNS} are possible")
    _check_names(schema, "schema")
    for field in schema:
        if field.name.startswith("_"):
            raise Invalid(f"schema: column {field.name!r} begins with '_', which partq keeps for itself: rename it")
        _check_depth(field)
        for inner in _structs_in(field.type):
            _check_names(inner, f"schema: fields in column {field.name!r}")


def _check_names(fields: Iterable[pa.Field], where: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        name, lower = field.name, field.name.lower()
        if not name:
            raise Invalid(f"{where}: a name is empty: name every column and field")
        if seen.get(lower) == name:
            raise Invalid(f"{where}: {name!r} is there twice: rename one of them")
        if lower in seen:
            raise Invalid(
                f"{where}: {seen[lower]!r} and {name!r} differ in case alone, which Spark does not tell apart: rename"
                " one of them"
            )
        seen[lower] = name


def _check_depth(field: pa.Field) -> None:
    """Raises `Invalid` for a column that is nested too deep."""
    if _is_deeper(field.type, MAX_DEPTH):
        raise Invalid(f"schema: column {field.name!r} is {TOO_DEEP}")


def _is_deeper(kind: pa.DataType, most: int) -> bool:
    """Goes no deeper than that: types that a program made may be nested deeper than Python can call."""
    return most < 1 or any(_is_deeper(inner, most - 1) for inner in _inner(kind))


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if is_.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def _structs_in(kind: pa.DataType) -> Iterable[pa.StructType]:
    if is_.is_struct(kind):
        yield kind
    for inner in _inner(kind):
        yield from _structs_in(inner)


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether `wide` holds every value of `narrow` in the same words, and is another type: what `--widen` may do.

    TINYINT → SMALLINT → INT → BIGINT, FLOAT → DOUBLE, DECIMAL with no digit less on either side of the point.
    """
    if narrow in _WHOLE and wide in _WHOLE:
        return _WHOLE.index(narrow) < _WHOLE.index(wide)
    if is_.is_decimal(narrow) and is_.is_decimal(wide):
        before = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(before and wide.scale >= narrow.scale and narrow != wide)
    return bool(narrow == pa.float32() and wide == pa.float64())


KEY_TYPES: Final = (pa.string(), *_WHOLE, pa.bool_(), pa.date32(), pa.binary())
"""Types whose values Spark casts to STRING in the same way in all sessions."""


def without_not_null(kind: pa.DataType) -> pa.DataType:
    """The type with all fields of its structs nullable: what decides whether one is the other, values being checked."""
    if is_.is_map(kind):
        return map_of(without_not_null(kind.key_type), without_not_null(kind.item_type))
    if is_.is_list(kind):
        return list_of(without_not_null(kind.value_type))
    if is_.is_struct(kind):
        return pa.struct([pa.field(field.name, without_not_null(field.type)) for field in kind])
    return kind


def gives(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether it is the same type, where what may not be null may also be asked for as what may."""
    if is_.is_map(kind) and is_.is_map(wanted):
        return gives(kind.key_type, wanted.key_type) and gives(kind.item_type, wanted.item_type)
    if is_.is_list(kind) and is_.is_list(wanted):
        return gives(kind.value_type, wanted.value_type)
    if is_.is_struct(kind) and is_.is_struct(wanted) and kind.num_fields == wanted.num_fields:
        return all(
            have.name == want.name and (want.nullable or not have.nullable) and gives(have.type, want.type)
            for have, want in zip(kind, wanted, strict=True)
        )
    return bool(kind == wanted)
