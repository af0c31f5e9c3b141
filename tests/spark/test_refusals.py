"""Bad input of a Spark user: refused with the reason and the way out, at its moment, and nothing is published. What an
option may be is in `test_options`, what rows may be in `test_typed_sink`; here is where a user sees it.

The moments (the public interface): source options and the queue at `.load()`; what only a stream can know, at its
first trigger (`query.exception()`); a stream sink in its first batch; a batch write at `.save()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.support.spark import Lab, failure

pytestmark = pytest.mark.spark

GOOD = "key string, value string"


@pytest.fixture
def orders(lab: Lab) -> Iterator[Lab]:
    """A lab with a queue that must be the same afterwards, to the byte of its head."""
    lab.create("orders", 2, max_message_bytes=5000)
    lab.publish("orders", [("k", b"there before")])
    head = lab.head("orders")
    yield lab
    assert lab.head("orders") == head
    assert [message.value for message in lab.browse("orders")] == [b"there before"]


def refuses(attempt: Callable[[], Any], says: str) -> None:
    with pytest.raises(PySparkException) as caught:
        attempt()
    assert says in str(caught.value).replace("\n", " ")


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_source_refuses_options_and_queues_at_load(orders: Lab) -> None:
    for options, says in (
        ({"maxOffsetsPerTrigger": "5"}, "'maxoffsetspertrigger' (value '5') is unknown"),
        ({"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger='many' is not allowed"),
        ({"startingOffsets": "earliest", "startingTimestamp": "2026-11-20T09:30:00Z"}, "contradict"),
        ({"queue": "bills"}, "name two queues"),
        ({"store": "file:data"}, "'file:data' is relative"),
        ({"topic": "a/b"}, "'topic' (value 'a/b') is unknown to the partq source"),
        ({"flow": "left"}, "'flow' (value 'left') is for a consumer group"),
        ({"group": "billing", "ownership": "redis://user:hunter2@127.0.0.1:1/0"}, "PARTQ_REDIS_PASSWORD"),
    ):
        for load in (orders.read, orders.stream):
            given = {"store": orders.url, **options}
            reader = orders.spark.read if load == orders.read else orders.spark.readStream
            refuses(lambda reader=reader, given=given: reader.format("partq").options(**given).load("orders"), says)  # type: ignore[misc]
    for load in (orders.read, orders.stream):
        refuses(lambda load=load: load("bills"), "does not exist: create it with `partq queue create bills")  # type: ignore[misc]
    assert not (orders.store_folder / "default" / "bills").exists()
    reader = orders.spark.read.format("partq").option("store", orders.url)
    refuses(reader.load, "no queue was named")
    refuses(lambda: reader.load(["orders", "bills"]), "'paths' ")


def test_what_only_a_batch_or_a_stream_has_is_refused_when_it_is_known_which_it_is(orders: Lab) -> None:
    """A stream with either trigger, since Spark's first call is not the same."""
    batch = orders.read("orders", maxMessagesPerTrigger="5")
    refuses(batch.collect, "'maxMessagesPerTrigger' (value '5') is for streams")
    for available_now in (False, True):
        stream = orders.stream("orders", endingOffsets="latest")
        query = orders.consumer(f"by {available_now}").start(stream, available_now=available_now)
        assert "'endingOffsets' (value 'latest') is for batch reads" in failure(query)


def test_with_a_schema_everything_is_refused_when_a_batch_is_planned(orders: Lab) -> None:
    """And not at .load(), where Spark then asks nobody (spark-traps.md 16, 36)."""
    headers = "headers array<struct<key: string NOT NULL, value: binary>>"
    cases: list[tuple[str, dict[str, str], str]] = [
        ("value string, price double", {}, "column 'price' (double) is no column of a partq source"),
        ("offset int", {}, "column 'offset' has type int in .schema(), a partq source has it as bigint"),
        ("key string, KEY string", {}, "column 'KEY' is named twice in .schema()"),
        ("key string NOT NULL", {}, "column 'key' is NOT NULL in .schema() (string not null)"),
        (headers, {}, "column 'headers' is NOT NULL in .schema() (array<struct<key:string not null,value:binary>>)"),
        ("key string", {"codec": "lz4"}, "'codec' (value 'lz4') is unknown"),
        ("key string", {"queue": "bills"}, "queue 'bills'"),
    ]
    for number, (columns, options, says) in enumerate(cases):
        given = {"store": orders.url, "queue": "orders", **options}
        rows = orders.spark.read.format("partq").options(**given).schema(columns).load()
        refuses(rows.collect, says)
        stream = orders.spark.readStream.format("partq").options(**given).schema(columns).load()
        query = orders.consumer(f"by {number}").start(stream, available_now=number % 2 == 0)
        assert says in failure(query)


# --- sinks: a batch write at .save(), a stream in its first batch -----------------------------------------------------

