"""A mapping of Python values as a row of a typed queue: every value is checked against its column's type when it is
sent, so that no publish fails for one row among many.

Values are taken as they are. A Python float is a FLOAT if rounding leaves it finite, an int is a FLOAT, DOUBLE or
DECIMAL if that has exactly its value; nothing else is converted. Scalars and arrays of numpy count as what they hold.
Pure, but for what a queue's columns are, no store is known here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.errors import BadRow
from partq_spark.log.model import MAX_KEY_BYTES, key_too_long
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.conform import map_key
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.versions import schema_of
from partq_spark.query.columns import METADATA

Take = Callable[[Any], Any]
"""Gives a value as Arrow takes it for one type, null never among them. Raises `RefusedValue`."""

TakeOf = Callable[[pa.DataType], Take]

_MISSING: Final = object()
_FLOAT: Final = struct.Struct("=f")


class RefusedValue(Exception):
    """A value that its column does not take. `path` leads to it, from the outside in; `said` ends the sentence."""

    def __init__(self, said: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(said)
        self.said = said
        self.path = path

    def inside(self, name: str) -> RefusedValue:
        """The same, seen from what the value is a part of."""
        return RefusedValue(self.said, (name, *self.path))

    def __str__(self) -> str:
        return f"column {'.'.join(self.path)!r}: {self.said}" if self.path else self.said

    def of_row(self, row: int) -> BadRow:
        """The same of the row of this number."""
        return BadRow.of(row, f", {self}" if self.path else f" {self}")


class RowTaker:
    """Takes rows for one version of a queue's columns. Made once for many rows. `how` a value of a column is taken that
    is not null: by default as it is.
    """

    def __init__(self, columns: Columns, how: Callable[[pa.Field], Take] = lambda field: take_of(field.type)) -> None:
        self.columns = columns
        self.schema = schema_of(columns)
        self._take = _Fields(self.schema, "column", how)
        self._key = None if columns.key is None else self.schema.names.index(columns.key)

    def take(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the columns, in their order. Raises `RefusedValue`."""
        if METADATA in row:  # what a reader gives beside the columns
            row = {name: value for name, value in row.items() if name != METADATA}
        values: tuple[Any, ...] = self._take(row)
        if self._key is not None:
            self._check_key(values[self._key])
        return values

    def _check_key(self, key: Any) -> None:
        name = (self.columns.key or "",)
        if isinstance(key, bytes):
            try:
                key.decode()
            except UnicodeDecodeError:
                raise RefusedValue("a key of bytes is UTF-8: encode it, for example with hex()", name) from None
        size = len(key) if isinstance(key, bytes) else len(key.encode()) if isinstance(key, str) else 0
        if size > MAX_KEY_BYTES:
            raise RefusedValue(key_too_long(f"{key!r:.42}…", size), name)


