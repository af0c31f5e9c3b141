"""Batch reads and streams from a queue, without a group: where they begin and end, what they take, which columns they
give, what a restart reads, and what becomes of messages that are gone or damaged.
"""

from __future__ import annotations

import random
import time
from datetime import UTC

import pytest
from pyspark.errors import PySparkException

import partq
from tests.support.spark import Given, Lab, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key: string, value: binary>>"
EVERYTHING = {"startingOffsets": "earliest"}


def values(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def numbered(first: int, end: int) -> list[Given]:
    """With a key each."""
    return [(f"k{n}", b"%d" % n) for n in range(first, end)]


# --- batch reads ------------------------------------------------------------------------------------------------------


def test_a_batch_read_takes_what_is_there_between_two_places(lab: Lab) -> None:
    queue = lab.create("orders")
    assert lab.read("orders").collect() == [], "an empty queue is no error"
    at = [lab.publish("orders", [(None, b"%d" % n), (None, b"%d" % (n + 1))]).isoformat() for n in (0, 2, 4)]

    def read(**options: str) -> str:
        return "".join(sorted(bytes(row.value).decode() for row in lab.read("orders", **options).collect()))

    for options, found in (
        ({}, "012345"),
        ({"startingOffsets": '{"0": 1}', "endingOffsets": '{"0": 4}'}, "123"),
        ({"startingOffsets": "latest"}, ""),
        ({"endingOffsets": "earliest"}, ""),
        ({"startingTimestamp": at[1]}, "2345"),
        ({"endingTimestamp": at[1]}, "01"),  # the end is exclusive, as for offsets
        ({"startingOffsets": '{"0": 1}', "endingTimestamp": at[2]}, "123"),
        ({"startingTimestamp": "1999-12-31T23:59:59-05:00", "endingTimestamp": "2999-01-01T00:00:00Z"}, "012345"),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, ""),
    ):
        assert read(**options) == found, options
    for options, says in (
        ({"startingTimestamp": at[2], "endingTimestamp": at[1]}, "its end lies before its start"),
        ({"startingOffsets": '{"0": 7}'}, "startingOffsets names offset 7 of partition 0, which ends at 6"),
        ({"endingOffsets": '{"0": 1, "1": 1}'}, r"endingOffsets must name every partition.*unknown \[1\]"),
    ):
        with pytest.raises(PySparkException, match=says):
            read(**options)
    queue.trim({0: 3})
    assert read() == read(startingTimestamp=at[0]) == "345"
    with pytest.raises(PySparkException, match=r"offsets 1 to 3 of partition 0.*have been trimmed"):
        read(startingOffsets='{"0": 1}')
    assert read(startingOffsets='{"0": 1}', failOnDataLoss="false") == "345"


def test_a_queue_is_a_path_or_an_option_and_reading_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create("orders", 3)
    partq.create_queue("orders", partitions=2, namespace="shop", store=lab.url)
    lab.publish("orders", numbered(0, 50))
    lab.append(lab.spark.createDataFrame([("k", "v")], "key string, value string"), "orders", namespace="Shop")
    before, objects = lab.head("orders"), lab.objects("orders")
    by_path = lab.read("Orders").persist()
    by_option = lab.spark.read.format("partq").option("STORE", lab.url).option("Queue", "orders").load()
    says = "key:string,value:binary,queue:string,partition:int,offset:bigint,timestamp:timestamp,redelivered:boolean"
    assert by_path.schema.simpleString() == f"struct<{says}>"
    assert sorted(by_path.collect(), key=repr) == sorted(by_option.collect(), key=repr)
    assert by_path.where("partition = 1").select("offset").count() == lab.ends("orders")[1]
    assert lab.read("orders", namespace="shop").count() == 1
    assert (lab.head("orders"), lab.objects("orders")) == (before, objects)
    lab.publish("orders", [("a", b"later")])
    assert (by_path.count(), lab.read("orders").count()) == (50, 51), "a query reads what there was when it was planned"
    by_path.unpersist()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=hunter2;")
    plan = lab.stream("orders")._jdf.queryExecution().toString()
    assert lab.url in plan, "plans show options (spark-traps.md 28), so credentials are none"
    assert "hunter2" not in plan


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_begins_where_it_is_told_and_goes_on_from_its_checkpoint(lab: Lab) -> None:
    lab.create("orders")
    at = [lab.publish("orders", [(None, b"%d" % n), (None, b"%d" % (n + 1))]).isoformat() for n in (0, 2, 4)]
    for number, (options, first) in enumerate(
        (
            (EVERYTHING, 0),
            ({"startingOffsets": '{"0": 3}'}, 3),
            ({"startingTimestamp": at[1]}, 2),
            ({"startingTimestamp": "2999-01-01T00:00:00Z"}, 6),
        )
    ):
        consumer = lab.consumer(f"from {number}")
        consumer.run(lab.stream("orders", **options))
        assert consumer.values == values(*range(first, 6)), options

    consumer = lab.consumer()
    assert consumer.run(lab.stream("orders")) == [], "at the end, unless told otherwise"
    assert consumer.log_files("offsets") == [0], "the position is fixed by one empty batch"
    lab.publish("orders", [("a", b"6"), (None, b"")])
    consumer.run(lab.stream("orders", **EVERYTHING))  # where a checkpoint exists, startingOffsets says nothing
    consumer.run(lab.stream("orders"))
    assert [(row.key, bytes(row.value), row.offset) for row in consumer.rows] == [("a", b"6", 6), (None, b"", 7)]
    assert consumer.log_files("offsets") == [0, 1]
    published = {message.offset: message.timestamp for message in lab.browse("orders")}
    for row in consumer.rows:  # Spark gives naive times of this process's zone
        assert (row.queue, row.partition, row.redelivered) == ("orders", 0, False)
        assert row.timestamp.astimezone(UTC) == published[row.offset]


