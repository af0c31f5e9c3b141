"""How large the values of a row are, in bytes that count for the limit of one message, and in Python objects. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types as is_


def size_of(kind: pa.DataType) -> Callable[[Any], int]:
    """The bytes of a value of this type: those that `log.schema.sizes` finds."""
    if is_.is_string(kind):
        return lambda value: 0 if value is None else len(value.encode())
    if is_.is_binary(kind):
        return lambda value: 0 if value is None else len(value)
    if is_.is_struct(kind):
        inner = [(field.name, size_of(field.type)) for field in kind]
        return lambda value: sum(size(None if value is None else value[name]) for name, size in inner)
    if is_.is_map(kind):
        key, item = size_of(kind.key_type), size_of(kind.item_type)
        return lambda value: sum(key(name) + item(each) for name, each in value or ())
    if is_.is_list(kind):
        element = size_of(kind.value_type)
        return lambda value: sum(map(element, value or ()))
    width = kind.bit_width // 8
    return lambda _: width


def objects_of(value: Any) -> int:
    """How many Python objects it is, about."""
    if isinstance(value, dict):
        return 1 + sum(map(objects_of, value.values()))
    return 1 + sum(map(objects_of, value)) if isinstance(value, list | tuple) else 1
