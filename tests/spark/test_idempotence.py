"""A batch that Spark repeats is published once, however it is repeated; and nobody's batches are dropped silently."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import partq
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
    write(5, "b", "a")
    write(5, "b")
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


# --- numbers that come again for other rows (DIS-10) ------------------------------------------------------------------

Start = Callable[[], StreamingQuery]


def copying(lab: Lab, kind: str) -> Start:
    """A copy of the inbox into `orders`, ten messages at a time: by the sink, or by a batch write in `foreachBatch`."""
    lab.create("inbox", 1)
    if kind == "typed":
        lab.create_typed("orders", "key STRING, value BINARY", "key", 3)
    else:
        lab.create("orders", 3)

    def forward(batch: DataFrame, batch_id: int) -> None:
        lab.append(batch.select("key", "value"), "orders", txnAppId="forwarder", txnVersion=str(batch_id))

    def start() -> StreamingQuery:
        stream = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="10").select("key", "value")
        if kind != "foreachBatch":
            return lab.publisher(stream, "orders", "copy")
        writer = stream.writeStream.foreachBatch(forward).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(lab.folder / "copy")).start()

    return start


def fill(lab: Lab, first: int, end: int) -> None:
    lab.publish("inbox", [(f"k{n % 4}" if n % 3 else None, b"%d" % n) for n in range(first, end)])


def values(lab: Lab) -> list[int]:
    return sorted(int(row.value) for row in lab.read("orders").select("value").collect())


def writer(lab: Lab) -> str:
    (name,) = lab.head("orders").writers
    return name.removeprefix("txnAppId:")


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("kind", ["untyped", "typed", "foreachBatch"])
def test_an_older_spark_checkpoint_drops_nothing(lab: Lab, kind: str) -> None:
    """The messages of its batch numbers have become others meanwhile; a person says that these are new."""
    start, kept, used = copying(lab, kind), lab.folder / "kept", lab.folder / "copy"
    fill(lab, 0, 15)
    ended(start())
    shutil.copytree(used, kept)
    fill(lab, 15, 40)
    ended(start())
    head = lab.head("orders")
    shutil.rmtree(used)
    kept.rename(used)
    fill(lab, 40, 45)  # the older query's third batch is [15, 25) now, and the numbers go up to the fourth

    said = failure(start())
    assert "was refused and nothing of it was published" in said
    assert "an older Spark checkpoint" in said
    assert f"--writer {writer(lab)} " in said
    assert lab.head("orders") == head
    orders = partq.open_queue("orders", store=lab.url)
    batch = int(said.split("--batch ")[1].split()[0])
    orders.resolve(writer=writer(lab), batch=batch, published=False)
    ended(start())
    assert [*dict.fromkeys(values(lab))] == [*range(45)], (
        "nothing is lost, and what the sink had is there twice at most"
    )
    before = lab.head("orders")
    lab.consumer("copy").forget_commit()
    ended(start())
    assert lab.head("orders") == before, "exactly once from then on"
    (resolution,) = orders.describe().resolutions
    assert (resolution.batch, resolution.published) == (batch, False)


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("published", [True, False])
def test_a_spark_log_that_lost_its_last_entry_drops_nothing(lab: Lab, published: bool) -> None:
    """As after a power cut. Spark plans the batch anew: the same rows are a repetition, and more are not."""
    start = copying(lab, "untyped")
    fill(lab, 0, 6)
    ended(start())
    cut(lab)
    ended(start())
    assert values(lab) == [*range(6)], "a repetition"

    cut(lab)
    fill(lab, 6, 9)
    said = failure(start())
    assert "value=b'6'" in said.split("First such row: ")[1][:40]
    assert values(lab) == [*range(6)]
    orders = partq.open_queue("orders", store=lab.url)
    orders.resolve(writer=writer(lab), batch=0 if published else last(lab), published=published)
    ended(start())
    assert values(lab) == ([*range(6)] if published else [*sorted([*range(6), *range(9)])])
    fill(lab, 9, 11)
    ended(start())
    assert values(lab)[-2:] == [9, 10]


def last(lab: Lab) -> int:
    return lab.consumer("copy").log_files("offsets")[-1]


def cut(lab: Lab) -> None:
    """The last entry of both of Spark's logs is gone."""
    number = last(lab)
    for kind in ("offsets", "commits"):
        for path in (lab.folder / "copy" / kind).iterdir():
            if path.name in (str(number), f".{number}.crc"):
                path.unlink()


@pytest.mark.conformance("DIS-10")
def test_two_writes_of_one_call_under_one_application_id_are_refused_and_lose_nothing(lab: Lab) -> None:
    lab.create("orders", 2)
    lab.create("inbox", 1)
    lab.publish("inbox", [("k", b"%d" % n) for n in range(10)])

    def split(batch: DataFrame, batch_id: int) -> None:
        for rest in (0, 1):
            rows = batch.select("key", "value").where(f"CAST(CAST(value AS STRING) AS INT) % 2 = {rest}")
            lab.append(rows, "orders", txnAppId="split", txnVersion=str(batch_id))

    writer = lab.stream("inbox", startingOffsets="earliest").writeStream.foreachBatch(split).trigger(availableNow=True)
    said = failure(writer.option("checkpointLocation", str(lab.folder / "split")).start())
    assert "a second write to this queue under one txnAppId" in said
    assert values(lab) == [0, 2, 4, 6, 8]


def test_spark_refuses_asynchronous_progress_tracking_here(lab: Lab) -> None:
    """It would repeat batches other than the last: their numbers come again, and all of them would be refused."""
    lab.create("inbox", 1)
    lab.create("orders", 1)
    stream = lab.stream("inbox", startingOffsets="earliest").select("key", "value")
    query = stream.writeStream.format("partq").options(store=lab.url, queue="orders", asyncProgressTrackingEnabled=True)
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        query.option("checkpointLocation", str(lab.folder / "async")).start()