def test_available_now_reads_in_batches_within_the_limits_what_was_there_when_it_began(lab: Lab) -> None:
    lab.create("orders", 4)
    lab.publish("orders", numbered(0, 250))
    lab.publish("orders", [("one key", b"%d" % n) for n in range(250, 400)])
    consumer = lab.consumer()

    def publish_more(_batch: int) -> bool:
        lab.publish("orders", [("late", b"late")])
        return False

    consumer.failing = publish_more
    stream = lab.stream("orders", **EVERYTHING, maxMessagesPerTrigger="120")
    consumer.run(stream)
    assert consumer.sizes == [120, 120, 120, 40]
    assert sorted(consumer.values, key=int) == values(*range(400))
    assert {row.partition for row in consumer.batches[0][1]} == {0, 1, 2, 3}, (
        "split by backlog: none waits while others are read"
    )
    consumer.failing = lambda _batch: False
    assert [bytes(row.value) for row in consumer.run(stream)] == [b"late"] * 4

    lab.create("large", 2)
    for _ in range(20):
        lab.publish("large", [(f"k{n}", random.Random(n).randbytes(1000)) for n in range(10)])

    consumer = lab.consumer("large")
    limits = {"maxBytesPerTrigger": "50k", "maxMessagesPerTrigger": "45"}
    consumer.run(lab.stream("large", **EVERYTHING, **limits))
    assert len(consumer.rows) == 200
    assert all(30 <= size <= 45 for size in consumer.sizes[:-1]), "both limits hold together"


def test_an_idle_query_makes_no_batches_and_ends_with_its_queue_or_with_one_in_its_place(lab: Lab) -> None:
    """It waits for news (spark-traps.md 7); those of a new queue are none of its own, nor are those of another name."""
    queue = lab.create("orders", 2)
    lab.create("bills", 2)
    lab.publish("orders", [("a", b"0")])
    consumer = lab.consumer()
    query = consumer.start(lab.stream("orders", **EVERYTHING, pollInterval="30s"))
    wait_until(lambda: consumer.values == [b"0"], "the first message")
    wait_until(lambda: consumer.log_files("commits") == consumer.log_files("offsets"), "its end")
    before = consumer.log_files("offsets")
    time.sleep(1)  # by now it waits
    assert consumer.log_files("offsets") == before
    lab.publish("orders", [("a", b"news")])
    wait_until(lambda: consumer.values == [b"0", b"news"], "news, long before the interval is over", 25)
    queue.delete()
    assert "has been deleted" in failure(query)

    assert "is another queue" in failure(consumer.start(lab.stream("bills")))
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"1")])
    said = failure(consumer.start(lab.stream("orders")))
    assert "deleted and created again" in said
    assert "new checkpoint location" in said
    assert consumer.values == [b"0", b"news"]


