"""Every bad input of a Spark user: refused with the reason and the way out, at its moment, and nothing is published.

The moments (the public interface): source options and the queue at `.load()`; what only a stream can know, at its
first trigger (`query.exception()`); a stream sink in its first batch; a batch write at `.save()`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    head = (lab.store_folder / "default/orders/_head.json").read_bytes()
    yield lab
    assert (lab.store_folder / "default/orders/_head.json").read_bytes() == head
    assert [message.value for message in lab.browse("orders")] == [b"there before"]


# --- at .load() -------------------------------------------------------------------------------------------------------

AT_LOAD = {
    "an unknown option": ({"maxOffsetsPerTrigger": "5"}, r"'maxoffsetspertrigger' \(value '5'\) is unknown"),
    "a bad value": ({"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger='many' is not allowed"),
    "a contradiction": (
        {"startingOffsets": "earliest", "startingTimestamp": "2026-11-20T09:30:00Z"},
        "startingOffsets='earliest' and startingTimestamp='2026-11-20T09:30:00Z' contradict",
    ),
    "two queues": ({"queue": "bills"}, "name two queues"),
    "a relative store": ({"store": "file:data"}, "'file:data' is relative.*write file:///"),
    "no URL at all": ({"store": "data"}, "is not a URL"),
    "an option of the sink": ({"topic": "a/b"}, r"'topic' \(value 'a/b'\) is unknown to the partq source"),
}


@pytest.mark.parametrize("case", AT_LOAD)
def test_a_source_refuses_at_load(orders: Lab, case: str) -> None:
    options, says = AT_LOAD[case]
    with pytest.raises(PySparkException, match=says):
        orders.spark.read.format("partq").options(**{"store": orders.url, **options}).load("orders")
    with pytest.raises(PySparkException, match=says):
        orders.spark.readStream.format("partq").options(**{"store": orders.url, **options}).load("orders")


def test_an_unknown_queue_is_refused_at_load_with_the_command_that_makes_it(orders: Lab) -> None:
    for load in (orders.read, orders.stream):
        with pytest.raises(PySparkException, match=r"queue 'bills' .* does not exist: create it with `partq queue"):
            load("bills")
    assert not (orders.store_folder / "default" / "bills").exists()
    with pytest.raises(PySparkException, match="no queue was named"):
        orders.spark.read.format("partq").option("store", orders.url).load()
    with pytest.raises(PySparkException, match=r"'paths' .* is unknown"):
        orders.spark.read.format("partq").option("store", orders.url).load(["orders", "bills"])


# --- when it is known which kind of read it is ------------------------------------------------------------------------


def test_a_batch_read_refuses_what_only_a_stream_has(orders: Lab) -> None:
    with pytest.raises(PySparkException, match=r"'maxMessagesPerTrigger' .* is for streams"):
        orders.read("orders", maxMessagesPerTrigger="5").collect()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_stream_refuses_what_only_a_batch_read_has(orders: Lab, available_now: bool) -> None:
    """With either trigger, since Spark's first call is not the same."""
    stream = orders.stream("orders", endingOffsets="latest")
    query = orders.consumer().start(stream, available_now=available_now)
    assert "'endingOffsets' (value 'latest') is for batch reads" in failure(query)


