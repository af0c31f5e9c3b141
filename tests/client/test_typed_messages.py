"""Rows by `import partq`: they go into a typed queue one by one and as tables, and come out as they were, while columns
and partitions change. What is no row is refused. Any rows at all: `tests/cli/test_typed_messages.py`.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import partq
from partq_spark.log.partitioner import partition_of
from tests.client.conftest import Make

DDL = "id BIGINT NOT NULL, name STRING, total DECIMAL(7,2), tags ARRAY<STRING>"
ROWS: list[dict[str, Any]] = [
    {"id": number, "name": f"n{number}", "total": Decimal(number), "tags": ["a"] * (number % 3)} for number in range(20)
]


def by_place(queue: partq.Queue) -> dict[object, Any]:
    return {(each.partition, each.offset): each.value for each in queue.browse()}


def send(queue: partq.Queue, *rows: dict[str, Any]) -> None:
    with queue.publisher() as publisher:
        for row in rows:
            publisher.send(row)


# --- publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("STRING", ["a", "é", ""], ["a", "é", ""]),
        ("TINYINT", [-128, 127], ["-128", "127"]),
        ("BIGINT", [-(2**63)], ["-9223372036854775808"]),
        ("BOOLEAN", [True, False], ["true", "false"]),
        ("DATE", [date(1, 1, 1), date(2020, 2, 29)], ["0001-01-01", "2020-02-29"]),
        ("BINARY", [b"a", "é".encode()], ["a", "é"]),
    ],
)
def test_a_messages_key_is_the_key_columns_text(make: Make, kind: str, values: list[Any], texts: list[str]) -> None:
    queue = make(partitions=5, schema=f"v INT, k {kind}", key="k")
    with queue.publisher() as publisher:
        places = [publisher.send({"v": 1, "k": value}) for value in values]
        publisher.send({"v": 2})
    found: dict[object, str | None] = {(each.partition, each.offset): each.key for each in queue.browse()}
    assert [found[place.result()] for place in places] == texts
    assert [place.result().partition for place in places] == [partition_of(text.encode(), 5) for text in texts]
    assert sorted(map(str, found.values())) == sorted([*texts, "None"])


@pytest.mark.parametrize(
    ("value", "more", "said"),
    [
        ({"id": "x"}, {}, r"does not take this row: column 'id': 'x' \(str\) is no BIGINT"),
        (b"text", {}, r"is typed, a message is a mapping of its columns \(id BIGINT NOT NULL, .*\), not bytes"),
        ({"id": 1}, {"key": "k"}, "a key cannot be given beside a row: it is the column 'id' of the row"),
        ({"id": 1, "name": "x" * 1000}, {}, "the message has .* bytes, the queue takes 500: keep large payloads"),
        ({"id": 1}, {"headers": {"a": b"x" * 500}}, "the message has .* bytes, the queue takes 500"),
    ],
)
def test_what_the_queue_does_not_take_send_refuses(make: Make, value: Any, more: dict[str, Any], said: str) -> None:
    queue = make(schema=DDL, key="id", max_message_bytes=500)
    with queue.publisher() as publisher:
        publisher.send({"id": 1})
        with pytest.raises(partq.Invalid, match=said):
            publisher.send(value, **more)
        publisher.send({"id": 2})
    assert sorted(each.value["id"] for each in queue.browse()) == [1, 2]


def test_an_untyped_queue_takes_no_row_and_one_without_a_key_column_no_key(make: Make) -> None:
    with make().publisher() as publisher, pytest.raises(partq.Invalid, match="is untyped, a message is bytes or text"):
        publisher.send({"id": 1})
    queue = make("keyless", partitions=4, schema=DDL)
    with queue.publisher() as publisher:
        with pytest.raises(partq.Invalid, match="a key cannot be given beside a row: its messages have none"):
            publisher.send({"id": 1}, key="k")
        for row in ROWS:
            publisher.send(row)
    assert {each.key for each in queue.browse()} == {None}
    assert len({each.partition for each in queue.browse()}) > 1


@pytest.mark.conformance("TYP-05")
def test_a_running_publisher_takes_rows_for_columns_that_came_since(make: Make) -> None:
    """Without being made anew, rows of before and of after in one publish."""
    queue = make(partitions=1, schema=DDL, key="id")
    with queue.publisher(linger_s=5) as publisher:
        publisher.send({"id": 1})
        queue.alter(add_column="coupon STRING, small TINYINT")
        publisher.send({"id": 2, "coupon": "x", "small": 1})
        queue.alter(widen="small INT, total DECIMAL(9,2)")
        publisher.send({"id": 3, "small": 70_000, "total": Decimal("1234567.25")})
        with pytest.raises(partq.Invalid, match="'colour': there is no such column"):
            publisher.send({"id": 4, "colour": "red"})
    found = [(each.value["id"], each.value["coupon"], each.value["small"]) for each in queue.browse()]
    assert found == [(1, None, None), (2, "x", 1), (3, None, 70_000)]
    assert queue.describe().log.entries == 1


def test_a_queue_that_was_made_again_with_other_columns_gets_nothing(make: Make) -> None:
    queue = make(partitions=1, schema=DDL, key="id")
    publisher = queue.publisher(linger_s=5)
    future = publisher.send({"id": 1})
    queue.delete()
    make(partitions=1, schema="name BINARY, id BIGINT", key="id")
    with pytest.raises(partq.Invalid, match="does not take this row"):
        publisher.send({"id": 2, "name": b"x"})
    with pytest.raises(partq.Invalid, match="was deleted and created again"):
        publisher.close()
    assert future.exception() is not None
    assert list(queue.browse()) == []


@pytest.mark.conformance("TYP-06")
def test_rows_go_by_their_topics_to_queues_with_the_same_columns(make: Make) -> None:
    orders, eu, other = (make(name, partitions=1, schema=DDL, key="id") for name in ("orders", "eu", "us"))
    plain = make("plain", partitions=1)
    eu.subscribe("orders/eu")
    other.subscribe("orders/us")
    plain.subscribe("plain")
    with orders.publisher() as publisher:
        done = publisher.send({"id": 1}, topic="orders/eu")
        publisher.send({"id": 2}, topic="orders/us")
        publisher.send({"id": 3}, topic="nobody")
        publisher.send({"id": 4})
    assert done.result() == (None, None)
    assert [[each.value["id"] for each in queue.browse()] for queue in (eu, other, orders)] == [[1], [2], [4]]
    with partq.topic_publication("orders/eu", store=orders.store) as publication:
        publication.add(pa.table({"id": [6, 7]}))
        assert publication.commit().queues[0].messages == 2
    assert [each.value["id"] for each in eu.browse()] == [1, 6, 7]
    publisher = orders.publisher()
    publisher.send({"id": 5}, topic="plain")
    with pytest.raises(partq.Invalid, match=r"'plain' \(untyped: key and value\) cannot take messages that are rows"):
        publisher.close()
    orders.subscribe("plain")
    with (
        pytest.raises(partq.Invalid, match="do not have the same columns: let their subscriptions differ"),
        partq.topic_publication("plain", store=orders.store) as publication,
    ):
        publication.add(pa.table({"id": [1]}))


# --- reading and consuming --------------------------------------------------------------------------------------------


def test_maps_are_dicts_where_a_dict_can_be_them(make: Make) -> None:
    queue = make(partitions=1, schema="m MAP<STRING, MAP<INT, DATE>>, f MAP<DOUBLE, INT>")
    row = {"m": {"x": {1: date(2020, 1, 1)}, "y": None}, "f": [(-0.0, 1), (1.5, 2)]}
    send(queue, row)
    (message,) = queue.browse()
    assert message.value == row
    assert list(map(repr, message.value["f"])) == ["(-0.0, 1)", "(1.5, 2)"]


def filled(make: Make) -> partq.Queue:
    queue = make(schema=DDL, key="id")
    with queue.publisher() as publisher:
        publisher.send_table(pa.table({"id": [row["id"] for row in ROWS], "name": [row["name"] for row in ROWS]}))
    return queue


def test_a_table_has_the_columns_and_metadata_or_those_that_are_named(make: Make) -> None:
    queue = filled(make)
    table = pa.table(queue.read())
    assert table.schema.names == ["id", "name", "total", "tags", "_metadata"]
    known = table.column("_metadata").to_pylist()
    assert known[0].keys() == {"queue", "partition", "offset", "timestamp", "redelivered"}
    assert {(each["partition"], each["offset"]) for each in known} == by_place(queue).keys()
    some = pa.table(queue.read(columns=["NAME", "_metadata", "id"]))
    assert some.schema.names == ["NAME", "_metadata", "id"]
    assert some.column("NAME").to_pylist() == table.column("name").to_pylist()
    with queue.consumer("billing", starting="earliest", columns=["name", "_metadata"]) as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        assert {*batch.pieces[0].batch.schema.names} == {"name"}
        assert pa.table(batch).schema.names == ["name", "_metadata"]
        assert {(each.partition, each.offset): each.value for each in batch} == by_place(queue)
    for columns, said in (
        (["value"], "column 'value' is none of the queue's: name some of id, name, total, tags and _metadata"),
        (["id", "ID"], "'id'"),
        ([], "no column is named"),
    ):
        with pytest.raises(partq.Invalid, match=said):
            queue.read(columns=columns)
        with pytest.raises(partq.Invalid, match=said):
            queue.consumer("billing", columns=columns)


@pytest.mark.conformance("TYP-05")
def test_a_consumer_keeps_its_columns_until_a_value_does_not_fit(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, count INT", key="id")
    send(queue, {"id": 1, "count": 1})
    with queue.consumer("billing", starting="earliest", acknowledge="manual") as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        batch.acknowledge()
        queue.alter(add_column="coupon STRING", widen="count BIGINT")
        send(queue, {"id": 2, "count": 2, "coupon": "x"})
        batch = consumer.poll(5)
        assert batch is not None
        assert pa.table(batch).column("count").type == pa.int32()
        assert [each.value for each in batch] == [{"id": 2, "count": 2}]
        batch.acknowledge()
        send(queue, {"id": 3, "count": 2**40})
        with pytest.raises(
            partq.Invalid, match=r"partition 0, offset 2, column 'count': 1099511627776 does not fit INT"
        ):
            consumer.poll(5)
    with queue.consumer("billing", idle_timeout_s=0.5) as consumer:
        (batch,) = consumer
        assert [each.value for each in batch] == [{"id": 3, "count": 2**40, "coupon": None}]


def test_a_queue_that_was_made_again_before_the_first_batch_is_read_by_its_new_columns(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, gone STRING", key="id")
    consumer = queue.consumer("billing", starting="earliest", idle_timeout_s=0.5)
    queue.delete()
    send(make(partitions=1, schema="id STRING, name STRING", key="id"), {"id": "a", "name": "b"})
    with consumer:
        assert [each.value for batch in consumer for each in batch] == [{"id": "a", "name": "b"}]


def test_a_dry_run_samples_the_keys_of_rows(make: Make) -> None:
    queue = filled(make)
    sample = queue.alter(partitions=3, dry_run=True).sample
    assert sample is not None
    moving = sum(partition_of(str(n).encode(), 2) != partition_of(str(n).encode(), 3) for n in range(20))
    assert (sample.messages, sample.without_key, sample.keys, sample.keys_that_move) == (20, 0, 20, moving)
