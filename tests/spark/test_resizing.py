"""Queues whose partition count changes under real sinks and under streams without a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from partq_spark.log import admin
from partq_spark.log.partitioner import partition_of
from tests.support.spark import Consumer, Lab, ended
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

KEYS = [f"key{number}" for number in range(16)]


def publish(lab: Lab, name: str, *numbers: int) -> None:
    """One message of every key for each number."""
    for number in numbers:
        lab.publish(name, [(key, f"{number}/{key}".encode()) for key in KEYS])


def resize(lab: Lab, name: str, partitions: int) -> None:
    admin.alter_queue(lab.queue(name), partitions=partitions)


def resizing(lab: Lab, name: str, counts: dict[int, int], marks: Path) -> Callable[[DataFrame], DataFrame]:
    """Rows as they are; the task that meets the message with one of these numbers changes the count, once, while it
    stages: when the driver swaps, the queue has another layout than the one that was staged for.
    """
    url = lab.url

    def alter(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fcntl

        from partq_spark.log.admin import alter_queue
        from partq_spark.log.queue import QueueLog
        from partq_spark.objects import open_store

        for batch in batches:
            for value in batch.column("value").to_pylist():
                number = int(bytes(value).split(b"/")[0])
                if number not in counts:
                    continue
                with (marks / "lock").open("ab") as lock:  # another task has the same numbers, and they have an order
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not (marks / str(number)).exists():
                        alter_queue(QueueLog(open_store(url), "default", name), partitions=counts[number])
                        (marks / str(number)).touch()
            yield batch

    marks.mkdir(exist_ok=True)
    return lambda rows: rows.select("key", "value").mapInArrow(alter, "key string, value binary")


def rows_of(lab: Lab, *numbers: int) -> DataFrame:
    """A batch of one message of every key for each number, in two tasks that have half of the keys each."""
    given = [(key, f"{number}/{key}".encode()) for key in sorted(KEYS) for number in numbers]
    return lab.spark.createDataFrame(given, "key string, value binary").coalesce(2)


def stored_order(lab: Lab, name: str) -> dict[str, list[int]]:
    """Of every key the numbers of its messages, layout after layout; each message must lie where its layout says."""
    head = lab.head(name)
    found: dict[str, list[tuple[int, int, int]]] = {key: [] for key in KEYS}
    for message in lab.browse(name):
        number, key = message.value.decode().split("/")
        layouts = [
            index
            for index, layout in enumerate(head.layouts)
            if message.partition < layout.partitions and message.offset >= layout.begin[message.partition]
        ]
        assert message.partition == partition_of(key.encode(), head.layouts[layouts[-1]].partitions)
        found[key].append((layouts[-1], message.offset, int(number)))
    return {key: [number for _, _, number in sorted(places)] for key, places in found.items()}


def delivered_order(consumer: Consumer) -> dict[str, list[int]]:
    """Of every key the numbers of its messages in the order in which they were processed. Within a batch partitions run
    side by side, so a key in two of them has no order.
    """
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for _, rows in consumer.batches:
        for key in KEYS:
            mine = sorted((row for row in rows if row.key == key), key=_offset)
            assert len({row.partition for row in mine}) <= 1, f"{key} is in several partitions of one batch"
            found[key] += [int(bytes(row.value).split(b"/")[0]) for row in mine]
    return found


def _offset(row: Row) -> int:
    offset: int = row.offset
    return offset


def all_in_order(*numbers: int) -> dict[str, list[int]]:
    return {key: list(numbers) for key in KEYS}


# --- sinks ------------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-01")
def test_a_batch_write_is_placed_again_when_the_count_changes_while_its_tasks_stage(lab: Lab) -> None:
    lab.create("orders", 4)
    publish(lab, "orders", 0)
    through = resizing(lab, "orders", {1: 8, 2: 3}, lab.folder / "marks")
    lab.append(through(rows_of(lab, 1, 2, 3)), "orders", txnAppId="nightly", txnVersion="1")
    head = lab.head("orders")
    assert [layout.partitions for layout in head.layouts] == [4, 3], "the count between has no messages"
    assert head.layout.generation == 2
    assert stored_order(lab, "orders") == all_in_order(0, 1, 2, 3)
    lab.append(rows_of(lab, 1, 2, 3), "orders", txnAppId="nightly", txnVersion="1")  # again, for the new count
    assert lab.head("orders") == head


@pytest.mark.conformance("RES-01")
@pytest.mark.conformance("DIS-09")
def test_a_stream_publishes_each_batch_once_over_changes_and_repetitions(lab: Lab) -> None:
    """Every micro-batch changes the count of the queue that it publishes to."""
    lab.create("inbox", 1)
    lab.create("orders", 4)
    publish(lab, "inbox", 0, 1, 2)
    through = resizing(lab, "orders", {0: 8, 1: 3, 2: 16}, lab.folder / "marks")
    stream = through(lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger=str(len(KEYS))))
    ended(lab.publisher(stream, "orders", "copy"))
    head = lab.head("orders")
    assert (head.partitions, head.layout.generation) == (16, 3)
    assert [entry.batch for entry in head.entries] == [0, 1, 2]
    assert stored_order(lab, "orders") == all_in_order(0, 1, 2)

    resize(lab, "orders", 5)
    lab.consumer("copy").forget_commit()
    publish(lab, "inbox", 3)
    ended(lab.publisher(stream, "orders", "copy"))
    assert stored_order(lab, "orders") == all_in_order(0, 1, 2, 3)


# --- streams without a group ------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-01")
@pytest.mark.conformance("RES-03")
def test_a_running_stream_keeps_every_key_in_order_from_4_to_8_to_3(lab: Lab) -> None:
    lab.create("orders", 4)
    publish(lab, "orders", 0, 1)
    consumer = lab.consumer()
    query = consumer.start(lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="24"))

    def delivered(messages: int) -> Callable[[], bool]:
        return lambda: query.exception() is None and len(consumer.rows) >= messages

    wait_until(delivered(1), "delivery")
    for count, first in ((8, 2), (3, 4)):
        resize(lab, "orders", count)
        publish(lab, "orders", first, first + 1)
        wait_until(delivered(first * len(KEYS)), f"message of {count} partitions")
    resize(lab, "orders", 4)  # 3 was removed, and is back
    publish(lab, "orders", 6)
    wait_until(delivered(7 * len(KEYS)), "end of everything")
    query.stop()
    assert delivered_order(consumer) == all_in_order(*range(7))
    assert all(rows for _, rows in consumer.batches), "no batch was empty"


@pytest.mark.conformance("RES-02")
@pytest.mark.conformance("RES-03")
def test_available_now_reads_over_counts_in_several_batches_and_goes_on_after_a_restart(lab: Lab) -> None:
    lab.create("orders", 4)
    for number, count in enumerate((4, 8, 3)):
        resize(lab, "orders", count)
        publish(lab, "orders", number)
    consumer = lab.consumer()
    consumer.run(lab.stream("orders", startingOffsets="earliest"))
    assert delivered_order(consumer) == all_in_order(0, 1, 2)
    assert len(consumer.sizes) == 3, "one batch for each count"

    resize(lab, "orders", 16)
    publish(lab, "orders", 3)
    consumer.failing = lambda _: True  # a batch that fails is repeated as it was
    query = consumer.start(lab.stream("orders"), available_now=True)
    wait_until(lambda: query.exception() is not None, "failure")
    resize(lab, "orders", 6)
    publish(lab, "orders", 4)
    consumer.failing = lambda _: False
    consumer.run(lab.stream("orders"))
    assert delivered_order(consumer) == all_in_order(0, 1, 2, 3, 4)


def test_a_batch_read_has_everything_of_all_counts_at_once(lab: Lab) -> None:
    lab.create("orders", 4)
    for number, count in enumerate((4, 2, 5)):
        resize(lab, "orders", count)
        publish(lab, "orders", number)
    rows = lab.read("orders").collect()
    assert len(rows) == 3 * len(KEYS)
    assert {row.partition for row in rows} <= set(range(5))
    starts = ", ".join(f'"{partition}": {0}' for partition in range(5))
    assert lab.read("orders", startingOffsets="{" + starts + "}").count() == len(rows)


@pytest.mark.conformance("RES-03")
def test_a_copy_from_queue_to_queue_stays_exactly_once_and_in_order_while_both_change(lab: Lab) -> None:
    lab.create("inbox", 4)
    lab.create("orders", 4)
    stream = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="20").select("key", "value")
    for number, (before, after) in enumerate(((4, 6), (8, 5), (3, 7))):
        resize(lab, "inbox", before)
        publish(lab, "inbox", 2 * number, 2 * number + 1)
        ended(lab.publisher(stream, "orders", "copy"))
        lab.consumer("copy").forget_commit()  # as if the driver had died just before it
        resize(lab, "orders", after)
    ended(lab.publisher(stream, "orders", "copy"))
    assert stored_order(lab, "orders") == all_in_order(*range(6))
