"""Columns on request in real queries: batch and stream give what `.schema()` names, and nothing else is decoded."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

import partq
from partq_spark.client.acknowledge import Acknowledger, KeySequences
from tests.support.spark import Given, Lab, ended, failure

pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key: string, value: binary>>"


def messages(count: int) -> list[Given]:
    return [
        (None if n % 3 == 0 else f"k{n}", f"größe {n}".encode(), [("n", b"%d" % n)] if n % 2 else None)
        for n in range(count)
    ]


def batch(lab: Lab, columns: str, **options: str) -> DataFrame:
    return lab.spark.read.format("partq").options(store=lab.url, **options).schema(columns).load("orders")


def stream(lab: Lab, columns: str, **options: str) -> DataFrame:
    options = {"store": lab.url, "startingOffsets": "earliest", **options}
    return lab.spark.readStream.format("partq").options(**options).schema(columns).load("orders")


@pytest.fixture
def orders(lab: Lab) -> Lab:
    """Three publishes, one of them with headers."""
    lab.create("orders", 2)
    lab.publish("orders", [(key, value) for key, value, *_ in messages(40)])
    lab.publish("orders", messages(400), headers=True)
    lab.publish("orders", [(key, value) for key, value, *_ in messages(40)], compression="none")
    return lab


@pytest.mark.conformance("TYP-01")
@pytest.mark.parametrize(
    "columns",
    [
        "key string, value string",
        f"offset bigint, {HEADERS}, partition int",
        "VALUE binary",
        f"redelivered boolean, timestamp timestamp, {HEADERS}, offset bigint, queue string, value string, key string",
        "partition int, offset bigint",
    ],
)
def test_a_reader_gives_the_columns_that_it_names_in_its_order(orders: Lab, columns: str) -> None:
    rows = batch(orders, columns)
    names = rows.schema.fieldNames()
    everything = orders.read("orders", includeHeaders="true")
    wanted = everything.select(*(everything[name].cast(rows.schema[name].dataType) for name in names)).collect()
    assert len(wanted) == 480
    assert sorted(rows.collect(), key=repr) == sorted(wanted, key=repr)
    delivered = orders.consumer().run(stream(orders, columns))
    assert delivered[0].__fields__ == names
    assert sorted(delivered, key=repr) == sorted(wanted, key=repr)


def test_include_headers_says_nothing_where_columns_are_named(orders: Lab) -> None:
    assert batch(orders, "offset bigint", includeHeaders="true").columns == ["offset"]
    assert batch(orders, HEADERS, includeHeaders="false").where("headers is not null").count() == 200


@pytest.mark.conformance("TYP-01")
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_value_that_is_no_text_ends_the_batch_and_is_named(lab: Lab, fail: str) -> None:
    """A wrong type is no loss of data, so `failOnDataLoss=false` skips nothing."""
    lab.create("orders", 1)
    lab.publish("orders", [("k", b"text"), ("k", b"\xff"), ("k", b"text")])
    says = "the value at offset 1 of partition 0 of queue 'orders' is not UTF-8"
    with pytest.raises(PySparkException, match=says) as caught:
        batch(lab, "value string", failOnDataLoss=fail).collect()
    assert "ask for value BINARY in .schema()" in str(caught.value)
    assert says in failure(lab.consumer().start(stream(lab, "value string", failOnDataLoss=fail), available_now=True))
    assert [bytes(row.value) for row in batch(lab, "value binary").collect()] == [b"text", b"\xff", b"text"]
    one = batch(lab, "value string", startingOffsets='{"0": 2}')
    assert [row.value for row in one.collect()] == ["text"], "what is not read is not looked at"


def test_key_sequences_need_partition_offset_and_key_and_who_leaves_out_the_mark_loses_it(lab: Lab) -> None:
    """The messages come all the same, and a restart may ask for other columns: offsets say nothing of them."""
    lab.create("orders", 1)
    queue = partq.open_queue("orders", store=lab.url)
    sequences = KeySequences(Acknowledger(queue="orders", group="billing", flow="one", store=lab.url))
    lab.publish("orders", [("a", b"begin"), ("b", b"begin"), ("a", b"end")])

    def run(columns: str) -> list[Row]:
        delivered: list[Row] = []

        def handle(rows: DataFrame, _batch_id: int) -> None:
            sequences.begin()
            for row in rows.collect():
                delivered.append(row)
                sequences.seen(row.partition, row.offset, row.key)
                if row.value == "end":
                    sequences.complete(row.partition, row.key)
            sequences.acknowledge()

        options = {"group": "billing", "flow": "one", "ackMode": "manual", "checkpointInterval": "0s"}
        writer = stream(lab, columns, **options).writeStream.foreachBatch(handle)
        ended(writer.option("checkpointLocation", str(lab.folder / "one")).trigger(availableNow=True).start())
        return delivered

    first = run("partition int, offset bigint, key string, value string")
    assert [(row.offset, row.key, row.value) for row in first] == [
        (0, "a", "begin"),
        (1, "b", "begin"),
        (2, "a", "end"),
    ]
    assert queue.checkpoints("billing").lag == 2, "all but what lies before b's open sequence"
    assert run("partition int, offset bigint, key string, value string") == first[1:]
    lab.publish("orders", [("b", b"end")])
    marked = run("value string, redelivered boolean, key string, offset bigint, partition int")
    assert [(row.offset, row.redelivered) for row in marked] == [(1, True), (2, True), (3, False)]
    assert queue.checkpoints("billing").lag == 0
