"""What a sink publishes: types, headers, compression, plain copies; by batch and by stream."""

from __future__ import annotations

import pytest

from tests.support.spark import Lab, ended

pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key string, value binary>>"
EVERYTHING = {"startingOffsets": "earliest"}


def test_text_and_bytes_are_published_as_they_are_by_path_and_by_option(lab: Lab) -> None:
    lab.create("orders")
    session = lab.spark
    large = session.newSession()
    large.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    for rows in (
        session.createDataFrame([("schlüssel", "größe 分 \0 🚚"), (None, "")], "key string, value string"),
        session.createDataFrame([(b"k", b"\x00\xff"), (None, b"")], "key binary, value binary"),
        session.createDataFrame([(b"only a value",)], "value binary"),
        session.createDataFrame([("order of columns", 1.5, "k")], "value string, offset double, key string"),
        large.createDataFrame([("k", "large", [("a", b"1")])], f"key string, value string, {HEADERS}"),
    ):
        rows.coalesce(1).write.format("partq").option("store", lab.url).mode("append").save("orders")
    assert [(message.key, message.value) for message in lab.browse("orders")] == [
        ("schlüssel", "größe 分 \0 🚚".encode()),
        (None, b""),
        ("k", b"\x00\xff"),
        (None, b""),
        (None, b"only a value"),
        ("k", b"order of columns"),
        ("k", b"large"),
    ]
    assert lab.queue("orders").describe().log.entries == 5
    before = lab.head("orders"), lab.objects("orders")
    for empty in (session.createDataFrame([], "key string, value string"), session.range(9).selectExpr("'v' value")):
        lab.append(empty.where("value = ''"), "orders")
    lab.append(session.createDataFrame([], "value string"), "orders", txnAppId="nightly", txnVersion="1")
    assert (lab.head("orders"), lab.objects("orders")) == before, "no rows are no publish"


@pytest.mark.conformance("DIS-02")
def test_a_plain_copy_keeps_keys_values_headers_partitions_and_order(lab: Lab) -> None:
    """By batch and by stream; the source's other columns are ignored."""
    for name in ("orders", "copy", "copied-stream"):
        lab.create(name, 4)
    headers = [[("trace", b"\x01"), ("trace", b"\x02"), ("empty", b""), ("null", None)], [], None]
    rows = [(f"k{n}", f"v{n}", each) for n, each in enumerate(headers)]
    lab.append(lab.spark.createDataFrame(rows, f"key string, value string, {HEADERS}"), "orders")
    for publish in range(3):
        lab.publish("orders", [(f"k{n}", b"%d/%d" % (publish, n)) for n in range(200)])
    read = lab.read("orders", includeHeaders="true")
    assert read.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert "headers" not in lab.read("orders").columns
    lab.append(read.coalesce(1), "copy")
    stream = lab.stream("orders", includeHeaders="true", **EVERYTHING)
    ended(lab.publisher(stream, "copied-stream", "copy"))

    def told(name: str) -> list[tuple[object, ...]]:
        return [(each.partition, each.key, each.value, each.headers) for each in lab.browse(name)]

    assert told("copied-stream") == told("orders")
    assert sorted(told("copy"), key=repr) == sorted(told("orders"), key=repr)
    found = {row.value: row.headers and [(each.key, each.value) for each in row.headers] for row in read.collect()}
    assert [found[value] for value in (b"v0", b"v1", b"v2", b"0/0")] == [*headers, None]


def test_each_compression_is_read_back_and_used(lab: Lab) -> None:
    """In a task with more rows than one of Spark's Arrow batches has (spark-traps.md 12): one segment, in order."""
    sizes = {}
    rows = lab.spark.range(0, 12_000, 1, 1).selectExpr(
        "cast(id % 5 as string) key", "rpad(cast(id as string), 200, '.') value"
    )
    for compression in ("none", "lz4", "zstd"):
        lab.create(compression, 3)
        lab.append(rows, compression, compression=compression)
        (segment,) = lab.segments(compression)
        sizes[compression] = segment.stat().st_size
        last: dict[str | None, int] = {}
        for message in lab.browse(compression):
            number = int(message.value.split(b".")[0])
            assert number > last.get(message.key, -1)
            last[message.key] = number
        assert sum(last.values()) == sum(range(11_995, 12_000))
    assert sizes["none"] / 4 > sizes["lz4"] != sizes["zstd"] < sizes["none"] / 4
