"""Random columns and values of every type that a typed queue keeps, for property tests of the schema and of all that
moves typed messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from partq_spark.log.schema.conform import map_key
from partq_spark.log.schema.types import TIMESTAMP, TIMESTAMP_NTZ, list_of, map_of

WHOLE = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
NAMES = st.text("abcXYZ0 _-`é\"'.", min_size=1, max_size=6).filter(lambda name: not name.startswith("_"))


def simple_types() -> st.SearchStrategy[pa.DataType]:
    """All types without ARRAY, MAP and STRUCT."""
    decimals = st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
    )
    others = [*WHOLE, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
    return st.sampled_from([*others, TIMESTAMP, TIMESTAMP_NTZ]) | decimals


def types() -> st.SearchStrategy[pa.DataType]:
    """All types, nested some levels deep."""
    return st.recursive(
        simple_types(),
        lambda inner: (
            st.builds(list_of, inner) | st.builds(map_of, simple_types(), inner) | fields(inner, most=3).map(pa.struct)
        ),
        max_leaves=5,
    )


def fields(kinds: st.SearchStrategy[pa.DataType], most: int) -> st.SearchStrategy[list[pa.Field]]:
    """Columns, or fields of a struct, whose names differ by more than case."""
    one = st.builds(pa.field, NAMES, kinds, st.booleans())
    return st.lists(one, min_size=1, max_size=most, unique_by=lambda field: field.name.lower())


def schemas(most: int = 4) -> st.SearchStrategy[pa.Schema]:
    """Columns of a queue."""
    return fields(types(), most).map(pa.schema)


def values(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type as Python's, extreme ones and null included."""
    found = _values(kind)
    return st.none() | found if nullable else found


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in WHOLE:
        most = 2 ** (WHOLE[kind] - 1)
        return st.sampled_from([-most, most - 1, 0]) | st.integers(-most, most - 1)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-kind.scale, _EXACT))
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        key = values(kind.key_type, nullable=False)
        pairs = st.tuples(key, values(kind.item_type))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: map_key(pair[0]))
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type, nullable=field.nullable) for field in kind})
    return _SIMPLE[kind]


_EXACT = Context(prec=60)
_SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8) | st.just("long " * 2000),
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates() | st.sampled_from([date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)]),
    TIMESTAMP: st.datetimes(timezones=st.just(UTC)) | st.just(datetime(1, 1, 1, tzinfo=UTC)),
    TIMESTAMP_NTZ: st.datetimes() | st.just(datetime.max),  # noqa: DTZ901 - one without a zone
}


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema | None = None, most_rows: int = 4) -> pa.RecordBatch:
    """Rows of random columns, or of `schema`."""
    found = draw(schemas()) if schema is None else schema
    rows = draw(st.integers(0, most_rows))
    columns = [
        pa.array([draw(values(field.type, nullable=field.nullable)) for _ in range(rows)], field.type)
        for field in found
    ]
    return pa.RecordBatch.from_arrays(columns, schema=found)


def as_by_jvm(column: pa.Array) -> pa.Array:
    """The same values as Spark's JVM writes them: where a struct is null, its fields are too, be they NOT NULL. For a
    whole column, not a part of one.
    """
    kind, mask = column.type, column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([as_by_jvm(each) for each in column.flatten()], fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        items = as_by_jvm(column.items)
        return pa.MapArray.from_arrays(column.offsets, column.keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, as_by_jvm(column.values), type=kind, mask=mask)
    return column


def foreign(kind: pa.DataType, draw: Callable[[st.SearchStrategy[Any]], Any]) -> pa.DataType:
    """Another form of Arrow's for the same values."""
    if pa.types.is_string(kind):
        return draw(
            st.sampled_from([kind, pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())])
        )
    if pa.types.is_binary(kind):
        return draw(st.sampled_from([kind, pa.large_binary(), pa.binary_view()]))
    if pa.types.is_timestamp(kind) and kind.tz:
        return draw(st.sampled_from([kind, pa.timestamp("us", "Europe/Berlin")]))
    if pa.types.is_list(kind):
        make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
        return make(foreign(kind.value_type, draw))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, foreign(field.type, draw)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(foreign(kind.key_type, draw), foreign(kind.item_type, draw))
    return kind


def hiding(column: pa.Array, draw: Callable[[st.SearchStrategy[Any]], Any]) -> pa.Array:
    """With some of what may be null made so, on every level: what was there is hidden, and still there. For a whole
    column, not a part of one.
    """
    kind = column.type
    mask = pa.array([draw(st.booleans()) or not known for known in column.is_valid().to_pylist()], pa.bool_())
    if pa.types.is_struct(kind):
        inner = [column.field(at) for at in range(kind.num_fields)]
        inner = [hiding(each, draw) if kind.field(at).nullable else each for at, each in enumerate(inner)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        items = hiding(column.items, draw)
        return pa.MapArray.from_arrays(column.offsets, column.keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, hiding(column.values, draw), type=kind, mask=mask)
    return column


def same(left: Any, right: Any) -> bool:
    """Whether two Python values are equal, NaN being equal to NaN, and -0.0 not to 0.0."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