SCHEMAS = {
    "an unknown column": ("value string, price double", {}, "column 'price' (double) is no column of a partq source"),
    "another type": ("offset int", {}, "column 'offset' has type int in .schema(), a partq source has it as bigint"),
    "a column twice": ("key string, KEY string", {}, "column 'KEY' is named twice in .schema()"),
    "NOT NULL": ("key string NOT NULL", {}, "column 'key' is NOT NULL in .schema() (string not null)"),
    "NOT NULL within": (
        "headers array<struct<key: string NOT NULL, value: binary>>",
        {},
        "column 'headers' is NOT NULL in .schema() (array<struct<key:string not null,value:binary>>)",
    ),
    "an unknown option": ("key string", {"codec": "lz4"}, "'codec' (value 'lz4') is unknown"),
    "an unknown queue": ("key string", {"queue": "bills"}, "queue 'bills'"),
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_with_a_schema_everything_is_refused_when_a_batch_is_planned(orders: Lab, case: str) -> None:
    """And not at .load(), where Spark then asks nobody (spark-traps.md 16, 36)."""
    columns, options, says = SCHEMAS[case]
    options = {"store": orders.url, "queue": "orders", **options}
    rows = orders.spark.read.format("partq").options(**options).schema(columns).load()
    with pytest.raises(PySparkException) as caught:
        rows.collect()
    assert says in str(caught.value)
    for available_now in (False, True):  # since Spark's first call is not the same
        stream = orders.spark.readStream.format("partq").options(**options).schema(columns).load()
        query = orders.consumer(f"by {available_now}").start(stream, available_now=available_now)
        assert says in failure(query)


# --- sinks: a batch write at .save(), a stream in its first batch -----------------------------------------------------

SINK_OPTIONS = {
    "an unknown option": ({"codec": "lz4"}, "'codec' (value 'lz4') is unknown"),
    "a bad value": ({"compression": "gzip"}, "compression='gzip' is not allowed"),
    "an unknown queue": ({"queue": "bills"}, "queue 'bills'"),
    "a relative store": ({"store": "file:data"}, "'file:data' is relative"),
    "a read option": ({"startingOffsets": "earliest"}, "'startingoffsets' (value 'earliest') is unknown"),
    "a topic with a wildcard": ({"topic": "a/*"}, "option topic 'a/*' is not allowed: level 2 ('*') holds '*'"),
    "an option for topics": ({"failOnUnattractedTopic": "true"}, "'failOnUnattractedTopic' (value 'true') is for"),
}
SINK_COLUMNS = {
    "no value column": ("'k' key", "column 'value' is missing (found: key)"),
    "a wrong column": ("'k' key, 'v' value, 1 amount", "column 'amount' (int) is no column of a partq sink"),
    "a wrong type": ("'k' key, 1 value", "column 'value' has type int"),
    "a wrong key type": ("1 key, 'v' value", "column 'key' has type int"),
    "wrong headers": ("'v' value, map('a', 'b') headers", "column 'headers' has type map<string,string>"),
    "a wrong topic type": ("'v' value, 1 topic", "column 'topic' has type int"),
}
SINK_ROWS = {
    "a null value": ("'k' key, nullif('v', 'v') value", "has no value: every message needs one"),
    "a key of 256 bytes": ("repeat('x', 256) key, 'v' value", "has 256 bytes in UTF-8, at most 255 are allowed"),
    "a message over the limit": ("'k' key, repeat('x', 5000) value", "has 5001 bytes"),
    "a key that is no text": ("unhex('ff') key, 'v' value", "the key of row 0 is not valid UTF-8"),
}


def one_bad_row(lab: Lab, columns: str) -> DataFrame:
    """One good row in one task and the bad one in another, where the columns are right."""
    bad = lab.spark.range(1).selectExpr(*split(columns))
    if columns in {each for each, _ in SINK_ROWS.values()}:
        return (
            lab.spark.range(1)
            .selectExpr("cast('k' as binary) key", "'good' value")
            .union(bad.selectExpr("cast(key as binary) key", "value"))
        )
    return bad


def split(columns: str) -> list[str]:
    """Expressions that are separated by commas outside of parentheses."""
    depth, found = 0, [""]
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


@pytest.mark.parametrize("case", SINK_OPTIONS)
def test_a_batch_write_refuses_options_at_save(orders: Lab, case: str) -> None:
    options, says = SINK_OPTIONS[case]
    rows = orders.spark.createDataFrame([("k", "v")], GOOD)
    writer = rows.write.format("partq").options(**{"store": orders.url, "queue": "orders", **options}).mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.save()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("cast(x'FF41' as string) key, 'v' value", "the key of row 0 is not valid UTF-8 (b'\\xffA')"),
        ("array(struct(cast(x'FF41' as string) key, x'01' value)) headers, 'v' value", "a header of row 0 has a key"),
        ("cast(x'FF41' as string) topic, 'v' value", "row 0 cannot be published: its topic is not valid UTF-8"),
    ],
)
def test_a_string_that_is_no_text_is_refused(orders: Lab, columns: str, says: str) -> None:
    """Spark casts any bytes to STRING without a look at them."""
    with pytest.raises(PySparkException) as caught:
        orders.append(orders.spark.range(1).selectExpr(*split(columns)), "orders")
    assert says in str(caught.value)
    assert orders.queue("orders").describe().messages == 1, "only what was there before"