def batch_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Rows whose values were taken. What they have behind these columns is left out."""
    columns = zip(zip(*rows, strict=True), schema, strict=False)
    return pa.RecordBatch.from_arrays([pa.array(values, field.type) for values, field in columns], schema=schema)


class _Fields:
    """The fields of a mapping in the order of a type's, by their exact names, else in another case."""

    def __init__(self, fields: Sequence[pa.Field], what: str, how: Callable[[pa.Field], Take]) -> None:
        self._what = what
        self._takers = [(field.name, how(field), field) for field in fields]
        self._lower = {field.name.lower(): field.name for field in fields}

    def __call__(self, row: Mapping[Any, Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        seen = 0
        for name, _, _ in self._takers:
            value = row.get(name, _MISSING)
            seen += value is not _MISSING
            found.append(value)
        if seen < len(row):
            self._find_others(row, found)
        for index, (name, take, field) in enumerate(self._takers):
            value = found[index]
            if value is not None and value is not _MISSING:
                try:
                    found[index] = take(value)
                except RefusedValue as error:
                    raise error.inside(name) from None
            elif field.nullable:
                found[index] = None
            else:
                lack = "null" if value is None else "missing"
                raise RefusedValue(f"{lack}, where the queue's schema says {type_text(field.type)} NOT NULL", (name,))
        return tuple(found)

    def _find_others(self, row: Mapping[Any, Any], found: list[Any]) -> None:
        """Put values at their places whose names differ in case."""
        places = {name: index for index, (name, _, _) in enumerate(self._takers)}
        for name, value in row.items():
            if name in places:
                continue
            known = self._lower.get(name.lower()) if isinstance(name, str) else None
            if known is None:
                names = ", ".join(places)
                raise RefusedValue(f"there is no such {self._what}, but {names:.200}: leave it out", (str(name),))
            if found[places[known]] is not _MISSING:
                raise RefusedValue("given twice, in letters of another case: give it once", (known,))
            found[places[known]] = value


# --- values of one type -----------------------------------------------------------------------------------------------


def take_of(kind: pa.DataType, scalar: TakeOf | None = None, name: TakeOf | None = None) -> Take:
    """For one type, in the normal form. How a `scalar` is taken that is not nested, and the `name` of a member of what
    becomes a MAP: by default as it is.
    """
    if not is_.is_nested(kind):
        return scalar(kind) if scalar is not None else _decimal(kind) if is_.is_decimal(kind) else _SIMPLE[kind]
    inner = partial(take_of, scalar=scalar, name=name)
    if is_.is_struct(kind):
        return _struct(kind, inner)
    return _map(kind, inner, name or inner) if is_.is_map(kind) else _list(kind, inner)


def _wrong(value: Any, text: str, wanted: str) -> RefusedValue:
    return RefusedValue(f"{_shown(value)} ({type(value).__name__}) is no {text}: give {wanted}")


def _shown(value: Any) -> str:
    try:
        return f"{value!s:.60}" if isinstance(value, Decimal) else f"{value!r:.60}"
    except ValueError:  # an int of thousands of digits
        return "a number that is too long to show"
    except Exception:  # noqa: BLE001 - of a stranger's class
        return "a value that cannot be shown"


def _plain(value: Any) -> Any:
    """What a scalar or an array of numpy holds; anything else is itself."""
    to_list = getattr(value, "tolist", None)
    if not callable(to_list):
        return value
    if _numpy_kind(value) not in ("M", "m"):  # of times it makes a number, where Python's have no nanoseconds
        return to_list()
    return list(value) if getattr(value, "shape", ()) else value


def _numpy_kind(value: Any) -> str | None:
    return getattr(getattr(value, "dtype", None), "kind", None)


def _whole(bits: int, text: str) -> Take:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def take(value: Any) -> Any:
        if type(value) is not int:
            value = _plain(value)
            if not isinstance(value, int) or isinstance(value, bool):
                raise _wrong(value, text, f"an int from {least} to {most}")
        if not least <= value <= most:
            raise _wrong(value, text, f"an int from {least} to {most}")
        return int(value)

    return take


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        value = _plain(value)
        if not isinstance(value, bool):
            raise _wrong(value, "BOOLEAN", "True or False")
    return value


def _float(text: str, rounded: Callable[[float], float]) -> Take:
    def take(value: Any) -> Any:
        if type(value) is not float:
            value = _plain(value)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise _wrong(value, text, "a float")
        try:
            found = rounded(float(value))
        except OverflowError:
            raise _wrong(value, text, "a number that is not so large") from None
        if isinstance(value, int) and found != value:
            raise _wrong(value, text, "a float, or an int of which no digit is lost")
        return found

    return take


def _rounded(value: float) -> float:
    """The nearest FLOAT. Raises `OverflowError`."""
    return float(_FLOAT.unpack(_FLOAT.pack(value))[0])


def _decimal(kind: pa.DataType) -> Take:
    exactly = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-kind.scale)

    def take(value: Any) -> Any:
        value = _plain(value) if _numpy_kind(value) else value
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            raise _wrong(value, type_text(kind), "a decimal.Decimal or an int")
        try:
            if isinstance(value, int) or value.is_finite():
                return Decimal(value).quantize(unit, context=exactly)
            raise _wrong(value, type_text(kind), "a number")
        except (Inexact, InvalidOperation):
            digits = f"at most {kind.precision - kind.scale} digits before the point and {kind.scale} behind it"
            raise _wrong(value, type_text(kind), f"a number with {digits}") from None

    return take


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise _wrong(value, "STRING", "a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(value, "UTF-8", "text without halves of surrogate pairs, or make the column BINARY") from None
    return str.__str__(value)  # members of enums, too, are the text that they are


def _binary(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        with suppress(ValueError):  # a memoryview that was released
            return bytes(value)
    raise _wrong(value, "BINARY", "bytes")


def _numpy_time(value: Any, unit: Literal["D", "us"], text: str) -> Any:
    """A datetime64 of numpy of which nothing is lost."""
    exact = value.astype(f"datetime64[{unit}]")
    if not 1 <= value.astype("datetime64[Y]").astype(int) + 1970 <= 9999 or exact != value:  # the least is no time
        raise _wrong(value, text, f"one in the years 1 to 9999, without {'a time' if unit == 'D' else 'nanoseconds'}")
    return exact.tolist()


def _date(value: Any) -> Any:
    if _numpy_kind(value) == "M":
        return _numpy_time(value, "D", "DATE")
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _wrong(value, "DATE", "a datetime.date")
    return value


def _timestamp(value: Any) -> Any:
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise _wrong(value, "TIMESTAMP", "a datetime with a time zone, for example tzinfo=datetime.UTC")
    try:
        return _to_the_microsecond(value, "TIMESTAMP").astimezone(UTC)
    except OverflowError:
        raise _wrong(value, "TIMESTAMP", "one in the years 1 to 9999 of UTC") from None


def _timestamp_ntz(value: Any) -> Any:
    if _numpy_kind(value) == "M":
        return _numpy_time(value, "us", "TIMESTAMP_NTZ")
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise _wrong(value, "TIMESTAMP_NTZ", "a datetime without a time zone")
    return _to_the_microsecond(value, "TIMESTAMP_NTZ")


def _to_the_microsecond(value: datetime, text: str) -> datetime:
    """A `pandas.Timestamp` has nanoseconds, and one of them is no time."""
    if getattr(value, "nanosecond", 0) > 0:
        raise _wrong(value, text, "one without nanoseconds")
    try:
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    except ValueError:
        raise _wrong(value, text, "None where there is no time") from None


_SIMPLE: Final[Mapping[pa.DataType, Take]] = {
    pa.bool_(): _boolean,
    pa.int8(): _whole(8, "TINYINT"),
    pa.int16(): _whole(16, "SMALLINT"),
    pa.int32(): _whole(32, "INT"),
    pa.int64(): _whole(64, "BIGINT"),
    pa.float32(): _float("FLOAT", _rounded),
    pa.float64(): _float("DOUBLE", float),
    pa.string(): _string,
    pa.binary(): _binary,
    pa.date32(): _date,
    pa.timestamp("us", tz="UTC"): _timestamp,
    pa.timestamp("us"): _timestamp_ntz,
}


# --- what is nested ---------------------------------------------------------------------------------------------------


def _struct(kind: pa.DataType, inner: TakeOf) -> Take:
    fields, names = _Fields(list(kind), "field", lambda field: inner(field.type)), [field.name for field in kind]

    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value, type_text(kind), "a mapping of its fields")
        return dict(zip(names, fields(value), strict=True))

    return take


def _list(kind: pa.DataType, inner: TakeOf) -> Take:
    element = inner(kind.value_type)

    def take(value: Any) -> Any:
        value = _plain(value)
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
            raise _wrong(value, type_text(kind), "a list")
        try:
            return [None if each is None else element(each) for each in value]
        except RefusedValue as error:
            raise error.inside("element") from None

    return take


def _map(kind: pa.DataType, inner: TakeOf, name: TakeOf) -> Take:
    named, key, item = name(kind.key_type), inner(kind.key_type), inner(kind.item_type)

    def taken(value: Any, how: Take, name: str) -> Any:
        try:
            return None if value is None else how(value)
        except RefusedValue as error:
            raise error.inside(name) from None

    def take(value: Any) -> Any:
        given = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(given, Sequence) or not all(
            isinstance(each, tuple | list) and len(each) == 2 for each in given
        ):
            raise _wrong(value, type_text(kind), "a dict, or a list of pairs")
        how = named if isinstance(value, Mapping) else key
        pairs = [(taken(first, how, "key"), taken(second, item, "value")) for first, second in given]
        if any(first is None for first, _ in pairs):
            raise RefusedValue("a key of a map that is null", ("key",))
        if len(pairs) > 1:
            seen = {map_key(first) for first, _ in pairs}
            if len(seen) < len(pairs):
                raise RefusedValue(f"{_shown(value)} has a key twice: give each once", ("key",))
        return pairs

    return take
