"""JSON there and back, of which nothing is lost. Values of a row of a typed queue are written in the forms that
`partq publish` reads (`files.parsing`). What is read keeps all digits of its numbers, and a name that an object has
twice is refused, where Python's own decoder keeps the last value without a word. Pure, without Arrow.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from partq_spark.base.timestamps import format_rfc3339, unix_us

_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


# --- written ----------------------------------------------------------------------------------------------------------


def row_text(row: Mapping[str, Any]) -> str:
    """A row as one line of JSON."""
    return json.dumps(json_of(row), ensure_ascii=False)


def json_of(value: Any) -> Any:
    """A value as JSON says it, so that `partq publish` reads it as what it is: NaN and infinity as strings, DECIMAL in
    all its digits as a string, BINARY in base64, DATE and times in ISO 8601 (a TIMESTAMP in UTC), a MAP as an object
    whose names are the keys, or as a list of pairs where Python has one.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {_name(name): json_of(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(each) for each in value]
    return _scalar(value)


def _scalar(value: Any) -> float | str:
    """What JSON has no form for, but for finite numbers."""
    match value:
        case float():
            return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if value.tzinfo is not None:
            return format_rfc3339(unix_us(value))
        case datetime():
            return value.isoformat(timespec="microseconds")
        case _:
            return str(value.isoformat())  # a date


def _name(key: Any) -> str:
    """A key of a MAP as the name of a member."""
    found = json_of(key)
    return found if isinstance(found, str) else json.dumps(found)


# --- read -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A number of which a float would lose digits, or their form, as it is written."""

    text: str


def number(text: str) -> float | Number:
    """A float that says the same, else the text; infinite where no float is so large."""
    found = float(text)
    return found if repr(found) == text or math.isinf(found) else Number(text)


def compact(value: Any) -> str:
    """JSON as text without spaces, its numbers as they were written. Raises `ValueError` for what JSON has no words
    for.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except TypeError:  # of one of these
        pass
    match value:
        case Number():
            return value.text
        case dict():
            return f"{{{','.join(f'{compact(name)}:{compact(each)}' for name, each in value.items())}}}"
        case _:
            return f"[{','.join(map(compact, value))}]"


class ExactDecoder(json.JSONDecoder):
    """Numbers with a fraction become `Decimal`, or what `parse_float` makes of them. Raises `ValueError`, and
    `RecursionError` for what is nested too deep, as any decoder does.
    """

    def __init__(self, parse_float: Callable[[str], Any] | None = None) -> None:
        super().__init__(parse_float=parse_float or _exact, parse_constant=_no_constant, object_pairs_hook=_named_once)


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("a number has an exponent that is too large: give one in digits") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no name is there twice; else raises `ValueError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} is there twice in one object: keep one")
    return found
