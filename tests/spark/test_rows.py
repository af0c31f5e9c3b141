"""From the rows that Spark hands a sink to the columns of a segment."""

from __future__ import annotations

import pyarrow as pa
import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.spark.sink_columns import normalised

LARGE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


def rows(**arrays: pa.Array) -> tuple[pa.RecordBatch, list[str]]:
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)), list(arrays)


def test_what_has_the_right_types_is_not_copied() -> None:
    value = pa.array([b"a", b"b"], pa.binary())
    key = pa.array(["x", None], pa.string())
    batch = normalised(*rows(value=value, key=key), False, 0)
    assert batch.schema == segment_schema(False)
    assert batch.column("value").buffers()[2].address == value.buffers()[2].address
    assert batch.column("key").buffers()[2].address == key.buffers()[2].address


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_keys_and_values_may_be_text_or_bytes(kind: pa.DataType) -> None:
    """Spark gives the large types where spark.sql.execution.arrow.useLargeVarTypes says so."""
    value = pa.array([b"v", "größe".encode()], pa.binary()).cast(kind)
    key = pa.array([None, "schlüssel".encode()], pa.binary()).cast(kind)
    batch = normalised(*rows(key=key, value=value), False, 0)
    assert batch.schema == segment_schema(False)
    assert batch.to_pylist() == [{"key": None, "value": b"v"}, {"key": "schlüssel", "value": "größe".encode()}]


def test_columns_are_found_by_name_and_the_sources_own_are_left_out() -> None:
    batch = normalised(
        *rows(offset=pa.array([7]), value=pa.array(["v"]), partition=pa.array([1]), key=pa.array(["k"])), False, 0
    )
    assert batch.to_pylist() == [{"key": "k", "value": b"v"}]


def test_without_a_key_column_no_message_has_a_key() -> None:
    assert normalised(*rows(value=pa.array(["v", "w"])), False, 0).column("key").null_count == 2


@pytest.mark.parametrize("kind", [HEADERS, LARGE_HEADERS])
def test_headers(kind: pa.DataType) -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None]
    batch = normalised(*rows(value=pa.array(["v"] * 3), headers=pa.array(headers, kind)), True, 0)
    assert batch.schema == segment_schema(True)
    assert batch.column("headers").to_pylist() == headers


def test_a_null_value_is_refused_with_its_row() -> None:
    with pytest.raises(Invalid, match=r"row 102 has no value.*null is not"):
        normalised(*rows(value=pa.array(["", "x", None])), False, 100)


def test_a_key_that_is_not_utf_8_is_refused_with_its_row_and_the_way_out() -> None:
    key = pa.array(["schlüssel".encode(), None, b"\xff\xfe"], pa.binary())
    with pytest.raises(Invalid, match=r"the key of row 12 is not valid UTF-8 \(b'\\xff\\xfe'\).*hex"):
        normalised(*rows(key=key, value=pa.array(["v"] * 3)), False, 10)
