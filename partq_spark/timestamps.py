"""Points in time as people write them (RFC 3339) and as the log keeps them (Unix time in microseconds). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from partq_spark.errors import Invalid

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_rfc3339(text: str) -> int:
    """Unix time in microseconds; digits beyond microseconds are cut. Raises `Invalid` for anything but RFC 3339."""
    match = _RFC3339.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        # datetime wants exactly what Python 3.11 reads: no lower-case letters, at most six digits
        fraction = (match[1] or "")[:7]
        zone = match[2].upper().replace("Z", "+00:00")
        moment = datetime.fromisoformat(
            text.strip()[:19].upper().replace(" ", "T") + fraction.ljust(7, "0") * bool(fraction) + zone
        )
    except ValueError:
        raise Invalid(
            f"{text!r} is no RFC 3339 time: write it as 2026-11-20T09:30:00Z or 2026-11-20T10:30:00+01:00"
        ) from None
    return (moment - _EPOCH) // timedelta(microseconds=1)


def format_rfc3339(time_us: int) -> str:
    """The moment in UTC with microseconds, such as `2026-11-20T09:30:00.000000Z`."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
