"""What messages of typed queues hold: column `n` follows from the value and from its type when it was staged, so that a
reader of a row can tell whether it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from tests.world.facts import demand

COLUMNS: Final = "key STRING, value BINARY NOT NULL, n TINYINT"
"""Of a typed queue, as it begins."""

WIDTHS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 40}


def number_of(value: str, bits: int) -> int:
    """What column `n` of a message holds that was staged when it had so many bits."""
    span: int = 2**bits
    return crc32(value.encode()) * 2654435761 % span - span // 2


def text_of(value: Any) -> str:
    """The value of a message, or of the row that it is."""
    if not isinstance(value, Mapping):
        return bytes(value).decode()
    text = value["value"].decode()
    right = value.get("n") in [None, *(number_of(text, bits) for bits in WIDTHS.values())]
    demand(right, "another value than was published:", text, value.get("n"))
    return str(text)
