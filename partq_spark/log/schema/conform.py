"""What a publisher hands over, brought to a queue's columns: first its columns are compared, then its values checked.

The columns are compared before anything runs (`Taking`); each batch is then converted, and every value that Spark or
Arrow would let pass and others could not read is refused with its row and column (interface, "Typed queues"). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.base.timestamps import EPOCH
from partq_spark.log.schema.columns import shown_names
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.forms import as_form, entries_of
from partq_spark.log.schema.types import filled, normal, widens, without_not_null
from partq_spark.log.validation import RowOf, first_not_utf8

_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH).days
_DAYS_END: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH).days + 1


@dataclass(frozen=True, slots=True)
class Taking:
    """How batches of certain columns become a queue's: for each of its columns, in order, where it stands in what is
    given; None: it is not given, and is null.
    """

    schema: pa.Schema
    places: tuple[int | None, ...]

    @classmethod
    def of(cls, given: pa.Schema, schema: pa.Schema, *, beside: Sequence[str] = ()) -> Taking:
        """`given` may have the columns `beside`, which are not the queue's, too. Names match exactly, else in another
        case. Raises `Invalid` for the first column that does not fit, with both types.
        """
        places: dict[str, int] = {}
        lower = {name.lower(): name for name in schema.names}
        for index, field in enumerate(given):
            if field.name in beside:
                continue
            name = field.name if field.name in schema.names else lower.get(field.name.lower())
            if name is None:
                raise Invalid(
                    f"column {field.name!r} ({_said(field.type)}) is none of the queue's ({shown_names(schema.names)}):"
                    " leave it out, or add it with `partq queue alter --add-column`"
                )
            if name in places:
                former = given.field(places[name]).name
                raise Invalid(f"columns {former!r} and {field.name!r} are both the queue's column {name!r}: give one")
            wanted = schema.field(name)
            if not _fits(field.type, wanted.type, nullable=wanted.nullable):
                raise Invalid(
                    f"column {field.name!r} has type {_said(field.type)}, the queue's is {type_text(wanted.type)}: cast"
                    " it"
                )
            places[name] = index
        for field in schema:
            if field.name not in places and not field.nullable:
                raise Invalid(
                    f"column {field.name!r} ({type_text(field.type)} NOT NULL) is missing: the queue needs it in every"
                    " row"
                )
        return cls(schema, tuple(places.get(name) for name in schema.names))

    def __call__(self, batch: pa.RecordBatch, row_of: RowOf) -> pa.RecordBatch:
        """The batch with the queue's columns. Raises `Invalid` with the row and column of a value that cannot be
        taken.
        """
        columns = []
        for field, place in zip(self.schema, self.places, strict=True):
            if place is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(conformed(batch.column(place), field, row_of))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def conformed(column: pa.Array, field: pa.Field, row_of: RowOf) -> pa.Array:
    """One column as `field` says. Raises `Invalid` with the row of a value that cannot be taken."""
    try:
        found = as_form(column, field.type)
    except pa.ArrowInvalid as error:
        row = _first_refused(column, field.type)
        value = str(column[row].as_py())[:60]
        raise Invalid(
            f"row {row_of(row)}, column {field.name!r}: {value} of type {column.type} is no {type_text(field.type)}"
            f" ({error})"
        ) from None
    _check(found, field, _Place(field.name, row_of))
    return found


def _fits(given: pa.DataType, wanted: pa.DataType, *, nullable: bool) -> bool:
    if is_.is_null(given):
        return nullable
    found = normal(filled(given, wanted))
    if found is None:
        return False
    found, wanted = without_not_null(found), without_not_null(wanted)
    return found == wanted or widens(found, wanted)


def _said(kind: pa.DataType) -> str:
    found = normal(kind)
    return str(kind) if found is None else type_text(found)


def _first_refused(column: pa.Array, kind: pa.DataType) -> int:
    """The first row that cannot be taken; there is one."""
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        try:
            as_form(column.slice(first, half), kind)
            first, rows = first + half, rows - half
        except pa.ArrowInvalid:
            rows = half
    return first


# ---- what is refused


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values stand: the path of names to them, and which row each of them belongs to."""

    path: str
    row_of: RowOf

    def inside(self, name: str, parents: pa.Array | None = None) -> _Place:
        """Of what lies in these values; `parents` are the indices that it belongs to, if they are not the same."""
        if parents is None:
            return _Place(f"{self.path}.{name}", self.row_of)
        return _Place(f"{self.path}.{name}", lambda index: self.row_of(parents[index].as_py()))

    def refuse(self, index: int, what: str) -> Invalid:
        return Invalid(f"row {self.row_of(index)}, column {self.path!r}: {what}")


