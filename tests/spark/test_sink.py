"""What a sink publishes: types, headers, compression, plain copies; by batch and by stream."""

from __future__ import annotations

import os

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from tests.support.messages import open_queue
from tests.support.spark import Lab, ended

pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key string, value binary>>"


def test_text_and_bytes_are_published_as_they_are(lab: Lab) -> None:
    lab.create("orders", 1)
    session = lab.spark
    rows = [
        session.createDataFrame([("schlüssel", "größe 分 \0 🚚"), (None, "")], "key string, value string"),
        session.createDataFrame([(b"k", b"\x00\xff"), (None, b"")], "key binary, value binary"),
        session.createDataFrame([(b"only a value",)], "value binary"),
        session.createDataFrame([("order of columns", 1.5, "k")], "value string, offset double, key string"),
    ]
    for each in rows:
        lab.append(each.coalesce(1), "orders")
    assert [(message.key, message.value) for message in lab.browse("orders")] == [
        ("schlüssel", "größe 分 \0 🚚".encode()),
        (None, b""),
        ("k", b"\x00\xff"),
        (None, b""),
        (None, b"only a value"),
        ("k", b"order of columns"),
    ]
    assert len(lab.head("orders").entries) == 4


def test_the_queue_may_be_the_path(lab: Lab) -> None:
    lab.create("orders", 1)
    rows = lab.spark.createDataFrame([("v",)], "value string")
    rows.write.format("partq").option("store", lab.url).mode("append").save("orders")
    writer = lab.stream("orders", startingOffsets="earliest").writeStream.format("partq").option("store", lab.url)
    writer = writer.option("checkpointLocation", str(lab.folder / "publisher")).trigger(availableNow=True)
    ended(writer.start("orders"))
    assert [message.value for message in lab.browse("orders")] == [b"v", b"v"]


def test_no_rows_are_no_publish(lab: Lab) -> None:
    lab.create("orders", 2)
    before = lab.head("orders")
    empty = lab.spark.createDataFrame([], "key string, value string")
    lab.append(empty, "orders")
    lab.append(lab.spark.range(100).where("id < 0").selectExpr("cast(id as string) value"), "orders")
    lab.append(empty, "orders", txnAppId="nightly", txnVersion="1")
    assert lab.head("orders") == before
    assert lab.objects("orders") == ["_head.json"]


def test_headers_make_the_round_trip_in_batch_and_in_stream(lab: Lab) -> None:
    for name in ("orders", "copy", "copied stream"):
        lab.create(name.replace(" ", "-"), 2)
    headers = [
        [("trace", b"\x01"), ("trace", b"\x02"), ("empty", b""), ("null", None)],
        [],
        None,
    ]
    rows = lab.spark.createDataFrame(
        [(f"k{n}", f"v{n}", each) for n, each in enumerate(headers)], f"key string, value string, {HEADERS}"
    )
    lab.append(rows, "orders")
    lab.publish("orders", [("k9", b"published without headers")])
    read = lab.read("orders", includeHeaders="true")
    assert read.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    found = {row.key: row.headers and [(each.key, each.value) for each in row.headers] for row in read.collect()}
    assert found == {"k0": headers[0], "k1": [], "k2": None, "k9": None}
    assert "headers" not in lab.read("orders").columns

    lab.append(read, "copy")  # a plain copy: the source's other columns are ignored
    stream = lab.stream("orders", includeHeaders="true", startingOffsets="earliest")
    ended(lab.publisher(stream, "copied-stream", "copy"))
    for name in ("copy", "copied-stream"):
        assert_df_equality(
            lab.read(name, includeHeaders="true").select("key", "value", "headers"),
            read.select("key", "value", "headers"),
            ignore_row_order=True,
            ignore_nullable=True,
        )


def test_a_plain_copy_keeps_keys_values_partitions_and_order(lab: Lab) -> None:
    lab.create("orders", 4)
    lab.create("copy", 4)
    for publish in range(3):
        lab.publish("orders", [(f"k{n}", b"%d/%d" % (publish, n)) for n in range(200)])
    ended(lab.publisher(lab.stream("orders", startingOffsets="earliest"), "copy", "copy"))
    copied, original = lab.browse("copy"), lab.browse("orders")
    assert [(each.partition, each.offset, each.key, each.value) for each in copied] == [
        (each.partition, each.offset, each.key, each.value) for each in original
    ]


def test_each_compression_is_read_back_and_used(lab: Lab) -> None:
    rows = lab.spark.range(3000).selectExpr("cast(id as string) key", "repeat(cast(id % 7 as string), 200) value")
    sizes = {}
    for compression in ("none", "lz4", "zstd"):
        lab.create(compression, 2)
        lab.append(rows.coalesce(1), compression, compression=compression)
        assert_df_equality(
            lab.read(compression).selectExpr("key", "cast(value as string) value"),
            rows,
            ignore_row_order=True,
            ignore_nullable=True,
        )
        sizes[compression] = sum(path.stat().st_size for path in lab.segments(compression))
    lab.create("default", 2)
    lab.append(rows.coalesce(1), "default")
    assert sizes["lz4"] < sizes["none"] / 4
    assert sizes["zstd"] < sizes["none"] / 4
    assert sizes["zstd"] != sizes["lz4"]
    assert sum(path.stat().st_size for path in lab.segments("default")) == sizes["lz4"]


def test_a_large_task_is_one_segment_and_one_publish_in_order(lab: Lab) -> None:
    """More rows than one of Spark's Arrow batches has, more bytes than one run of the segment writer."""
    lab.create("orders", 3)
    rows = lab.spark.range(0, 90_000, 1, 1).selectExpr(
        "cast(id % 5 as string) key", "rpad(cast(id as string), 1000, '.') value"
    )
    lab.append(rows, "orders", compression="zstd")
    head = lab.head("orders")
    assert (len(head.entries), len(head.entries[0].segments), head.messages) == (1, 1, 90_000)
    assert len(head.entries[0].slices) > 3
    last: dict[str, int] = {}
    number = "cast(substring_index(cast(value as string), '.', 1) as int) id"
    for row in lab.read("orders").selectExpr("key", number).toLocalIterator():
        assert row.id > last.get(row.key, -1)
        last[row.key] = row.id


def test_sparks_large_types_make_no_difference(lab: Lab) -> None:
    session: SparkSession = lab.spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    lab.create("orders", 2)
    lab.append(session.createDataFrame([("k", "v", [("a", b"1")])], f"key string, value string, {HEADERS}"), "orders")
    read = session.read.format("partq").options(store=lab.url, includeHeaders="true").load("orders")
    (row,) = read.collect()
    assert (row.key, bytes(row.value), row.headers[0].key) == ("k", b"v", "a")


def test_the_default_store_is_the_drivers_variable(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """PARTQ_STORE as it was when Spark started; what this process has set since does not matter (spark-traps.md 26)."""
    from partq_spark.log import admin
    from partq_spark.objects import open_store

    jvm = lab.spark.sparkContext._jvm
    assert jvm is not None
    url = jvm.java.lang.System.getenv("PARTQ_STORE")
    assert url.endswith("default-store")
    monkeypatch.setenv("PARTQ_STORE", lab.url)
    name = f"orders-{os.getpid()}"
    admin.create_queue(open_store(url), "default", name, 1)
    lab.spark.createDataFrame([("v",)], "value string").write.format("partq").mode("append").save(name)
    assert lab.spark.read.format("partq").load(name).count() == 1
    assert open_queue(url, name).refresh().messages == 1
