"""Bad input of a Spark user: refused with the reason and the way out, at its moment, and nothing is published. What an
option may be is in `test_options`, what columns and rows may be in `test_refused_columns`; here is where it is seen.

The moments (the public interface): source options and the queue at `.load()`; what only a stream can know, at its
first trigger (`query.exception()`); a stream sink in its first batch; a batch write at `.save()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.support.spark import Lab, failure

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(lab: Lab) -> Iterator[Lab]:
    """A lab with a queue that must be the same afterwards, to the byte of its head."""
    lab.create("orders", 2)
    lab.publish("orders", [("k", b"there before")])
    head = lab.head("orders")
    yield lab
    assert lab.head("orders") == head


def refuses(says: str, attempt: Callable[..., Any], *given: Any, **options: str) -> None:
    with pytest.raises(PySparkException) as caught:
        attempt(*given, **options)
    assert says in str(caught.value).replace("\n", " ")


def test_a_source_is_refused_at_load_by_what_it_is_at_its_first_plan_and_with_a_schema_only_then(orders: Lab) -> None:
    """With `.schema()` Spark asks nobody at .load() (spark-traps.md 16, 36)."""
    secret = {"group": "billing", "ownership": "redis://user:hunter2@127.0.0.1:1/0"}
    for load in (orders.read, orders.stream):
        refuses("'maxoffsetspertrigger' (value '5') is unknown", load, "orders", maxOffsetsPerTrigger="5")
        refuses("name two queues", load, "orders", queue="bills")
        refuses("PARTQ_REDIS_PASSWORD", load, "orders", **secret)
        refuses("does not exist: create it with `partq queue create bills", load, "bills")
    assert not (orders.store_folder / "default" / "bills").exists()
    refuses("'maxMessagesPerTrigger' (value '5') is for str", orders.read("orders", maxMessagesPerTrigger="5").collect)
    cases = [
        ("endingOffsets' (value 'latest') is for batch reads", None, {"endingOffsets": "latest"}),
        ("column 'price' is none of the queue's", "value string, price double", {}),
        ("'codec' (value 'lz4') is unknown", "key string", {"codec": "lz4"}),
    ]
    for number, (says, columns, options) in enumerate(cases):
        for available_now in (False, True):  # Spark's first call is not the same
            reader = orders.spark.readStream.format("partq").options(store=orders.url, **options)
            stream = (reader if columns is None else reader.schema(columns)).load("orders")
            query = orders.consumer(f"{number} {available_now}").start(stream, available_now=available_now)
            assert says in failure(query)
        if columns is not None:
            given = orders.spark.read.format("partq").options(store=orders.url, **options).schema(columns)
            refuses(says, given.load("orders").collect)


@pytest.mark.conformance("TYP-04")
def test_a_sink_is_refused_at_save_or_in_its_first_batch(orders: Lab) -> None:
    """Also text that is no text, which only Spark's own expressions make."""
    one = orders.spark.range(1)
    good = one.selectExpr("'k' key", "'v' value")
    for says, options in (
        ("'codec' (value 'lz4') is unknown", {"codec": "lz4"}),
        ("queue 'bills'", {"queue": "bills"}),
        ("option 'txnVersion' is missing", {"txnAppId": "nightly"}),
    ):
        writer = good.write.format("partq").options(**{"store": orders.url, "queue": "orders", **options})
        refuses(says, writer.mode("append").save)
    bytes_ = "cast(x'FF41' as string)"
    for says, columns in (
        ("has no value: every message needs one", ["nullif('v', 'v') value"]),
        ("the key of row 0 is not valid UTF-8 (b'\\xffA')", [f"{bytes_} key", "'v' value"]),
        ("a header of row 0 has a key", [f"array(struct({bytes_} key, x'01' value)) headers", "'v' value"]),
        ("row 0 cannot be published: its topic is not", [f"{bytes_} topic", "'v' value"]),
    ):
        refuses(says, orders.append, one.selectExpr(*columns), "orders")
    typed = orders.create("typed", schema="id INT NOT NULL")
    for says, column in (
        ("column 'id' has type BIGINT, the queue's is INT: cast it", "if(id = 0, raise_error('a task ran'), id) id"),
        ("row 0, column 'id': null, where the queue's", "cast(nullif(id, id) as int) id"),
    ):
        refuses(says, orders.append, one.selectExpr(column), "typed")
    assert typed.describe().messages == 0
    writer = good.write.format("partq").options(store=orders.url, queue="orders")
    refuses('only ever appended to, mode("overwrite") is refused', writer.mode("overwrite").save)
    for mode in ("error", "ignore"):  # Spark itself (spark-traps.md 17)
        with pytest.raises(PySparkException, match=r"append|mode"):
            writer.mode(mode).save()

    stream = orders.stream("orders", startingOffsets="earliest")
    for number, (says, rows, options) in enumerate(
        (
            ("'txnAppId' (value 'x') is for batch writes", stream, {"txnAppId": "x", "txnVersion": "1"}),
            ("column 'amount' (int) is no column of a partq sink", stream.selectExpr("value", "1 amount"), {}),
        )
    ):
        assert says in failure(orders.publisher(rows, "orders", f"sink {number}", **options))
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        # It would repeat batches other than the last, whose numbers would all be refused.
        orders.publisher(stream, "orders", "async", asyncProgressTrackingEnabled="true")
    counted = stream.groupBy("key").count().selectExpr("key", "cast(count as string) value").writeStream
    sink = counted.format("partq").options(store=orders.url, queue="orders")
    said = failure(sink.option("checkpointLocation", str(orders.folder / "all")).outputMode("complete").start())
    assert 'output mode "complete" is refused: use "append"' in said
    try:  # Spark itself knows that the sink cannot update
        said = failure(sink.option("checkpointLocation", str(orders.folder / "up")).outputMode("update").start())
    except PySparkException as refused:
        said = str(refused)
    assert "update" in said.lower()
