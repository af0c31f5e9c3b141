"""What a sink publishes: types, headers, compression, plain copies; by batch and by stream, also while the partition
count changes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import partq
from tests.spark.flows.conftest import partition_of
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
    """In a task with more rows than one of Spark's Arrow batches has (spark-traps.md 12), and for the default with more
    bytes than one run of the segment writer: one segment, in order.
    """
    sizes = {}
    for compression, width in (("none", 200), ("lz4", 200), ("zstd", 200), ("default", 9_000)):
        rows = lab.spark.range(0, 12_000, 1, 1).selectExpr(
            "cast(id % 5 as string) key", f"rpad(cast(id as string), {width}, '.') value"
        )
        lab.create(compression, 3)
        lab.append(rows, compression, **({"compression": compression} if compression != "default" else {}))
        (segment,) = lab.segments(compression)
        sizes[compression] = segment.stat().st_size
        with pa.ipc.open_file(segment) as file:
            slices = file.num_record_batches  # of each run one for each of the two partitions that have keys
        assert slices == (4 if compression == "default" else 2)
        last: dict[str | None, int] = {}
        for message in lab.browse(compression):
            number = int(message.value.split(b".")[0])
            assert number > last.get(message.key, -1)
            last[message.key] = number
        assert sum(last.values()) == sum(range(11_995, 12_000))
    assert sizes["lz4"] < sizes["none"] / 4
    assert sizes["zstd"] < sizes["none"] / 4
    assert sizes["zstd"] != sizes["lz4"]
    assert sizes["default"] < sizes["none"] * 45 / 4, "compressed, too"


def test_the_default_store_is_the_drivers_variable(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """PARTQ_STORE as it was when Spark started; what this process has set since does not matter (spark-traps.md 26)."""
    jvm = lab.spark.sparkContext._jvm
    assert jvm is not None
    url = jvm.java.lang.System.getenv("PARTQ_STORE")
    assert url.endswith("default-store")
    monkeypatch.setenv("PARTQ_STORE", lab.url)
    name = f"orders-{os.getpid()}"
    queue = partq.create_queue(name, partitions=1, store=url)
    lab.spark.createDataFrame([("v",)], "value string").write.format("partq").mode("append").save(name)
    assert lab.spark.read.format("partq").load(name).count() == 1
    assert queue.describe().messages == 1


# --- the partition count changes --------------------------------------------------------------------------------------

KEYS = [f"key{number}" for number in range(16)]


def publish(lab: Lab, name: str, *numbers: int) -> None:
    """One message of every key for each number."""
    for number in numbers:
        lab.publish(name, [(key, f"{number}/{key}".encode()) for key in KEYS])


def resizing(lab: Lab, name: str, changes: dict[int, int], marks: Path) -> Callable[[DataFrame], DataFrame]:
    """Rows as they are; the task that meets the message with one of these numbers changes the count, once, while it
    stages: when the driver swaps, the queue has another layout than the one that was staged for.
    """
    url = lab.url

    def alter(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("value").to_pylist():
                number = int(bytes(value).split(b"/")[0])
                if number not in changes:
                    continue
                with (marks / "lock").open("ab") as lock:  # another task has the same numbers, and they have an order
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not (marks / str(number)).exists():
                        partq.open_queue(name, store=url).alter(partitions=changes[number])
                        (marks / str(number)).touch()
            yield batch

    marks.mkdir(exist_ok=True)
    return lambda rows: rows.select("key", "value").mapInArrow(alter, "key string, value binary")


def stored_order(lab: Lab, name: str) -> dict[str, list[int]]:
    """Of every key the numbers of its messages, layout after layout; each message must lie where its layout says."""
    layouts = lab.queue(name).describe().layouts
    found: dict[str, list[tuple[int, int, int]]] = {key: [] for key in KEYS}
    for message in lab.browse(name):
        number, key = message.value.decode().split("/")
        newest = max(
            index
            for index, layout in enumerate(layouts)
            if message.partition < layout.partitions and message.offset >= layout.begin[message.partition]
        )
        assert message.partition == partition_of(key, layouts[newest].partitions)
        found[key].append((newest, message.offset, int(number)))
    return {key: [number for _, _, number in sorted(places)] for key, places in found.items()}


def all_in_order(*numbers: int) -> dict[str, list[int]]:
    return {key: list(numbers) for key in KEYS}


@pytest.mark.conformance("RES-01", "DIS-09")
def test_batch_and_stream_are_placed_again_when_the_count_changes_while_their_tasks_stage(lab: Lab) -> None:
    lab.create("inbox")
    orders = lab.create("orders", 4)
    publish(lab, "orders", 0)
    given = [(key, f"{number}/{key}".encode()) for key in sorted(KEYS) for number in (1, 2, 3)]
    rows = lab.spark.createDataFrame(given, "key string, value binary").coalesce(2)  # a task has half of the keys
    through = resizing(lab, "orders", {1: 8, 2: 3}, lab.folder / "marks")
    lab.append(through(rows), "orders", txnAppId="nightly", txnVersion="1")
    assert [layout.partitions for layout in orders.describe().layouts] == [4, 3], "the count between has no messages"
    assert stored_order(lab, "orders") == all_in_order(0, 1, 2, 3)
    before = lab.head("orders")
    lab.append(rows, "orders", txnAppId="nightly", txnVersion="1")  # again, for the new count
    assert lab.head("orders") == before

    publish(lab, "inbox", 4, 5, 6)
    through = resizing(lab, "orders", {4: 8, 5: 3, 6: 16}, lab.folder / "marks")
    stream = through(lab.stream("inbox", **EVERYTHING, maxMessagesPerTrigger=str(len(KEYS))))
    ended(lab.publisher(stream, "orders", "copy"))
    assert stored_order(lab, "orders") == all_in_order(*range(7))
    orders.alter(partitions=5)
    lab.consumer("copy").forget_commit()
    publish(lab, "inbox", 7)
    ended(lab.publisher(stream, "orders", "copy"))
    assert stored_order(lab, "orders") == all_in_order(*range(8))