# --- columns on request -----------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-01")
def test_a_reader_gives_the_columns_that_it_names_in_its_order(lab: Lab) -> None:
    lab.create("orders", 2)
    with_headers: list[Given] = [
        (f"k{n}", f"größe {n}".encode(), [("n", b"%d" % n)] if n % 2 else None) for n in range(80)
    ]
    lab.publish("orders", with_headers)
    everything = lab.read("orders", includeHeaders="true")
    others = "redelivered boolean, timestamp timestamp, queue string"
    for number, columns in enumerate(
        (
            f"offset bigint, {HEADERS}, VALUE binary, {others}, partition int, key string",
            "key string, value string",
            "partition int, offset bigint",
        )
    ):
        rows = lab.spark.read.format("partq").option("store", lab.url).schema(columns).load("orders")
        names = rows.schema.fieldNames()
        wanted = everything.select(*(everything[name].cast(rows.schema[name].dataType) for name in names)).collect()
        assert len(wanted) == 80
        assert sorted(rows.collect(), key=repr) == sorted(wanted, key=repr)
        stream = lab.spark.readStream.format("partq").options(store=lab.url, **EVERYTHING).schema(columns)
        delivered = lab.consumer(f"reader {number}").run(stream.load("orders"))
        assert delivered[0].__fields__ == names
        assert sorted(delivered, key=repr) == sorted(wanted, key=repr)
    named = lab.spark.read.format("partq").options(store=lab.url, includeHeaders="true").schema("offset bigint")
    assert named.load("orders").columns == ["offset"], "includeHeaders changes the default columns only"


@pytest.mark.conformance("TYP-01")
def test_a_value_that_is_no_text_ends_the_batch_and_is_named(lab: Lab) -> None:
    """A wrong type is no loss of data, so `failOnDataLoss=false` skips nothing."""
    lab.create("orders")
    lab.publish("orders", [("k", b"text"), ("k", b"\xff"), ("k", b"text")])
    says = "the value at offset 1 of partition 0 of queue 'orders' is not UTF-8"
    options = {"store": lab.url, "failOnDataLoss": "false"}
    with pytest.raises(PySparkException, match=says + ".*ask for value BINARY in .schema()"):
        lab.spark.read.format("partq").options(**options).schema("value string").load("orders").collect()
    stream = lab.spark.readStream.format("partq").options(**options, **EVERYTHING).schema("value string")
    assert says in failure(lab.consumer().start(stream.load("orders"), available_now=True))
    one = lab.spark.read.format("partq").options(store=lab.url, startingOffsets='{"0": 2}').schema("value string")
    assert [row.value for row in one.load("orders").collect()] == ["text"], "what is not read is not looked at"


# --- what is gone or damaged ------------------------------------------------------------------------------------------


def test_what_was_trimmed_or_damaged_is_said_by_default_and_skipped_if_that_is_asked_for(lab: Lab) -> None:
    queue = lab.create("orders")
    lab.publish("orders", [(None, b"0")])
    consumer = lab.consumer()
    consumer.run(lab.stream("orders", **EVERYTHING))
    lab.publish("orders", [(None, b"%d" % n) for n in range(1, 1000)])
    consumer.failing = lambda _batch: True  # the batch is planned before its messages are trimmed
    failure(consumer.start(lab.stream("orders", maxMessagesPerTrigger="60"), available_now=True))
    consumer.failing = lambda _batch: False
    queue.trim({0: 900})
    said = failure(consumer.start(lab.stream("orders", maxMessagesPerTrigger="60"), available_now=True))
    assert "offsets 1 to 61 of partition 0 of queue 'orders' have been trimmed" in said
    assert "failOnDataLoss=false" in said
    tolerant = lab.stream("orders", maxMessagesPerTrigger="60", failOnDataLoss="false")
    consumer.run(tolerant)
    assert consumer.values == values(0, *range(900, 1000))
    assert consumer.sizes == [1, 60, 40], "no batch for every limit's worth of messages that are gone"

    for n in range(3):
        lab.publish("orders", [(None, b"after %d" % n)])
    victim = lab.segments("orders")[-2]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0x10
    victim.unlink()
    victim.write_bytes(content)
    head = lab.head("orders")
    with pytest.raises(PySparkException, match="is damaged") as caught:
        lab.read("orders").collect()
    assert victim.name in str(caught.value)
    before = len(consumer.batches)
    assert victim.name in failure(consumer.start(lab.stream("orders"), available_now=True))
    assert len(consumer.batches) == before, "nothing of a batch that is not whole"
    assert lab.head("orders") == head
    consumer.run(tolerant)
    assert consumer.values[-2:] == [b"after 0", b"after 2"]
    assert lab.read("orders", failOnDataLoss="false").count() == 102
