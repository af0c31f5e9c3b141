"""Which partition a message goes to, in which order it comes out, and that a publish is seen whole or not at all."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from partq_spark.base.errors import PartqError
from tests.support.spark import Lab, ended, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

LIMIT = "at most 255 are allowed"


def keyed(lab: Lab, rows: Sequence[tuple[str | None, str]]) -> DataFrame:
    return lab.spark.createDataFrame(list(rows), "key string, value string")


def some_keys() -> list[str]:
    """Empty, one byte, 255 bytes of one and of three bytes a character, CJK, emoji, zero bytes; and random ones."""
    chosen = ["", "a", "x" * 255, "分" * 85, "订单-42", "🚚", "\0", "a\0b", "ä", "A", " ", "\n"]
    dice = random.Random(1)
    alphabet = "abcXYZ019 äöß分区订单🚚"
    return chosen + ["".join(dice.choices(alphabet, k=dice.randint(1, 60))) for _ in range(1000)]


@pytest.mark.conformance("DIS-01")
@pytest.mark.parametrize("partitions", [1, 7, 1000])
def test_the_partition_is_what_spark_sql_says_itself(lab: Lab, partitions: int) -> None:
    keys = some_keys()
    lab.create("orders", partitions)
    lab.append(keyed(lab, [(key, str(number)) for number, key in enumerate(keys)]), "orders")
    said = f.pmod(f.xxhash64("key"), f.lit(partitions)).cast("int")
    rows = lab.read("orders").select("key", "partition", said.alias("said")).collect()
    assert sorted(row.key for row in rows) == sorted(keys)
    assert [row for row in rows if row.partition != row.said] == []


def assert_in_order(rows: Iterable[Row], published: dict[str, list[bytes]]) -> None:
    """Every key in one partition, its messages in the order in which they were published; offsets rise."""
    homes: dict[str, set[int]] = defaultdict(set)
    found: dict[str, list[bytes]] = defaultdict(list)
    last: dict[int, int] = {}
    for row in rows:
        homes[row.key].add(row.partition)
        found[row.key].append(bytes(row.value))
        assert row.offset == last.get(row.partition, -1) + 1
        last[row.partition] = row.offset
    assert found == published
    assert all(len(partitions) == 1 for partitions in homes.values())


@pytest.mark.conformance("DIS-02")
def test_each_key_has_one_partition_and_its_publish_order_in_batch_and_in_stream(lab: Lab) -> None:
    """Published by Spark and otherwise, from several tasks of which one has all of a key, in several publishes."""
    lab.create("orders", 5)
    published: dict[str, list[bytes]] = defaultdict(list)
    consumer = lab.consumer()
    stream = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="70")
    for publish in range(3):
        rows = [(f"key {number % 13}", f"{publish}/{number:03}") for number in range(100)]
        for key, value in rows:
            published[key].append(value.encode())
        if publish == 1:
            lab.publish("orders", [(key, value.encode()) for key, value in rows])
        else:
            tasks = keyed(lab, rows).repartition(3, "key").sortWithinPartitions("value")
            lab.append(tasks, "orders")
        consumer.run(stream)
    assert_in_order(consumer.rows, published)
    assert_in_order(sorted(lab.read("orders").collect(), key=lambda row: (row.partition, row.offset)), published)
    # A task yields each partition in the order of its offsets, so a batch read that keeps tasks apart is in order too.
    for task in lab.read("orders").rdd.glom().collect():
        for partition in {row.partition for row in task}:
            offsets = [row.offset for row in task if row.partition == partition]
            assert offsets == sorted(offsets)


@pytest.mark.conformance("DIS-03")
def test_messages_without_a_key_spread_and_the_empty_key_does_not(lab: Lab) -> None:
    lab.create("orders", 10)
    rows = lab.spark.range(4000).selectExpr("cast(null as string) key", "cast(id as string) value")
    lab.append(rows.repartition(4), "orders")
    counts = Counter(row.partition for row in lab.read("orders").select("partition").collect())
    assert set(counts) == set(range(10))
    assert all(300 <= count <= 500 for count in counts.values()), counts  # 400 ± 5 standard deviations

    lab.create("empties", 10)
    lab.append(keyed(lab, [("", str(number)) for number in range(50)]), "empties")
    assert len({row.partition for row in lab.read("empties").collect()}) == 1
    assert {row.key for row in lab.read("empties").collect()} == {""}


@pytest.mark.conformance("DIS-03")
def test_a_retried_task_puts_messages_without_a_key_where_its_first_attempt_did(lab: Lab) -> None:
    """Task 1 fails once, when the sink has taken some of its rows already."""
    flag = str(lab.folder / "failed-once")

    def stumble(value: str) -> str:
        if value == "00085":
            try:
                Path(flag).open("x").close()
            except FileExistsError:
                return value
            raise RuntimeError("this task fails once")
        return value

    session = lab.spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    ids = session.range(0, 200, 1, numPartitions=2).selectExpr(
        "cast(if(id % 2 = 0, null, id) as string) key", "lpad(cast(id as string), 5, '0') value"
    )
    stumbling = ids.withColumn("value", f.udf(stumble, StringType(), useArrow=False)("value"))
    places = {}
    for queue, rows in (("smooth", ids), ("stumbling", stumbling)):
        lab.create(queue, 8)
        lab.append(rows, queue, txnAppId="nightly", txnVersion="1")
        places[queue] = {bytes(row.value): (row.partition, row.offset) for row in lab.read(queue).collect()}
    assert Path(flag).exists(), "no task failed"
    assert places["stumbling"] == places["smooth"]
    assert len(places["smooth"]) == 200
    assert lab.head("stumbling").messages == 200


@pytest.mark.conformance("DIS-04")
@pytest.mark.parametrize(("key", "size"), [("x" * 256, 256), ("分" * 86, 258)], ids=["ascii", "cjk"])
def test_a_key_of_more_than_255_bytes_is_refused_and_nothing_of_its_batch_is_published(
    lab: Lab, key: str, size: int
) -> None:
    lab.create("orders", 4)
    before = lab.head("orders")
    rows = keyed(lab, [("fine", "1"), ("x" * 255, "2"), (key, "3"), ("fine", "4")]).repartition(2)
    with pytest.raises(Exception, match=LIMIT) as caught:
        lab.append(rows, "orders")
    assert f"has {size} bytes" in str(caught.value)
    assert key[:40] in str(caught.value)
    assert lab.head("orders") == before

    if key.isascii():
        return  # the stream needs no second key to show the same
    rows.write.parquet(str(lab.folder / "rows"))
    stream = lab.spark.readStream.schema(rows.schema).parquet(str(lab.folder / "rows"))
    assert LIMIT in failure(lab.publisher(stream, "orders", "publisher"))
    assert lab.head("orders") == before


@pytest.mark.conformance("DIS-04")
def test_a_key_of_exactly_255_bytes_is_published(lab: Lab) -> None:
    lab.create("orders", 4)
    keys = ["x" * 255, "分" * 85]
    lab.append(keyed(lab, [(key, "v") for key in keys]), "orders")
    assert sorted(row.key for row in lab.read("orders").collect()) == sorted(keys)


@pytest.mark.conformance("DIS-05")
@pytest.mark.conformance("CHK-07")
def test_queries_without_a_group_are_one_flow_each_over_all_partitions_and_write_nothing_to_the_store(lab: Lab) -> None:
    """Two such queries each receive everything; within a query a partition is read by one task at a time."""
    lab.create("orders", 6)
    for publish in range(2):
        lab.publish("orders", [(f"k{n}", b"%d/%d" % (publish, n)) for n in range(600)])
    before = lab.objects("orders")
    first, second = lab.consumer("first"), lab.consumer("second")
    tasks = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="700").withColumn(
        "task", f.spark_partition_id()
    )
    queries = [first.start(tasks, available_now=True), second.start(tasks, available_now=True)]
    for query in queries:
        ended(query)
    for consumer in (first, second):
        assert consumer.sizes == [700, 500]
        assert sorted(consumer.values) == sorted(message.value for message in lab.browse("orders"))
        for _, rows in consumer.batches:
            readers = defaultdict(set)
            for row in rows:
                readers[row.partition].add(row.task)
            assert set(readers) <= set(range(6))
            assert all(len(each) == 1 for each in readers.values())
    assert lab.objects("orders") == before
    assert {name.partition("/")[0] for name in before} == {"_head.json", "_segments"}


@pytest.mark.conformance("DIS-06")
def test_one_query_text_serves_one_partition_and_a_thousand(lab: Lab) -> None:
    def consume(queue: str) -> tuple[list[bytes], list[bytes]]:
        consumer = lab.consumer(f"consumer of {queue}")
        consumer.run(lab.stream(queue, startingOffsets="earliest"))
        return sorted(consumer.values), sorted(bytes(row.value) for row in lab.read(queue).collect())

    messages = [(f"k{n}", b"%05d" % n) for n in range(3000)]
    wanted = [value for _, value in messages]
    for queue, partitions in (("narrow", 1), ("wide", 1000)):
        lab.create(queue, partitions)
        lab.publish(queue, messages)
        assert consume(queue) == (wanted, wanted)
    assert len({message.partition for message in lab.browse("wide")}) > 900


@pytest.mark.conformance("DIS-08")
def test_no_reader_ever_sees_a_part_of_a_publish(lab: Lab) -> None:
    """A stream and batch reads look while another thread publishes, each time a message to each of many partitions."""
    partitions, most = 40, 2_000
    lab.create("orders", partitions)
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < partitions:  # one key for each partition
        keys.setdefault(hash_partition(f"k{number}", partitions), f"k{number}")
        number += 1
    stop = threading.Event()
    published: list[int] = []
    problems: list[BaseException] = []

    def publish() -> None:
        try:
            for publish in range(most):
                lab.publish("orders", [(key, b"%d" % publish) for key in keys.values()], segments=3)
                published.append(publish)
                if stop.wait(0.02):
                    return
        except (PartqError, OSError) as error:
            problems.append(error)

    def whole(rows: Iterable[Row]) -> int:
        seen = Counter(int(row.value) for row in rows)
        assert set(seen.values()) <= {partitions}
        return len(seen)

    consumer = lab.consumer()
    query = consumer.start(lab.stream("orders", startingOffsets="earliest").select("value", "partition"))
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        looks: list[int] = []
        while len({look for look in looks if look}) < 3 or len(consumer.sizes) < 3:  # both looked in between
            assert thread.is_alive(), (
                f"after {most} publishes: batch reads {looks}, stream {consumer.sizes}; {problems}"
            )
            looks.append(whole(lab.read("orders").select("value").collect()))
        stop.set()
        thread.join()
        wait_until(lambda: len(consumer.rows) >= partitions * len(published), "last publish")
    finally:
        stop.set()
        thread.join()
        query.stop()
    assert problems == []
    assert looks == sorted(looks)
    assert sum(whole(rows) for _, rows in consumer.batches) == len(published)


def hash_partition(key: str, partitions: int) -> int:
    from partq_spark.log.partitioner import partition_of

    return partition_of(key.encode(), partitions)
