"""Columns that are given, brought to those that are wanted: what a publisher hands over to a queue's columns, and
slices of any version to the columns and types that a reader loaded. Pure.

The columns are compared before anything runs (`Conversion`); each batch is then converted. Of what is taken
every value that Spark or Arrow would let pass and others could not read is refused with its row and column (interface,
"Typed queues"). What is read was looked at then: it is null for what came later, widened, or narrowed with a check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.effects import EPOCH
from partq_spark.base.errors import BadRow, Invalid
from partq_spark.log.schema.columns import find_name, shown_names
from partq_spark.log.schema.ddl import said_type, type_text
from partq_spark.log.schema.forms import as_form, entries_of, first_bad, first_not_utf8
from partq_spark.log.schema.types import filled, normal, widens, without_not_null

_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH).days
_DAYS_END: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH).days + 1


@dataclass(frozen=True, slots=True)
class Conversion:
    """How batches of certain columns become others, those of `schema`: for each of these, in order, where it stands in
    what is given (None: it is not there, and is null), and what is made of it. Made once for many batches.
    """

    schema: pa.Schema
    places: tuple[int | None, ...]
    one: Callable[[pa.Array, pa.Field], pa.Array]

    @classmethod
    def to_queue(cls, given: pa.Schema, schema: pa.Schema, *, beside: Sequence[str] = ()) -> Conversion:
        """From what is published to a queue's columns. `given` may have the columns `beside`, which are not the
        queue's, too. Names match exactly, else in another case. Raises `Invalid` for the first column that does not
        fit, with both types.
        """
        places: dict[str, int] = {}
        names = schema.names
        for index, field in enumerate(given):
            if field.name in beside:
                continue
            name = find_name(names, field.name)
            if name is None:
                raise Invalid(
                    f"column {field.name!r} ({said_type(field.type)}) is none of the queue's ({shown_names(names)}):"
                    " leave it out, or add it with `partq queue alter --add-column`"
                )
            if name in places:
                former = given.field(places[name]).name
                raise Invalid(f"columns {former!r} and {field.name!r} are both the queue's column {name!r}: give one")
            wanted = schema.field(name)
            if not _fits(field.type, wanted.type, nullable=wanted.nullable):
                raise Invalid(
                    f"column {field.name!r} has type {said_type(field.type)}, the queue's is {type_text(wanted.type)}:"
                    " cast it"
                )
            places[name] = index
        for field in schema:
            if field.name not in places and not field.nullable:
                raise Invalid(
                    f"column {field.name!r} ({type_text(field.type)} NOT NULL) is missing: the queue needs it in every"
                    " row"
                )
        return cls(schema, tuple(places.get(name) for name in names), _conformed)

    @classmethod
    def to_reader(cls, given: pa.Schema, schema: pa.Schema) -> Conversion | None:
        """From the columns of slices to those of a reader. None: they are the same, and nothing is to be done."""
        if given.names == schema.names and given.types == schema.types:
            return None
        there = {name: index for index, name in enumerate(given.names)}
        return cls(schema, tuple(there.get(name) for name in schema.names), _loaded)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of `schema`. Raises `BadRow` with the column of the first value that a queue does
        not take, or that does not fit a type that was widened after the reader had loaded it.
        """
        columns = [
            pa.nulls(batch.num_rows, field.type) if place is None else self.one(batch.column(place), field)
            for field, place in zip(self.schema, self.places, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _conformed(column: pa.Array, field: pa.Field) -> pa.Array:
    """One column as `field` says. Raises `BadRow` for a value that cannot be taken."""
    try:
        found = as_form(column, field.type)
    except pa.ArrowInvalid as error:
        row = first_bad(column, lambda part: as_form(part, field.type))
        value = str(column[row].as_py())[:60]
        said = f"{value} of type {column.type} is no {type_text(field.type)} ({error})"
        raise _refused(row, field.name, said) from None
    _check(found, field, field.name)
    return found


def _fits(given: pa.DataType, wanted: pa.DataType, *, nullable: bool) -> bool:
    if is_.is_null(given):
        return nullable
    found = normal(filled(given, wanted))
    if found is None:
        return False
    found, wanted = without_not_null(found), without_not_null(wanted)
    return found == wanted or widens(found, wanted)


# ---- what is refused


def _refused(row: int, path: str, what: str) -> BadRow:
    """`path`: the names that lead to the value."""
    return BadRow.of(row, f", column {path!r}: {what}")


def _check(values: pa.Array, field: pa.Field, path: str, hidden: pa.Array | None = None) -> None:
    """Raises `BadRow` for the first value that a queue does not take. `hidden` is where nothing is seen of `values`,
    because the struct around them is null.
    """
    if not field.nullable and values.null_count:
        null = values.is_null() if hidden is None else pc.and_not(values.is_null(), hidden)
        index = pc.index(null, True).as_py()
        if index >= 0:
            raise _refused(index, path, "null, where the queue's schema says NOT NULL")
    kind = values.type
    if is_.is_string(kind):
        index = first_not_utf8(values)
        if index is not None:
            raise _refused(index, path, "a STRING that is not UTF-8: encode it, or make the column BINARY")
    elif is_.is_date(kind):
        _check_range(values.view(pa.int32()), _FIRST_DAY, _DAYS_END, "DATE", path)
    elif is_.is_timestamp(kind):
        _check_range(values.view(pa.int64()), _FIRST_DAY * _DAY_US, _DAYS_END * _DAY_US, "TIMESTAMP", path)
    elif is_.is_decimal(kind):
        _check_digits(values, path)
    elif is_.is_struct(kind):
        above = values.is_null() if hidden is None else pc.or_(values.is_null(), hidden)
        for inner, child in zip(kind, values.flatten(), strict=True):  # flattened: null where the struct is
            _check(child, inner, f"{path}.{inner.name}", above)
    elif is_.is_map(kind):
        _check_map(values, path)
    elif is_.is_list(kind):
        _check_inside(_parents(values), values.flatten(), kind.value_field, f"{path}.element")


def _check_range(numbers: pa.Array, first: int, end: int, what: str, path: str) -> None:
    bounds = pc.min_max(numbers)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < first or most >= end):
        outside = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))
        raise _refused(pc.index(outside, True).as_py(), path, f"a {what} outside of the years 1 to 9999")


