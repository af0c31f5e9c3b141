"""What Python values a typed queue's columns take, one by one: the checks of `send`, without a queue."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.client.messages import json_of
from partq_spark.client.outgoing import size_of
from partq_spark.client.parsing import field_of_csv, member_of_json
from partq_spark.client.readers import ExactDecoder
from partq_spark.client.rows import RefusedValue, RowTaker, take_of
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.forms import row_bytes
from partq_spark.log.schema.versions import columns_of
from tests.client.test_publisher import RELEASED
from tests.log.schema.shapes import batches, same, simple_types
from tests.support.properties import examples


class Color(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


def taker(ddl: str, key: str | None = None) -> RowTaker:
    return RowTaker(columns_of(parse_ddl(ddl), key))


def taken(kind: str, value: object) -> Any:
    """The value as it is kept in a column of this type."""
    rows = taker(f"a {kind}")
    (found,) = rows.take({"a": value})
    return pa.array([found], rows.schema.field("a").type)[0].as_py()


CET = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("BOOLEAN", np.True_, True),
        ("SMALLINT", np.int64(32767), 32767),
        ("INT", Number.ONE, 1),
        ("FLOAT", 0.1, 0.10000000149011612),
        ("DOUBLE", 2**53, 2.0**53),
        ("DECIMAL(5,2)", Decimal("1.5"), Decimal("1.50")),
        ("DECIMAL(5,2)", np.int8(7), Decimal("7.00")),
        ("STRING", Color.RED, "red"),
        ("BINARY", memoryview(b"a"), b"a"),
        ("TIMESTAMP", datetime(2020, 1, 1, tzinfo=CET), datetime(2019, 12, 31, 23, tzinfo=UTC)),
        ("TIMESTAMP", pd.Timestamp("2020-01-01T00:00:00.000001Z"), datetime(2020, 1, 1, microsecond=1, tzinfo=UTC)),
        ("ARRAY<INT>", (1, None), [1, None]),
        ("ARRAY<INT>", np.array([1, 2], dtype="int16"), [1, 2]),
        ("STRUCT<a: INT, b: STRING>", {"b": "x"}, {"a": None, "b": "x"}),
        ("STRUCT<a: INT>", OrderedDict(A=1), {"a": 1}),
        ("MAP<STRING, INT>", [("0.0", 1), ("-0.0", 2)], [("0.0", 1), ("-0.0", 2)]),
        ("DATE", np.datetime64("2020-01-31T00:00:00", "ns"), date(2020, 1, 31)),
        ("TIMESTAMP_NTZ", np.datetime64("2020-01-31"), datetime(2020, 1, 31)),  # noqa: DTZ001
        ("TIMESTAMP_NTZ", np.datetime64("2020-01-01T00:00:00.000001", "ns"), datetime(2020, 1, 1, microsecond=1)),  # noqa: DTZ001
        ("ARRAY<DATE>", np.array(["2020-01-31"], "datetime64[ns]"), [date(2020, 1, 31)]),
        ("MAP<DATE, MAP<INT, STRING>>", {date(2020, 1, 1): {1: "a"}}, [(date(2020, 1, 1), [(1, "a")])]),
    ],
)
def test_a_value_is_kept_as_it_is(kind: str, value: object, kept: object) -> None:
    found = taken(kind, value)
    assert same(found, kept)
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("BOOLEAN", 1, r"1 \(int\) is no BOOLEAN: give True or False"),
        ("TINYINT", 128, r"128 \(int\) is no TINYINT: give an int from -128 to 127"),
        ("INT", 7.0, r"7.0 \(float\) is no INT"),
        pytest.param("BIGINT", 10**5000, "a number that is too long to show", id="thousands of digits"),
        ("FLOAT", 1e39, r"1e\+39 \(float\) is no FLOAT: give a number that is not so large"),
        ("DOUBLE", 2**53 + 1, "of which no digit is lost"),
        ("DOUBLE", Decimal(1), "is no DOUBLE: give a float"),
        ("DECIMAL(5,2)", 1.5, r"1.5 \(float\) is no DECIMAL\(5,2\): give a decimal.Decimal or an int"),
        ("DECIMAL(5,2)", Decimal("1.234"), "give a number with at most 3 digits before the point and 2 behind it"),
        ("DECIMAL(5,2)", Decimal("NaN"), "give a number"),
        ("STRING", b"a", r"b'a' \(bytes\) is no STRING: give a str"),
        ("STRING", "\ud800", "is no UTF-8: give text without halves of surrogate pairs"),
        ("BINARY", "a", r"'a' \(str\) is no BINARY: give bytes"),
        ("BINARY", RELEASED, r"\(memoryview\) is no BINARY: give bytes"),
        ("DATE", datetime(2020, 1, 1), r"\(datetime\) is no DATE: give a datetime.date"),  # noqa: DTZ001
        ("TIMESTAMP", datetime(2020, 1, 1), "give a datetime with a time zone"),  # noqa: DTZ001
        ("TIMESTAMP", datetime(1, 1, 1, tzinfo=CET), "years 1 to 9999"),
        ("TIMESTAMP", pd.Timestamp(1, tz="UTC"), "give one without nanoseconds"),
        ("TIMESTAMP_NTZ", np.datetime64("NaT", "us"), "is no TIMESTAMP_NTZ: give one in the years 1 to 9999"),
        ("TIMESTAMP_NTZ", np.datetime64(1, "ns"), "is no TIMESTAMP_NTZ: give one .* without nanoseconds"),
        ("DATE", np.datetime64("2020-01-01T00:00:01"), "is no DATE: give one .* without a time"),
        ("MAP<DOUBLE, INT>", [(0.0, 1), (-0.0, 2)], "has a key twice"),
        ("MAP<ARRAY<STRUCT<a: FLOAT>>, INT>", [([{"a": 0.0}], 1), ([{"a": -0.0}], 2)], "has a key twice"),
        ("MAP<DOUBLE, INT>", [(math.nan, 1), (-math.nan, 2)], "has a key twice"),
        ("TIMESTAMP_NTZ", datetime(2020, 1, 1, tzinfo=UTC), "give a datetime without a time zone"),
        ("ARRAY<INT>", "ab", r"'ab' \(str\) is no ARRAY<INT>: give a list"),
        ("ARRAY<INT>", [1, "x"], r"column 'a.element': 'x' \(str\) is no INT"),
        ("STRUCT<b: INT>", 5, r"is no STRUCT<b: INT>: give a mapping of its fields"),
        ("STRUCT<b: INT>", {"c": 1}, "column 'a.c': there is no such field, but b: leave it out"),
        ("STRUCT<b: INT NOT NULL>", {}, "column 'a.b': missing, where the queue's schema says INT NOT NULL"),
        ("MAP<STRING, INT>", 5, r"is no MAP<STRING, INT>: give a dict, or a list of pairs"),
        ("MAP<STRING, INT>", {None: 1}, "column 'a.key': a key of a map that is null"),
        ("MAP<STRING, INT>", [("x", 1), ("x", 2)], "column 'a.key': .* has a key twice: give each once"),
        ("INT NOT NULL", None, "column 'a': null, where the queue's schema says INT NOT NULL"),
    ],
)
def test_a_value_that_is_none_of_its_type_is_refused(kind: str, value: object, said: str) -> None:
    with pytest.raises(RefusedValue, match=said):
        taken(kind, value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1, "colour": "red"}, "column 'colour': there is no such column, but id, Name, k: leave it out"),
        ({"Name": "x"}, "column 'id': missing, where the queue's schema says INT NOT NULL"),
        ({"id": 1, "ID": 2}, "column 'id': given twice, in letters of another case"),
        ({"id": 1, "_headers": []}, "column '_headers': there is no such column"),
        ({"id": 1, "k": "é".encode() * 128}, "column 'k': the key .* has 256 bytes in UTF-8, at most 255 are allowed"),
        ({"id": 1, "k": b"\xff"}, "column 'k': a key of bytes is UTF-8"),
    ],
)
def test_a_row_or_a_key_that_is_none_is_refused(row: dict[Any, Any], said: str) -> None:
    rows = taker("id INT NOT NULL, Name STRING, k BINARY", "k")
    with pytest.raises(RefusedValue, match=said):
        rows.take(row)
    assert rows.take({"NAME": "x", "iD": 5, "K": b"k", "_metadata": {"offset": 5}}) == (5, "x", b"k")


@examples(100)
@given(batches())
def test_any_row_is_taken_as_it_is_and_measured_as_the_log_does(batch: pa.RecordBatch) -> None:
    rows = RowTaker(columns_of(batch.schema))
    found = [rows.take(row) for row in batch.to_pylist()]
    columns = [pa.array([row[index] for row in found], field.type) for index, field in enumerate(batch.schema)]
    again = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    assert same(again.to_pylist(), batch.to_pylist())
    measured = [sum(size_of(kind)(value) for kind, value in zip(batch.schema.types, row, strict=True)) for row in found]
    assert measured == row_bytes(batch).to_pylist()


# --- one way in is as good as another ---------------------------------------------------------------------------------

TEXTS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,24})([.][0-9]{1,20})?([eE][+-]?[0-9]{1,7})?",
    fullmatch=True,
    alphabet=st.characters(codec="ascii"),
)
WORDS = (
    *["true", "TRUE", "NaN", "Infinity", "2026-02-30", "2026-02-28", "2026-11-20T08:30:00.1234560Z", "AP8=", "ü"],
    "2026-11-20 08:30:00",
    *["0001-01-01T00:00:00+01:00", "2026-11-20T08:30:00.1234567", "9007199254740993"],
    *("", "null"),
)


def kept(take: Any, given: Any) -> list[Any]:
    """What is kept of it; nothing: it is refused."""
    try:
        return [take(given)]
    except RefusedValue:
        return []


@examples(300)
@given(simple_types(), TEXTS | st.sampled_from(WORDS))
def test_csv_and_json_lines_take_the_same_and_lose_no_digit(kind: pa.DataType, text: str) -> None:
    field = pa.field("a", kind)
    csv, member = field_of_csv(field), member_of_json(field)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    of_csv = kept(csv, text) if text else kept(member, "")  # an empty field is null, and no empty text
    if text not in WORDS:
        of_number = kept(member, ExactDecoder().decode(text))
        assert not is_number or same(of_csv, of_number)
        if of_csv and pa.types.is_decimal(kind):
            assert of_csv == [Decimal(text)]
        if of_csv and pa.types.is_floating(kind) and text.lstrip("-").isdigit():
            assert of_csv == [int(text)]
    if not pa.types.is_integer(kind) and not pa.types.is_boolean(kind) and (text in WORDS[:-3] or not is_number):
        assert same(of_csv, kept(member, text))


@examples(100)
@given(batches())
def test_a_value_that_is_written_as_json_is_read_from_a_field_and_from_a_member(batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for value in map(take_of(field.type), (each for each in column.to_pylist() if each is not None)):
            said = json_of(value)
            text = said if isinstance(said, str) else json.dumps(said)
            again = ExactDecoder().decode(json.dumps(said))
            assert same(member_of_json(field)(again), value)
            assert text == "" or same(field_of_csv(field)(text), value)
