"""Arrow columns as JSON text: every type, against Python's own reading of what was written."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.client.files import json_text


@given(
    st.dictionaries(st.text(max_size=5), st.lists(st.none() | st.text(max_size=5), min_size=3, max_size=3), min_size=1)
)
def test_any_row_is_one_json_object_with_its_columns_in_order(columns: dict[str, list[str | None]]) -> None:
    texts = json_text.objects({name: pa.array(column, pa.string()) for name, column in columns.items()}).to_pylist()
    for row, text in enumerate(texts):
        assert json.loads(text, object_pairs_hook=list) == [(name, column[row]) for name, column in columns.items()]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, -(2**63), None]), ["1", str(-(2**63)), "null"]),
        (pa.array([True, None]), ["true", "null"]),
        (pa.array([0.1, 5.0, 1e20, None]), ["0.1", "5", "1e+20", "null"]),
        (pa.array([math.nan, math.inf, -math.inf]), ['"NaN"', '"Infinity"', '"-Infinity"']),
        (pa.array([0.5, None], pa.float16()), ["0.5", "null"]),
        (pa.array([Decimal("1.50"), Decimal("-0.01")]), ["1.50", "-0.01"]),
        (pa.array([time(1, 2, 3)]), ['"01:02:03.000000"']),
        (pa.array([datetime(2026, 1, 2, 3, 4, 5, 6)]), ['"2026-01-02T03:04:05.000006"']),  # noqa: DTZ001 - a naive one
        (pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("s", "Asia/Kolkata")), ['"2026-01-02T00:00:00Z"']),
        (pa.array([b"\xff\x00", None]), ['"/wA="', "null"]),
        (pa.nulls(2), ["null", "null"]),
        (pa.array([[1, None], [], None]), ["[1,null]", "[]", "null"]),
        (pa.array([{"a": 1, "b": ["x"]}, None, {"a": None}]), ['{"a":1,"b":["x"]}', "null", '{"a":null,"b":null}']),
        (pa.array([[{"a": 1}, None]]), ['[{"a":1},null]']),
        (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_every_type_has_its_text(column: pa.Array, expected: list[str]) -> None:
    assert json_text.values(column, "c").to_pylist() == expected
    for text in expected:
        json.loads(text)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("-1", "-1"),
        ("12.50", "12.50"),
        ("1" * 30, "1" * 30),
        *((each, f'"{each}"') for each in ("007", "-", ".5", "5.", "1e5", "\u0661", "+1", " 1", "true", "NaN")),
        ("1\n", '"1\\n"'),
        (None, "null"),
    ],
)
def test_an_untyped_field_is_a_number_only_if_json_would_write_it_so(field: str | None, text: str) -> None:
    objects = json_text.objects({"c": pa.array([field], pa.string())}, untyped=True)
    assert objects.to_pylist() == [f'{{"c":{text}}}']
    json.loads(text)


def test_types_without_a_text_are_refused_by_the_column_s_name() -> None:
    a_map = pa.map_(pa.string(), pa.int64())
    for kind, name in ((a_map, "c"), (pa.duration("s"), "c"), (pa.struct([("inner", pa.list_(a_map))]), "inner")):
        with pytest.raises(Invalid, match=rf"column '{name}' has type .* cannot be published as text"):
            json_text.values(pa.nulls(1, kind), "c")


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one column"):
        json_text.objects({})