def _check_digits(values: pa.Array, path: str) -> None:
    """Arrow lets a decimal have more digits than its type says."""
    end = Decimal(10 ** (values.type.precision - values.type.scale))
    bounds = pc.min_max(values)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least <= -end or most >= end):
        index = next(i for i, value in enumerate(values.to_pylist()) if value is not None and abs(value) >= end)
        raise _refused(index, path, f"{values[index].as_py()} has more digits than {type_text(values.type)}")


def _check_map(values: pa.Array, path: str) -> None:
    kind = values.type
    entries = entries_of(values)
    parents = _parents(entries)
    flat = entries.flatten()
    keys = flat.field(0)
    if keys.null_count:
        index = pc.index(keys.is_null(), True).as_py()
        raise _refused(parents[index].as_py(), f"{path}.key", "a key of a map that is null")
    _check_inside(parents, keys, pa.field("key", kind.key_type), f"{path}.key")
    _check_inside(parents, flat.field(1), pa.field("value", kind.item_type), f"{path}.value")
    repeated = _first_repeated(parents, keys)
    if repeated is not None:
        said = f"the key {keys[repeated].as_py()!r} twice in one map"
        raise _refused(parents[repeated].as_py(), f"{path}.key", said)


def _check_inside(parents: pa.Array, values: pa.Array, field: pa.Field, path: str) -> None:
    """`_check` for what lies in lists: `parents` are the indices of the lists."""
    try:
        _check(values, field, path)
    except BadRow as bad:
        raise bad.moved(parents[bad.row].as_py()) from None


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


# ---- reading


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with columns of an earlier version as one with the columns of `schema`, of which none is narrower."""
    conversion = Conversion.to_reader(batch.schema, schema)
    return batch if conversion is None else conversion(batch)


def _loaded(column: pa.Array, field: pa.Field) -> pa.Array:
    """A slice's column as `field` of a reader."""
    if column.type == field.type:
        return column
    if is_.is_nested(field.type):
        return as_form(column, field.type)  # no nested column is widened: less is NOT NULL in the reader's type
    try:
        return _cast(column, field.type)
    except pa.ArrowInvalid:
        row = first_bad(column, lambda part: _cast(part, field.type))
        said = (
            f"{column[row].as_py()} does not fit {type_text(field.type)}, the type that this query loaded; the column "
            f"is {type_text(column.type)} by now: load again (stop the query and start it, or name the column's new "
            "type in .schema())"
        )
        raise _refused(row, field.name, said) from None


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as `kind`. Raises `pa.ArrowInvalid` if one of them does not fit."""
    found = column.cast(kind)
    if is_.is_float32(kind):  # Arrow rounds without a word
        back = found.cast(column.type)
        same = pc.or_(pc.equal(column, back), pc.and_(pc.is_nan(column), pc.is_nan(back)))
        if not pc.all(same, min_count=0).as_py():  # without the nulls
            raise pa.ArrowInvalid("rounded")
    return found
