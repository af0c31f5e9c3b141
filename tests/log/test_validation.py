"""Texts that are none: they are refused where they would come in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log import destinations
from partq_spark.log.fanout import Fan
from partq_spark.log.queue import QueueLog
from partq_spark.log.subscriptions import subscribe
from partq_spark.log.validation import first_not_utf8, is_utf8
from partq_spark.spark.sink_columns import normalised, topics_of
from tests.log.queues import World
from tests.support.texts import BAD, headers_of, texts


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_the_first_of_a_column_is_found(rows: int) -> None:
    for at in range(rows):
        values: list[bytes | None] = [None if n % 3 == 1 else "ä".encode() * n for n in range(rows)]
        values[at] = BAD
        plain = texts(None, *values)
        nested = pa.ListArray.from_arrays(
            pa.array(range(rows + 2), pa.int32()), pa.StructArray.from_arrays([plain], ["k"])
        )
        columns = (plain, texts(None, *values, large=True), plain.dictionary_encode(), nested)
        for column in columns:
            assert first_not_utf8(column) == at + 1
            assert first_not_utf8(column.slice(1)) == at
            assert is_utf8(column.slice(0, at + 1))
            assert is_utf8(column.slice(at + 2))


def test_bytes_and_numbers_are_no_texts() -> None:
    for column in (pa.array([BAD]), pa.array([1, None]), pa.nulls(3), pa.array([[BAD]])):
        assert first_not_utf8(column) is None


# --- the sink ---------------------------------------------------------------------------------------------------------


def staged(world: World, queue: QueueLog, rows: pa.RecordBatch, *, by_topic: bool = False) -> None:
    """As a task of the Spark sink does it; 10 rows came before."""
    columns = rows.schema.names
    headers = "headers" in columns
    plan = destinations.plan_topics("default", [queue], queue) if by_topic else destinations.plan_queue(queue)
    with Fan(world.store, plan, seed="s", headers=headers) as fan:
        for batch, first_row in ((good_rows(columns), 0), (rows, 10)):
            fan.add(normalised(batch, columns, headers, first_row), topics_of(batch, columns))
        fan.finish()


def good_rows(columns: list[str]) -> pa.RecordBatch:
    made = {
        "key": texts(*[b"k"] * 10),
        "value": texts(*[BAD] * 10),
        "headers": headers_of(*[b"h"] * 10),
        "topic": texts(*[b"eu"] * 10),
    }
    return pa.RecordBatch.from_arrays([made[name] for name in columns], names=columns)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("by_topic", [False, True])
def test_a_key_that_is_no_text_is_refused_by_its_row(world: World, large: bool, by_topic: bool) -> None:
    queue = world.create(2)
    topics = {"topic": texts(b"eu", None, b"eu")} if by_topic else {}
    columns = {"key": texts(b"a", b"b", BAD, large=large), "value": texts(b"1", b"2", b"3"), **topics}
    with pytest.raises(Invalid, match=r"the key of row 12 is not valid UTF-8 \(b'\\xffA'\): encode it"):
        staged(world, queue, pa.RecordBatch.from_pydict(columns), by_topic=by_topic)
    assert world.handle().refresh().messages == 0


def test_a_headers_key_that_is_no_text_is_refused_by_its_row(world: World) -> None:
    queue = world.create(2)
    columns = {"key": texts(b"a", b"b"), "value": texts(b"1", b"2"), "headers": headers_of(b"ok", BAD)}
    with pytest.raises(Invalid, match=r"a header of row 11 has a key that is not valid UTF-8"):
        staged(world, queue, pa.RecordBatch.from_pydict(columns))


def test_a_topic_that_is_no_text_is_refused_by_its_row(world: World) -> None:
    queue = world.create(2)
    subscribe(queue, "eu")
    columns = {"key": texts(b"a", b"b"), "value": texts(b"1", b"2"), "topic": texts(b"eu", BAD)}
    with pytest.raises(Invalid, match=r"row 11 cannot be published: its topic is not valid UTF-8"):
        staged(world, queue, pa.RecordBatch.from_pydict(columns), by_topic=True)


def test_a_value_may_be_any_bytes(world: World) -> None:
    staged(world, world.create(2), pa.RecordBatch.from_pydict({"key": texts(b"a"), "value": texts(BAD)}))
