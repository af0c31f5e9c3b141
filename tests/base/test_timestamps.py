"""RFC 3339 timestamps, as the command line and Spark's options take and write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.base.timestamps import EXAMPLE, format_rfc3339, parse_rfc3339

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        (" 1970-01-01T00:00:00Z ", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.9Z", -100_000),
        ("2026-11-20T08:30:00.25Z", 1_795_163_400_250_000),
        ("2026-11-20T08:30:00.250000Z", 1_795_163_400_250_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.0000011Z", 2),
        ("1970-01-01T00:00:00.000001000Z", 1),
        ("1970-01-01T00:00:00.999999999Z", 1_000_000),
        ("9999-12-31T23:59:59-23:59", 253_402_300_799_000_000 + 86_340_000_000),
    ],
)
def test_a_timestamp_is_read_to_the_microsecond(text: str, time_us: int) -> None:
    assert parse_rfc3339(text) == time_us


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-20",
        "2026-11-20T08:30:00",
        "2026-11-20 08:30:00Z",
        "2026-11-20T08:30Z",
        "2026-11-20T08:30:00.Z",
        "2026-11-20T08:30:00,5Z",
        "2026-11-20T08:30:00.1234567890Z",
        "2026-11-20T08:30:00+0100",
        "2026-11-20T08:30:00+24:00",
        "2026-11-20T08:30:00+01:60",
        "2026-11-20T08:30:60Z",
        "2026-11-20T24:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-11-20T08:30:00Z",
        "1795163400",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_rfc3339(text)
    assert EXAMPLE in str(refused.value)
    assert ascii(text) in str(refused.value)


def test_a_long_text_is_not_repeated_whole() -> None:
    with pytest.raises(Invalid) as refused:
        parse_rfc3339("x" * 10_000)
    assert len(str(refused.value)) < 300


@given(
    st.datetimes(
        min_value=datetime(1, 1, 3),  # noqa: DTZ001 - hypothesis adds the time zone
        max_value=datetime(9999, 12, 29),  # noqa: DTZ001
        timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    )
)
def test_python_agrees(moment: datetime) -> None:
    time_us = (moment - EPOCH) // timedelta(microseconds=1)
    assert parse_rfc3339(moment.isoformat()) == time_us
    assert parse_rfc3339(format_rfc3339(time_us)) == time_us


def test_written_timestamps_sort_as_times_do() -> None:
    times = [parse_rfc3339("0900-01-01T00:00:00Z"), -1, 0, 1, 10**15, 10**15 + 999_999]
    texts = [format_rfc3339(time_us) for time_us in times]
    assert texts == sorted(texts)
    assert texts[1:4] == ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z"]
