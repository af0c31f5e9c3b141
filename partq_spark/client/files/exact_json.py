"""JSON as Python values of which none is lost: numbers with a fraction are `Decimal`, and a name that an object has
twice is refused, where Python's own decoder keeps the last value without a word. Pure; what values mean is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number of which a float would lose digits, or their form, as it is written."""

    text: str


def number(text: str) -> float | Number:
    """A float that says the same, else the text; infinite where no float is so large."""
    found = float(text)
    return found if repr(found) == text or math.isinf(found) else Number(text)


def compact(value: Any) -> str:
    """JSON as text without spaces, its numbers as they were written, but for `Decimal`, which keeps all digits. Raises
    `ValueError` for what JSON has no words for.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except TypeError:  # of one of these
        pass
    match value:
        case Number():
            return value.text
        case Decimal():
            return str(value)
        case dict():
            return f"{{{','.join(f'{compact(name)}:{compact(each)}' for name, each in value.items())}}}"
        case _:
            return f"[{','.join(map(compact, value))}]"


class ExactDecoder(json.JSONDecoder):
    """Raises `ValueError`, and `RecursionError` for what is nested too deep, as any decoder does."""

    def __init__(self, *, parse_constant: Callable[[str], Any] | None = None) -> None:
        super().__init__(parse_float=Decimal, parse_constant=parse_constant, object_pairs_hook=named_once)

    def decode(self, s: str, *more: Any) -> Any:
        try:
            return super().decode(s, *more)
        except InvalidOperation:
            raise ValueError("a number has an exponent that is too large: give one in digits") from None


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no name is there twice; else raises `ValueError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} is there twice in one object: keep one")
    return found
