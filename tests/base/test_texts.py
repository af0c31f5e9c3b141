"""What texts look like to people: times, sizes, what may reach a terminal, and what gives way in a narrow table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.effects import EXAMPLE_TIME, format_rfc3339, parse_rfc3339
from partq_spark.base.errors import Invalid
from partq_spark.base.words import printable, printable_json, printable_lines, readable, size
from partq_spark.cli.tables import fitted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = st.text(st.characters())  # half surrogates included

# --- terminals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 客", "größe 客"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\r", "a\\nb\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_steers_a_terminal_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(TEXTS)
def test_nothing_that_is_not_printable_passes_and_json_says_the_same(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))
    shown = printable_json(json.dumps({text: text}, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == {text: text}


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("航班".encode(), "航班"),
        (b"a\nb\tc", r"a\nb\tc"),
        (b"\xff\x00", "0xff00"),
        (b"x" * 500, "x" * 400 + "…"),
        (b"x" * 399 + "é".encode() * 9, "x" * 399 + "…"),
    ],
)
def test_the_bytes_of_a_message_are_text_where_they_can_be(data: bytes, shown: str) -> None:
    assert readable(data) == shown


def test_sizes_are_short_and_text_gives_way_where_a_table_is_too_wide_the_longest_first() -> None:
    shown = [size(each) for each in (0, 999, 1000, 1234, 999_600, 138_000_000, 5 * 10**12)]
    assert shown == ["0 B", "999 B", "1.0 kB", "1.2 kB", "1.0 MB", "138 MB", "5.0 TB"]
    assert fitted([5, 100, 30], 80) == [5, 45, 30]
    assert fitted([5, 100, 90], 60) == [5, 27, 28]
    assert fitted([100, 100], 10) == [12, 12]
    assert fitted([5, 7], 80) == [5, 7]
    assert fitted([], 80) == []


# --- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.9Z", -100_000),
        ("2026-11-20T08:30:00.25Z", 1_795_163_400_250_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.0000011Z", 2),
        ("1970-01-01T00:00:00.999999999Z", 1_000_000),
        ("9999-12-31T23:59:59-23:59", 253_402_300_799_000_000 + 86_340_000_000),
    ],
)
def test_a_timestamp_is_read_to_the_microsecond(text: str, time_us: int) -> None:
    assert parse_rfc3339(text) == time_us


REFUSED = (
    *("", "now", "2026-11-20", "2026-11-20T08:30:00", "2026-11-20 08:30:00Z", "2026-11-20T08:30Z", "1795163400"),
    *("2026-11-20T08:30:00.Z", "2026-11-20T08:30:00,5Z", "2026-11-20T08:30:00.1234567890Z", "2026-11-20T08:30:00+0100"),
    *("2026-11-20T08:30:00+24:00", "2026-11-20T08:30:00+01:60", "2026-11-20T08:30:60Z", "2026-11-20T24:00:00Z"),
    *("2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z", "٢٠٢٦-11-20T08:30:00Z"),
)


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_rfc3339(text)
    assert EXAMPLE_TIME in str(refused.value)
    assert ascii(text) in str(refused.value)
    with pytest.raises(Invalid) as refused:
        parse_rfc3339(text + "x" * 10_000)
    assert len(str(refused.value)) < 300, "a long text is not repeated whole"


MOMENTS = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001 - hypothesis adds the time zone
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@given(MOMENTS, MOMENTS)
def test_python_agrees_and_written_timestamps_sort_as_times_do(moment: datetime, other: datetime) -> None:
    time_us, other_us = ((each - EPOCH) // timedelta(microseconds=1) for each in (moment, other))
    assert parse_rfc3339(moment.isoformat()) == time_us
    assert parse_rfc3339(format_rfc3339(time_us)) == time_us
    assert (format_rfc3339(time_us) < format_rfc3339(other_us)) == (time_us < other_us)
