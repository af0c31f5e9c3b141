"""Fields of CSV and values of JSON as Python values for a column's type, in the forms in which `partq browse --json`
prints them.

Numbers are JSON's; DECIMAL may be a text too, so that no digit is lost; NaN and infinity are `NaN`, `Infinity` and
`-Infinity`. BINARY is base64, DATE `2026-11-20`, TIMESTAMP `2026-11-20T08:30:00.250Z` with any offset, TIMESTAMP_NTZ
the same without one. In CSV an ARRAY, MAP or STRUCT is JSON. A MAP is an object whose names are its keys as CSV has
them, or a list of pairs. Which Python values a type takes is decided in `client.rows`. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.client.readers import ExactDecoder
from partq_spark.client.rows import RefusedValue, Take, take_of
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.types import TIMESTAMP, TIMESTAMP_NTZ

ENCODING: Final = "value_encoding"
_OF_HEADER: Final = frozenset(("key", "value", ENCODING))
_TEXT_OR_NULL: Final = (str, type(None))

Parse = Callable[[Any], Any]
"""Gives a Python value of a text, or of a value of JSON that is not null. Raises `RefusedValue`."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,18})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_MOST_DIGITS: Final = 400  # of a whole number that a float may be
_NO_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BOOLEANS: Final = {"true": True, "false": False}
_JSON: Final = ExactDecoder()


def field_of_csv(field: pa.Field) -> Take:
    """What a column takes of a field of CSV; one that is empty is null."""
    take = _take_of_text(field.type)

    def taken(text: str) -> Any:
        value = take(text) if text else None
        if value is not None or field.nullable:
            return value
        raise RefusedValue(
            f"empty, which is null in CSV, and the queue's schema says {type_text(field.type)} NOT NULL: give a value "
            "(an empty text in JSON lines or Parquet)"
        )

    return taken


def member_of_json(field: pa.Field) -> Take:
    """What a column takes of a value of JSON that is not null."""
    return _take_of_json(field.type)


def _take_of_text(kind: pa.DataType) -> Take:
    return _nested_text(kind) if is_.is_nested(kind) else _checked(_of_text(kind), kind)


def _take_of_json(kind: pa.DataType) -> Take:
    return take_of(kind, lambda scalar: _checked(_of_json(scalar), scalar), _take_of_text)


def _checked(parse: Parse, kind: pa.DataType) -> Take:
    take = take_of(kind)
    return take if parse is _itself else lambda value: take(parse(value))


def _of_text(kind: pa.DataType) -> Parse:
    """From a text that is not empty."""
    if is_.is_string(kind):
        return _itself
    if is_.is_boolean(kind):
        return _boolean
    if is_.is_integer(kind):
        return _whole(type_text(kind))
    return _float(type_text(kind)) if is_.is_floating(kind) else _of_string(kind)


def _of_json(kind: pa.DataType) -> Parse:
    """Numbers with a fraction are `Decimal`."""
    if is_.is_floating(kind):
        return _number(type_text(kind))
    if is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_string(kind):
        return _itself
    from_text = _of_string(kind)
    return lambda value: from_text(value) if isinstance(value, str) else value


def _wrong(value: object, text: str, wanted: str) -> RefusedValue:
    return RefusedValue(f"{str(value)[:60]!r} is no {text}: give {wanted}")


def _itself(value: Any) -> Any:
    return value


def _boolean(text: str) -> Any:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise _wrong(text, "BOOLEAN", "true or false")
    return found


def _whole(name: str) -> Parse:
    def parse(text: str) -> Any:
        if _WHOLE.fullmatch(text) is None:
            raise _wrong(text, name, "a whole number in digits")
        return int(text)

    return parse


def _float(name: str) -> Parse:
    def parse(text: str) -> Any:
        if text in _NO_NUMBERS:
            return _NO_NUMBERS[text]
        if _NUMBER.fullmatch(text) is None:
            raise _wrong(text, name, "a number such as 4.5 or 1e-3, or NaN, Infinity, -Infinity")
        if len(text) <= _MOST_DIGITS and text.lstrip("+-").isdigit():
            return int(text)  # of which no digit may be lost, as in JSON
        return _finite(text, name)

    return parse


def _finite(number: str | Decimal, name: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise _wrong(number, name, "a number that is not so large")
    return found


def _of_string(kind: pa.DataType) -> Parse:
    """Of types that JSON says as strings, too."""
    return _STRINGS[kind] if kind in _STRINGS else _decimal(type_text(kind))


def _decimal(name: str) -> Parse:
    def parse(text: str) -> Any:
        try:
            if _NUMBER.fullmatch(text) is not None:
                return Decimal(text)
        except InvalidOperation:  # an exponent beyond all numbers
            pass
        raise _wrong(text, name, "a number such as 12.50")

    return parse


def _binary(text: str) -> Any:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(text, "BINARY", f"bytes in base64 ({error})") from None


def _date(text: str) -> Any:
    if _DATE.fullmatch(text) is not None:
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise _wrong(text, "DATE", "one such as 2026-11-20")


def _time(text: str, *, name: str, wanted: str) -> Any:
    match = _TIME.fullmatch(text)
    if match is None or (match[4] is None) != (name == "TIMESTAMP_NTZ"):
        raise _wrong(text, name, wanted)
    fraction = (match[3] or "").ljust(6, "0")
    if fraction[6:].strip("0"):
        raise _wrong(text, name, "one without nanoseconds")
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}.{fraction[:6]}{(match[4] or '').upper()}")
    except ValueError:
        raise _wrong(text, name, wanted) from None


