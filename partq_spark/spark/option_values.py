"""Options as the user wrote them, found by lower-cased name and read as one kind of value each. No pyspark.

Which options there are, and what they mean together, is decided in `options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from partq_spark.base.errors import Invalid

MOST = (1 << 63) - 1  # what Spark and the log can count
WHOLE = re.compile(r"[0-9]{1,19}")

_DURATION = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,19})\s*([kmgt]?)b?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}

# What may be a credential: of an option that does not exist nobody knows what it would hold.
_SECRET_NAME = re.compile(r"key|secret|passw|token|credential|connection|account|sas|sig|auth", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"@|[?&;]|key=|secret|passw|token|signature", re.IGNORECASE)


USE_A_VIEW = (
    "Spark passes the options of a table of its catalog neither to readers nor to writers; use CREATE TEMPORARY VIEW "
    "name USING partq OPTIONS (queue '...', store '...') to read, .write or .writeStream to publish"
)


class GivenOptions:
    """The options as the user wrote them, found by lower-cased name."""

    def __init__(self, options: Mapping[str, str], allowed: tuple[str, ...], role: str) -> None:
        spelled = {name.lower(): name for name in allowed}
        if any(name.lower() == "provider" for name in options):  # the catalog's, at CREATE TABLE
            raise Invalid(f"CREATE TABLE ... USING partq makes no table that works: {USE_A_VIEW}")
        self.names: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in spelled:
                raise Invalid(
                    f"option {name!r} (value {_shown(name, value)}) is unknown to the partq {role}: allowed are "
                    f"{', '.join(allowed)}"
                )
            # An empty value is mostly a variable that is not set; a default in its place might be another store.
            if not str(value).strip():
                raise Invalid(f"option {spelled[name.lower()]!r} is empty: give a value, or leave it out")
            self.names[spelled[name.lower()]] = str(value).strip()

    def text(self, name: str) -> str | None:
        return self.names.get(name)

    def refuse(self, names: tuple[str, ...], why: str, do: str = "leave it out") -> None:
        for name in names:
            if name in self.names:
                shown = _shown(name, self.names[name])
                raise Invalid(f"option {name!r} (value {shown}) {why}: {do}")

    def bool(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise Invalid(f"option {name}={value!r} is not allowed: give true or false")
        return value.lower() == "true"

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not WHOLE.fullmatch(value) or not 1 <= int(value) <= MOST:
            raise Invalid(f"option {name}={value!r} is not allowed: give a whole number from 1 to {MOST}")
        return int(value)

    def size(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        match = _SIZE.fullmatch(value)
        size = int(match[1]) * _UNIT_BYTES[match[2].lower()] if match else 0
        if not 1 <= size <= MOST:
            raise Invalid(
                f"option {name}={value!r} is not allowed: give bytes from 1 to {MOST}, such as 1048576 or 64m"
            )
        return size

    def duration_s(self, name: str, *, least_s: float, most_s: float) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        match = _DURATION.fullmatch(value)
        seconds = float(match[1]) * _UNIT_S[match[2]] if match else -1.0
        if not least_s <= seconds <= most_s:
            raise Invalid(
                f"option {name}={value!r} is not allowed: give a time with its unit (ms, s, m, h), "
                f"from {least_s:g}s to {most_s:g}s, such as 500ms or 2m"
            )
        return seconds


def _shown(name: str, value: str) -> str:
    """The value for a message, unless it may be a secret."""
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(str(value)):
        return "not shown, it may hold a secret"
    return repr(value)