SINK_OPTIONS = [
    ({"codec": "lz4"}, "'codec' (value 'lz4') is unknown"),
    ({"queue": "bills"}, "queue 'bills'"),
    ({"compression": "gzip"}, "compression='gzip' is not allowed"),
    ({"store": "file:data"}, "'file:data' is relative"),
    ({"startingOffsets": "earliest"}, "'startingoffsets' (value 'earliest') is unknown"),
    ({"topic": "a/*"}, "option topic 'a/*' is not allowed: level 2 ('*') holds '*'"),
    ({"failOnUnattractedTopic": "true"}, "'failOnUnattractedTopic' (value 'true') is for"),
    ({"txnAppId": "nightly"}, "option 'txnVersion' is missing"),
]
SINK_COLUMNS = [
    (["'k' key"], "column 'value' is missing (found: key)"),
    (["'k' key", "'v' value", "1 amount"], "column 'amount' (int) is no column of a partq sink"),
    (["'k' key", "1 value"], "column 'value' has type int"),
    (["1 key", "'v' value"], "column 'key' has type int"),
    (["'v' value", "map('a', 'b') headers"], "column 'headers' has type map<string,string>"),
    (["'v' value", "1 topic"], "column 'topic' has type int"),
]
SINK_ROWS = [
    (["'k' key", "nullif('v', 'v') value"], "has no value: every message needs one"),
    (["'k' key", "repeat('x', 5000) value"], "has 5001 bytes"),
    (["unhex('ff') key", "'v' value"], "the key of row 0 is not valid UTF-8"),
    (["cast(x'FF41' as string) key", "'v' value"], "the key of row 0 is not valid UTF-8 (b'\\xffA')"),
    (["array(struct(cast(x'FF41' as string) key, x'01' value)) headers", "'v' value"], "a header of row 0 has a key"),
    (["cast(x'FF41' as string) topic", "'v' value"], "row 0 cannot be published: its topic is not valid UTF-8"),
]


def one_bad_row(lab: Lab, columns: list[str]) -> DataFrame:
    """The bad one in one task; a good one in another, where that is the first three of `SINK_ROWS`."""
    bad = lab.spark.range(1).selectExpr(*columns)
    if columns not in [each for each, _ in SINK_ROWS[:3]]:
        return bad
    good = lab.spark.range(1).selectExpr("cast('k' as binary) key", "'good' value")
    return good.union(bad.selectExpr("cast(key as binary) key", "value"))


def test_a_batch_write_refuses_options_columns_and_rows_at_save(orders: Lab) -> None:
    rows = orders.spark.createDataFrame([("k", "v")], GOOD)
    for options, says in SINK_OPTIONS:
        given = {"store": orders.url, "queue": "orders", **options}
        refuses(rows.write.format("partq").options(**given).mode("append").save, says)
    for columns, says in [*SINK_COLUMNS, *SINK_ROWS]:
        refuses(lambda columns=columns: orders.append(one_bad_row(orders, columns), "orders"), says)  # type: ignore[misc]
    writer = rows.write.format("partq").options(store=orders.url, queue="orders")
    refuses(writer.mode("overwrite").save, 'only ever appended to, mode("overwrite") is refused')
    for mode in ("error", "ignore"):  # Spark itself (spark-traps.md 17)
        with pytest.raises(PySparkException, match=r"append|mode"):
            writer.mode(mode).save()


def test_a_stream_sink_refuses_options_columns_and_rows_in_its_first_batch(orders: Lab) -> None:
    stream = orders.stream("orders", startingOffsets="earliest")

    def sink(rows: DataFrame, name: str, **options: str) -> Any:
        writer = rows.writeStream.format("partq").options(**{"store": orders.url, "queue": "orders", **options})
        return writer.option("checkpointLocation", str(orders.folder / name)).trigger(availableNow=True)

    transaction = {"txnAppId": "nightly", "txnVersion": "1"}
    for number, (options, says) in enumerate(
        [*SINK_OPTIONS[:2], (transaction, "'txnAppId' (value 'nightly') is for batch writes")]
    ):
        assert says in failure(sink(stream, f"options-{number}", **options).start())
    for number, (columns, says) in enumerate([SINK_COLUMNS[1], SINK_ROWS[0], SINK_ROWS[1]]):
        folder = orders.folder / f"rows-{number}"
        one_bad_row(orders, columns).write.parquet(str(folder))
        bad = orders.spark.readStream.schema(orders.spark.read.parquet(str(folder)).schema).parquet(str(folder))
        assert says in failure(sink(bad, f"sink-{number}").start())

    counted = stream.groupBy("key").count().selectExpr("key", "cast(count as string) value")
    said = failure(sink(counted, "complete").outputMode("complete").start())
    assert 'output mode "complete" is refused: use "append"' in said
    try:  # Spark itself knows that the sink cannot update
        said = failure(sink(counted, "update").outputMode("update").start())
    except PySparkException as refused:
        said = str(refused)
    assert "update" in said.lower()
