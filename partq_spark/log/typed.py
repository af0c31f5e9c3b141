"""Whether values that came out of JSON are what they have to be: numbers, times, texts and lists of them. Pure.

A right checksum says that the bytes are those that were written, not that whoever wrote them knew the format. Every
function returns the value itself and raises `ValueError` for another one; who reads a document says which one it was.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any, Final, NoReturn

MOST: Final = (1 << 63) - 1
"""Numbers are those of 64 bits, as everywhere behind: offsets, epochs, times in microseconds."""

MALFORMED: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What taking a document apart raises that has another shape."""


def refuse(value: object, wanted: str) -> NoReturn:
    """Raise, with the beginning of the value."""
    shown = repr(value)
    raise ValueError(f"{shown[:60] + '…' if len(shown) > 60 else shown} is not {wanted}")


def whole(value: Any) -> int:
    """A number from 0 up."""
    if type(value) is not int or not 0 <= value <= MOST:
        refuse(value, "a number from 0 up")
    return value


def whole_or_none(value: Any) -> int | None:
    """The same, or nothing."""
    return None if value is None else whole(value)


def wholes(values: Any) -> tuple[int, ...]:
    """A list of them."""
    if type(values) is not list:
        refuse(values, "a list of numbers")
    check_wholes(values)
    return tuple(values)


def check_wholes(values: Collection[Any]) -> None:
    """The same for any collection; some 40 ns for each."""
    array("q", values)  # raises for what is no number, or needs more than 64 bits
    if values and (min(values) < 0 or bool in set(map(type, values))):
        refuse(values, "a list of numbers from 0 up")


def seconds(value: Any) -> float:
    """A time in seconds."""
    if (type(value) is not float and type(value) is not int) or not 0 <= value <= MOST:
        refuse(value, "a time in seconds")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        refuse(value, "true or false")
    return value


def text(value: Any) -> str:
    """A text."""
    if type(value) is not str:
        refuse(value, "a text")
    return value


def text_or_none(value: Any) -> str | None:
    """A text, or nothing."""
    return None if value is None else text(value)


def texts(values: Any) -> tuple[str, ...]:
    """A list of them."""
    if type(values) is not list or (values and set(map(type, values)) != {str}):
        refuse(values, "a list of texts")
    return tuple(values)