@pytest.mark.parametrize("case", [*SINK_COLUMNS, *SINK_ROWS])
def test_a_batch_write_refuses_columns_and_rows_at_save(orders: Lab, case: str) -> None:
    columns, says = {**SINK_COLUMNS, **SINK_ROWS}[case]
    with pytest.raises(PySparkException) as caught:
        orders.append(one_bad_row(orders, columns), "orders")
    assert says in str(caught.value)


def test_half_a_transaction_and_a_mode_other_than_append_are_refused(orders: Lab) -> None:
    rows = orders.spark.createDataFrame([("k", "v")], GOOD)
    with pytest.raises(PySparkException, match="option 'txnVersion' is missing"):
        orders.append(rows, "orders", txnAppId="nightly")
    writer = rows.write.format("partq").options(store=orders.url, queue="orders")
    with pytest.raises(PySparkException, match=r"only ever appended to, mode\(\"overwrite\"\) is refused"):
        writer.mode("overwrite").save()
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException, match=r"append|mode"):
            writer.mode(mode).save()
    with pytest.raises(PySparkException):
        rows.write.format("partq").options(store=orders.url, queue="orders").save()


def bad_stream(lab: Lab, columns: str) -> DataFrame:
    """A stream whose first batch has a good row and what `columns` makes."""
    folder = lab.folder / "rows"
    one_bad_row(lab, columns).write.parquet(str(folder))
    return lab.spark.readStream.schema(lab.spark.read.parquet(str(folder)).schema).parquet(str(folder))


@pytest.mark.parametrize("case", ["an unknown option", "an unknown queue"])
def test_a_stream_sink_refuses_options_in_its_first_batch(orders: Lab, case: str) -> None:
    options, says = SINK_OPTIONS[case]
    stream = orders.stream("orders", startingOffsets="earliest")
    query = (
        stream.writeStream.format("partq")
        .options(**{"store": orders.url, "queue": "orders", **options})
        .option("checkpointLocation", str(orders.folder / "publisher"))
        .trigger(availableNow=True)
        .start()
    )
    assert says in failure(query)


@pytest.mark.parametrize("case", ["a wrong column", "a null value", "a message over the limit"])
def test_a_stream_sink_refuses_columns_and_rows_in_its_first_batch(orders: Lab, case: str) -> None:
    columns, says = {**SINK_COLUMNS, **SINK_ROWS}[case]
    assert says in failure(orders.publisher(bad_stream(orders, columns), "orders", "publisher"))


def test_a_stream_sink_takes_no_transaction_and_no_output_mode_but_append(orders: Lab) -> None:
    stream = orders.stream("orders", startingOffsets="earliest")
    query = orders.publisher(stream, "orders", "publisher", txnAppId="nightly", txnVersion="1")
    assert "'txnAppId' (value 'nightly') is for batch writes" in failure(query)

    counted = stream.groupBy("key").count().selectExpr("key", "cast(count as string) value")
    said = {}
    for mode in ("complete", "update"):
        writer = counted.writeStream.format("partq").options(store=orders.url, queue="orders").outputMode(mode)
        writer = writer.option("checkpointLocation", str(orders.folder / mode)).trigger(availableNow=True)
        try:
            said[mode] = failure(writer.start())
        except PySparkException as refused:  # Spark itself knows that the sink cannot update
            said[mode] = str(refused)
    assert 'output mode "complete" is refused: use "append"' in said["complete"]
    assert "update" in said["update"].lower()
