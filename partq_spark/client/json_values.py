"""Values of a row of a typed queue as JSON, in the forms that `partq publish` reads (`files.parsing`). Pure, without
Arrow.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from partq_spark.base.timestamps import format_rfc3339, unix_us

_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


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