_STRINGS: Final[Mapping[pa.DataType, Parse]] = {
    pa.binary(): _binary,
    pa.date32(): _date,
    TIMESTAMP: partial(_time, name="TIMESTAMP", wanted="one with its offset, such as 2026-11-20T08:30:00Z"),
    TIMESTAMP_NTZ: partial(_time, name="TIMESTAMP_NTZ", wanted="one without an offset, such as 2026-11-20T08:30:00"),
}


def _number(name: str) -> Parse:
    def parse(value: Any) -> Any:
        if isinstance(value, str):
            if value not in _NO_NUMBERS:
                raise _wrong(value, name, 'a number, or "NaN", "Infinity", "-Infinity"')
            return _NO_NUMBERS[value]
        return _finite(value, name) if isinstance(value, Decimal) else value

    return parse


def _nested_text(kind: pa.DataType) -> Take:
    take = _take_of_json(kind)

    def taken(text: str) -> Any:
        try:
            value = _JSON.decode(text)
        except (ValueError, RecursionError) as error:
            raise _wrong(text, type_text(kind), f"JSON ({error})") from None
        return None if value is None else take(value)

    return taken


# --- the parts of a message that JSON says in the same way everywhere -------------------------------------------------


def bytes_of(value: Any, encoding: Any, what: str) -> bytes:
    """A string, or any other JSON as compact text."""
    if encoding not in (None, "text", "base64"):
        raise RefusedValue(f"has value_encoding={encoding!r}: give base64, or leave it out")
    if isinstance(value, str):
        if encoding == "base64":
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError) as error:
                raise RefusedValue(
                    f"has a {what} that is no base64 ({error}), as its value_encoding says it is"
                ) from None
        return encoded(value, what)
    if encoding == "base64":
        raise RefusedValue(f"has {json_kind(value)} for its {what}, and value_encoding=base64: give a string")
    try:
        return _compact(value).encode()
    except (ValueError, RecursionError) as error:  # half a surrogate pair, a number that became infinite
        raise RefusedValue(f"has a {what} that cannot be written as JSON ({error})") from None


def _exact_float(text: bytes) -> float:
    """The float that says the same as a number as it is written; infinite where no float is so large. Raises
    `TypeError` if a float would lose digits, or their form.
    """
    found = float(text)
    if repr(found).encode() != text and not math.isinf(found):
        raise TypeError
    return found


# json.dumps would make one for every value.
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False, default=_exact_float
)


def _compact(value: Any) -> str:
    """What was read (`ExactDecoder(str.encode)`) as JSON without spaces, its numbers as they were written. Raises
    `ValueError` for what JSON has no words for.
    """
    try:
        return _ENCODER.encode(value)
    except TypeError:  # of one of these numbers
        pass
    match value:
        case bytes():
            return value.decode()
        case dict():
            return f"{{{','.join(f'{_compact(name)}:{_compact(each)}' for name, each in value.items())}}}"
        case _:
            return f"[{','.join(map(_compact, value))}]"


def headers_of(headers: Any) -> list[dict[str, Any]] | None:
    """An object, or a list of key and value."""
    if headers is None:
        return None
    if isinstance(headers, dict):
        headers = [{"key": key, "value": value} for key, value in headers.items()]
    if not isinstance(headers, list):
        raise RefusedValue(f"has {json_kind(headers)} for its headers: give an object, or a list of key and value")
    found: list[dict[str, Any]] = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("key"), _TEXT_OR_NULL):
            raise RefusedValue('has a header that is none: write {"key": "trace", "value": "text"}')
        if not header.keys() <= _OF_HEADER:
            unknown = next(name for name in header if name not in _OF_HEADER)
            raise RefusedValue(f"has a header with {unknown!r}: only key, value and value_encoding belong there")
        key, value = header.get("key"), header.get("value")
        if key is not None:
            encoded(key, "header's key")
        data = None if value is None else bytes_of(value, header.get(ENCODING), "header's value")
        found.append({"key": key, "value": data})
    return found


def encoded(text: str, what: str) -> bytes:
    """In UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedValue(f"has half of a surrogate pair in its {what}, which is no text: give both halves") from None


_KINDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", str: "a string"}


def json_kind(value: object) -> str:
    """What it is called in JSON."""
    return _KINDS.get(type(value), "a number or boolean")
