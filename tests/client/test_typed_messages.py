"""Rows go into a typed queue and come out as they were: one by one and as tables, by reading, browsing, consuming."""

from __future__ import annotations

from datetime import UTC, date, datetime
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


def payload(queue: partq.Queue, **between: Any) -> pa.Table:
    """All rows, without `_metadata`."""
    return pa.table(queue.read(**between)).drop_columns(["_metadata"])


def by_place(queue: partq.Queue) -> dict[object, Any]:
    return {(each.partition, each.offset): each.value for each in queue.browse()}


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("STRING", ["a", "é", ""], ["a", "é", ""]),
        ("TINYINT", [-128, 127], ["-128", "127"]),
        ("SMALLINT", [-1], ["-1"]),
        ("INT", [0, 2**31 - 1], ["0", "2147483647"]),
        ("BIGINT", [-(2**63)], ["-9223372036854775808"]),
        ("BOOLEAN", [True, False], ["true", "false"]),
        ("DATE", [date(1, 1, 1), date(2020, 2, 29)], ["0001-01-01", "2020-02-29"]),
        ("BINARY", [b"a", "é".encode()], ["a", "é"]),
    ],
)
def test_a_messages_key_is_the_text_of_the_key_column(
    make: Make, kind: str, values: list[Any], texts: list[str]
) -> None:
    queue = make(partitions=5, schema=f"v INT, k {kind}", key="k")
    with queue.publisher() as publisher:
        places = [publisher.send({"v": 1, "k": value}) for value in values]
        publisher.send({"v": 2})
    found: dict[object, str | None] = {(each.partition, each.offset): each.key for each in queue.browse()}
    assert [found[place.result()] for place in places] == texts
    assert [place.result().partition for place in places] == [partition_of(text.encode(), 5) for text in texts]
    assert sorted(map(str, found.values())) == sorted([*texts, "None"])


def test_a_message_has_all_that_is_known_of_it(make: Make) -> None:
    queue = make(partitions=1, schema=DDL, key="id")
    with queue.publisher() as publisher:
        publisher.send(ROWS[3], headers={"trace": b"7f3a", "empty": None})
    (first,) = queue.browse()
    assert (first.key, first.value, first.queue, first.partition, first.offset) == ("3", ROWS[3], "orders", 0, 0)
    assert first.headers == (("trace", b"7f3a"), ("empty", None))
    assert (datetime.now(UTC) - first.timestamp).total_seconds() < 60


def test_maps_are_dicts_where_a_dict_can_be_them(make: Make) -> None:
    queue = make(
        partitions=1, schema="m MAP<STRING, MAP<INT, DATE>>, f MAP<DOUBLE, INT>, l ARRAY<STRUCT<m: MAP<INT, INT>>>"
    )
    row = {
        "m": {"x": {1: date(2020, 1, 1)}, "y": None},
        "f": [(-0.0, 1), (1.5, 2)],
        "l": [{"m": {1: 2}}, None, {"m": None}],
    }
    with queue.publisher() as publisher:
        publisher.send(row)
    (message,) = queue.browse()
    assert message.value == row
    assert list(map(repr, message.value["f"])) == ["(-0.0, 1)", "(1.5, 2)"]


# --- reading and consuming --------------------------------------------------------------------------------------------


def filled(make: Make, partitions: int = 2) -> partq.Queue:
    queue = make(partitions=partitions, schema=DDL, key="id")
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
    for columns, said in (
        (["value"], "column 'value' is none of the queue's: name some of id, name, total, tags and _metadata"),
        (["id", "ID"], "'id'"),
        ([], "no column is named"),
    ):
        with pytest.raises(partq.Invalid, match=said):
            queue.read(columns=columns)
        with pytest.raises(partq.Invalid, match=said):
            queue.consumer("billing", columns=columns)


def test_a_consumer_gives_tables_of_the_columns_that_it_names_and_whole_messages(make: Make) -> None:
    queue = filled(make)
    with queue.consumer("billing", starting="earliest", columns=["name", "_metadata"]) as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        assert {*batch.pieces[0].batch.schema.names} == {"name"}
        assert pa.table(batch).schema.names == ["name", "_metadata"]
        assert {(each.partition, each.offset): each.value for each in batch} == by_place(queue)


@pytest.mark.conformance("TYP-05")
def test_a_consumer_keeps_its_columns_until_a_value_does_not_fit(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, count INT", key="id")

    def send(row: dict[str, Any]) -> None:
        with queue.publisher() as publisher:
            publisher.send(row)

    send({"id": 1, "count": 1})
    with queue.consumer("billing", starting="earliest", acknowledge="manual") as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        batch.acknowledge()
        queue.alter(add_column="coupon STRING", widen="count BIGINT")
        send({"id": 2, "count": 2, "coupon": "x"})
        batch = consumer.poll(5)
        assert batch is not None
        assert pa.table(batch).column("count").type == pa.int32()
        assert [each.value for each in batch] == [{"id": 2, "count": 2}]
        batch.acknowledge()
        send({"id": 3, "count": 2**40})
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
    with make(partitions=1, schema="id STRING, name STRING", key="id").publisher() as publisher:
        publisher.send({"id": "a", "name": "b"})
    with consumer:
        assert [each.value for batch in consumer for each in batch] == [{"id": "a", "name": "b"}]


# --- what else knows messages -----------------------------------------------------------------------------------------


def test_a_dry_run_samples_the_keys_of_rows(make: Make) -> None:
    queue = filled(make)
    sample = queue.alter(partitions=3, dry_run=True).sample
    assert sample is not None
    moving = sum(partition_of(str(n).encode(), 2) != partition_of(str(n).encode(), 3) for n in range(20))
    assert (sample.messages, sample.without_key, sample.keys, sample.keys_that_move) == (20, 0, 20, moving)
