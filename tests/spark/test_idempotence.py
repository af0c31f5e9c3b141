"""A batch that Spark repeats is published once, however it is repeated; and nobody's batches are dropped silently."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark import Lab, ended, failure

pytestmark = [pytest.mark.spark, pytest.mark.conformance("DIS-09")]


@pytest.mark.conformance("DIS-03")
def test_a_replayed_micro_batch_adds_nothing_however_often_it_comes(lab: Lab) -> None:
    """Also for messages without a key, whose partition was chosen at random."""
    lab.create("inbox", 2)
    lab.create("orders", 8)
    for publish in range(3):
        lab.publish("inbox", [(f"k{n}" if n % 2 else None, b"%d/%d" % (publish, n)) for n in range(40)])
    copy = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="50").select("key", "value")

    ended(lab.publisher(copy, "orders", "copy"))
    first = lab.browse("orders")
    head = lab.head("orders")
    assert sorted(message.value for message in first) == sorted(message.value for message in lab.browse("inbox"))
    assert [entry.batch for entry in head.entries] == [0, 1, 2]

    for _ in range(2):
        lab.consumer("copy").forget_commit()
        ended(lab.publisher(copy, "orders", "copy"))
        assert lab.browse("orders") == first
        assert lab.head("orders") == head

    lab.publish("inbox", [("k1", b"new")])  # and the query goes on from there
    lab.consumer("copy").forget_commit()
    ended(lab.publisher(copy, "orders", "copy"))
    assert len(lab.browse("orders")) == len(first) + 1
    assert [entry.batch for entry in lab.head("orders").entries] == [0, 1, 2, 3]


def test_a_batch_write_with_a_version_is_published_once(lab: Lab) -> None:
    lab.create("orders", 3)

    def write(version: int, *values: str) -> None:
        rows = lab.spark.createDataFrame([("k", value) for value in values], "key string, value string")
        lab.append(rows, "orders", txnAppId="nightly", txnVersion=str(version))

    write(5, "a", "b")
    head = lab.head("orders")
    write(5, "a", "b")
    write(4, "too old")
    assert lab.head("orders") == head
    write(6, "c")
    assert [message.value for message in lab.browse("orders")] == [b"a", b"b", b"c"]


def test_writes_without_a_version_are_all_published(lab: Lab) -> None:
    lab.create("orders", 3)
    rows = lab.spark.createDataFrame([("k", "a")], "key string, value string")
    lab.append(rows, "orders")
    lab.append(rows, "orders")
    assert [message.value for message in lab.browse("orders")] == [b"a", b"a"]


def test_for_each_batch_is_idempotent_by_its_application_id_and_a_reset_checkpoint_is_refused(lab: Lab) -> None:
    """Under the same id a new query begins at batch 0 again, and its batches would all be taken for repetitions."""
    lab.create("inbox", 1)
    lab.create("orders", 3)
    lab.publish("inbox", [("k", b"1"), ("k", b"2")])

    def forward(batch: DataFrame, batch_id: int) -> None:
        lab.append(batch, "orders", txnAppId="forwarder", txnVersion=str(batch_id))

    def start() -> StreamingQuery:
        stream = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="1")
        writer = stream.writeStream.foreachBatch(forward).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(lab.folder / "forward")).start()

    ended(start())
    assert [message.value for message in lab.browse("orders")] == [b"1", b"2"]
    head = lab.head("orders")
    lab.consumer("forward").forget_commit()
    ended(start())
    assert lab.head("orders") == head

    shutil.rmtree(lab.folder / "forward")
    said = failure(start())
    assert "writer 'forwarder' belongs to query" in said
    assert "choose another txnAppId" in said
    assert lab.head("orders") == head


def test_two_queries_publish_to_one_queue_without_losing_each_others_batches(lab: Lab) -> None:
    """Batch numbers of different queries are the same; what is theirs is told apart by the query."""
    lab.create("inbox", 1)
    lab.create("orders", 3)
    lab.publish("inbox", [("k", b"1"), ("k", b"2")])
    copy = lab.stream("inbox", startingOffsets="earliest").select("key", "value")
    queries = [lab.publisher(copy, "orders", "left"), lab.publisher(copy, "orders", "right")]
    for query in queries:
        ended(query)
    assert sorted(message.value for message in lab.browse("orders")) == [b"1", b"1", b"2", b"2"]