def _check(values: pa.Array, field: pa.Field, place: _Place, hidden: pa.Array | None = None) -> None:
    """Raises `Invalid` for the first value that a queue does not take. `hidden` is where nothing is seen of `values`,
    because the struct around them is null.
    """
    if not field.nullable and values.null_count:
        null = values.is_null() if hidden is None else pc.and_not(values.is_null(), hidden)
        index = pc.index(null, True).as_py()
        if index >= 0:
            raise place.refuse(index, "null, where the queue's schema says NOT NULL")
    kind = values.type
    if is_.is_string(kind):
        index = first_not_utf8(values)
        if index is not None:
            raise place.refuse(index, "a STRING that is not UTF-8: encode it, or make the column BINARY")
    elif is_.is_date(kind):
        _check_range(values.view(pa.int32()), _FIRST_DAY, _DAYS_END, "DATE", place)
    elif is_.is_timestamp(kind):
        _check_range(values.view(pa.int64()), _FIRST_DAY * _DAY_US, _DAYS_END * _DAY_US, "TIMESTAMP", place)
    elif is_.is_decimal(kind):
        _check_digits(values, place)
    elif is_.is_struct(kind):
        above = values.is_null() if hidden is None else pc.or_(values.is_null(), hidden)
        for inner, child in zip(kind, values.flatten(), strict=True):  # flattened: null where the struct is
            _check(child, inner, place.inside(inner.name), above)
    elif is_.is_map(kind):
        _check_map(values, place)
    elif is_.is_list(kind):
        _check(values.flatten(), kind.value_field, place.inside("element", _parents(values)))


def _check_range(numbers: pa.Array, first: int, end: int, what: str, place: _Place) -> None:
    bounds = pc.min_max(numbers)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < first or most >= end):
        outside = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))
        raise place.refuse(pc.index(outside, True).as_py(), f"a {what} outside of the years 1 to 9999")


def _check_digits(values: pa.Array, place: _Place) -> None:
    """Arrow lets a decimal have more digits than its type says."""
    end = Decimal(10 ** (values.type.precision - values.type.scale))
    bounds = pc.min_max(values)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least <= -end or most >= end):
        index = next(i for i, value in enumerate(values.to_pylist()) if value is not None and abs(value) >= end)
        raise place.refuse(index, f"{values[index].as_py()} has more digits than {type_text(values.type)}")


def _check_map(values: pa.Array, place: _Place) -> None:
    kind = values.type
    entries = entries_of(values)
    parents = _parents(entries)
    flat = entries.flatten()
    keys = flat.field(0)
    if keys.null_count:
        index = pc.index(keys.is_null(), True).as_py()
        raise place.inside("key", parents).refuse(index, "a key of a map that is null")
    _check(keys, pa.field("key", kind.key_type), place.inside("key", parents))
    _check(flat.field(1), pa.field("value", kind.item_type), place.inside("value", parents))
    repeated = _first_repeated(parents, keys)
    if repeated is not None:
        raise place.inside("key", parents).refuse(repeated, f"the key {keys[repeated].as_py()!r} twice in one map")


def _parents(lists: pa.Array) -> pa.Array:
    """For each element of `lists.flatten()` the index of its list. A list that is null may hide elements."""
    parents = pc.list_parent_indices(lists)
    return parents.filter(lists.is_valid().take(parents)) if lists.null_count else parents


def _first_repeated(parents: pa.Array, keys: pa.Array) -> int | None:
    """The index of the first key that its map has already."""
    if len(keys) == pc.count_distinct(parents).as_py():
        return None  # no map has two
    if is_.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))  # -0.0 becomes 0.0, which Spark takes it for
    if not is_.is_nested(keys.type):
        table = pa.table({"parent": parents, "key": keys}).group_by(["parent", "key"]).aggregate([])
        if table.num_rows == len(keys):
            return None
    seen: set[tuple[int, str]] = set()
    for index, (parent, key) in enumerate(zip(parents.to_pylist(), keys.to_pylist(), strict=True)):
        before = len(seen)
        seen.add((parent, map_key(key)))
        if len(seen) == before:
            return index
    return None


def map_key(key: object) -> str:
    """What tells the keys of a MAP apart, by their Python values, as Spark does: 0.0 and -0.0 are one, NaN is one."""
    if isinstance(key, float):
        return repr(key + 0.0)
    if isinstance(key, dict):
        return map_key([part for pair in key.items() for part in pair])
    return f"[{','.join(map(map_key, key))}]" if isinstance(key, list | tuple) else repr(key)
