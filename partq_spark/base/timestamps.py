"""Points in time as people write them (RFC 3339) and as the log keeps them (Unix microseconds). Pure integers: no
floating point, no time zone but the one written down.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from partq_spark.base.errors import Invalid

EXAMPLE = "2026-11-20T08:30:00Z"

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_rfc3339(text: str) -> int:
    """The Unix time in microseconds of an RFC 3339 timestamp; raises `Invalid` with an example for anything else.

    Date, time and offset (`Z` or `+01:00`) must all be there. Digits beyond the microsecond round up, so that "at or
    after" and "before" mean to the microsecond what they say. Leap seconds (`:60`) are refused, as Unix time has none.
    """
    match = _RFC3339.fullmatch(text.strip())
    if match is None:
        raise _refused(text)
    fraction = (match[7] or "").ljust(9, "0")
    micros = -(-int(fraction) // 1000)
    try:
        year, month, day, hour, minute, second = (int(match[part]) for part in range(1, 7))
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise _refused(text, str(error)) from None
    offset_min = 0
    if match[9]:
        if int(match[10]) > 23 or int(match[11]) > 59:
            raise _refused(text, "the offset's hours end at 23 and its minutes at 59")
        offset_min = (int(match[10]) * 60 + int(match[11])) * (-1 if match[9] == "-" else 1)
    # Subtracted as numbers: year 1 or 9999 with an offset is no datetime, but a point in time all the same.
    return (local - EPOCH) // _MICROSECOND + micros - offset_min * 60_000_000


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
