"""Which partition a message goes to, that a publish is seen whole or not at all, and what a query may count on whatever
the partitions are.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from tests.support.spark import Lab, ended
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

EVERYTHING = {"startingOffsets": "earliest"}


def keyed(lab: Lab, rows: Sequence[tuple[str | None, str]]) -> DataFrame:
    return lab.spark.createDataFrame(list(rows), "key string, value string")


def some_keys() -> list[str]:
    """Empty, one byte, 255 bytes of one and of three bytes a character, CJK, emoji, zero bytes; and random ones."""
    chosen = ["", "a", "x" * 255, "分" * 85, "订单-42", "🚚", "\0", "a\0b", "ä", "A", " ", "\n"]
    dice = random.Random(1)
    alphabet = "abcXYZ019 äöß分区订单🚚"
    return chosen + ["".join(dice.choices(alphabet, k=dice.randint(1, 60))) for _ in range(1000)]


@pytest.mark.conformance("DIS-01", "DIS-06")
def test_the_partition_is_what_spark_sql_says_and_one_query_text_serves_any_number_of_them(lab: Lab) -> None:
    keys = some_keys()
    for partitions in (1, 7, 1000):
        name = f"orders-{partitions}"
        lab.create(name, partitions)
        lab.append(keyed(lab, [(key, str(number)) for number, key in enumerate(keys)]), name)
        said = f.pmod(f.xxhash64("key"), f.lit(partitions)).cast("int")
        rows = lab.read(name).select("key", "value", "partition", said.alias("said")).collect()
        assert sorted(row.key for row in rows) == sorted(keys)
        assert [row for row in rows if row.partition != row.said] == []
        consumer = lab.consumer(f"consumer of {name}")
        consumer.run(lab.stream(name, **EVERYTHING))
        assert sorted(consumer.values) == sorted(bytes(row.value) for row in rows)
        assert len({row.partition for row in rows}) >= partitions / 2


@pytest.mark.conformance("DIS-05", "CHK-07")
def test_queries_without_a_group_are_one_flow_each_over_all_partitions_and_write_nothing_to_the_store(lab: Lab) -> None:
    """Two such queries each receive everything, and so does a group; within one a partition is read by one task."""
    lab.create("orders", 6)
    for publish in range(2):
        lab.publish("orders", [(f"k{n}", b"%d/%d" % (publish, n)) for n in range(600)])
    grouped = lab.consumer("grouped")
    grouped.run(lab.stream("orders", **EVERYTHING, group="billing", ownership="none"))
    objects, head = lab.objects("orders"), lab.head("orders")
    checkpoints = lab.queue("orders").checkpoints("billing")
    first, second = lab.consumer("first"), lab.consumer("second")
    stream = lab.stream("orders", **EVERYTHING, maxMessagesPerTrigger="700")
    tasks = stream.withColumn("task", f.spark_partition_id())
    for query in [first.start(tasks, available_now=True), second.start(tasks, available_now=True)]:
        ended(query)
    for consumer in (first, second):
        assert consumer.sizes == [700, 500]
        assert sorted(consumer.values) == sorted(message.value for message in lab.browse("orders"))
        for _, rows in consumer.batches:
            tasks_of = defaultdict(set)
            for row in rows:
                tasks_of[row.partition].add(row.task)
            assert all(len(each) == 1 for each in tasks_of.values())
    assert (lab.objects("orders"), lab.head("orders")) == (objects, head)
    assert lab.queue("orders").checkpoints("billing") == checkpoints


@pytest.mark.conformance("DIS-08")
def test_no_reader_ever_sees_a_part_of_a_publish(lab: Lab) -> None:
    """A stream and batch reads look while a query publishes, each time by several tasks to many partitions."""
    size = 400
    lab.create("orders", 40)
    rate = lab.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=size, numPartitions=3).load()
    rows = rate.selectExpr("cast(value % 97 as string) key", "cast(value as string) value")
    sink = rows.writeStream.format("partq").options(store=lab.url, queue="orders")
    publisher = sink.option("checkpointLocation", str(lab.folder / "publisher")).start()
    consumer = lab.consumer()
    reader = consumer.start(lab.stream("orders", **EVERYTHING).select("value", "partition"))

    def whole(rows: Iterable[Row]) -> int:
        seen = Counter(int(row.value) // size for row in rows)
        assert set(seen.values()) <= {size}
        return len(seen)

    looks: list[int] = []

    def look() -> bool:
        assert publisher.exception() is None
        looks.append(whole(lab.read("orders").select("value").collect()))
        return len(set(looks)) > 4

    wait_until(look, "several publishes")
    publisher.stop()
    wait_until(lambda: len(consumer.rows) == len(lab.browse("orders")), "the last publish")
    reader.stop()
    assert looks == sorted(looks)
    assert sum(whole(rows) for _, rows in consumer.batches) * size == len(lab.browse("orders"))
