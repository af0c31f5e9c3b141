"""Points in time as people write them (RFC 3339) and as the log keeps them (Unix microseconds). Pure integers: no
floating point, no time zone but the one written down.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from partq_spark.base.errors import Invalid

EXAMPLE = "2026-11-20T08:30:00Z"

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT(\d\d):\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-](\d\d):(\d\d))", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_rfc3339(text: str) -> int:
    """The Unix time in microseconds of an RFC 3339 timestamp; raises `Invalid` with an example for anything else.

    Date, time and offset (`Z` or `+01:00`) must all be there. Digits beyond the microsecond round up, so that "at or
    after" and "before" mean to the microsecond what they say. Leap seconds (`:60`) are refused, as Unix time has none.
    """
    match = _RFC3339.fullmatch(text.strip().upper())
    if match is None:
        raise _refused(text)
    local, hour, fraction, zone, offset_hours, offset_minutes = match.groups("00")
    if max(hour, offset_hours) > "23" or offset_minutes > "59":  # which Python takes, or some of it
        raise _refused(text, "hours end at 23, and the minutes of an offset at 59")
    try:
        time = datetime.fromisoformat(local + zone)
    except ValueError as error:
        raise _refused(text, str(error)) from None
    micros = -(-int(fraction.ljust(9, "0")) // 1000)
    return (time - EPOCH) // _MICROSECOND + micros


def format_rfc3339(time_us: int) -> str:
    """`time_us` (Unix, microseconds) in UTC with all six digits, so that texts sort as times do."""
    return (EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def as_datetime(time_us: int) -> datetime:
    """A Unix time in microseconds as a `datetime` in UTC."""
    return EPOCH + timedelta(microseconds=time_us)


def unix_us(time: datetime) -> int:
    """The Unix time in microseconds of a `datetime`. Raises `Invalid` for one without a time zone."""
    if time.tzinfo is None:
        raise Invalid(f"{time!r} has no time zone: give one, for example tzinfo=datetime.UTC")
    return (time - EPOCH) // _MICROSECOND


def _refused(text: str, why: str = "") -> Invalid:
    shown = ascii(text if len(text) <= 60 else text[:60] + "…")
    return Invalid(
        f"{shown} is not an RFC 3339 timestamp{f' ({why})' if why else ''}: give date, time and offset, such as "
        f"{EXAMPLE} or 2026-11-20T09:30:00.250+01:00"
    )
