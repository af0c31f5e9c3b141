"""Streams from a queue: where they begin, how much a micro-batch takes, what a restart reads, what idling costs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from partq_spark.base.timestamps import format_rfc3339
from partq_spark.log import admin
from tests.support.processes import readers_among
from tests.support.spark import Lab, counts, ended, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


def values(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# --- where a stream begins --------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_unless_told_otherwise_and_goes_on_from_its_checkpoint(lab: Lab) -> None:
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"0"), ("b", b"1")])
    consumer = lab.consumer()
    assert consumer.run(lab.stream("orders")) == []
    assert consumer.log_files("offsets") == [0], "the position is fixed by one empty batch"
    lab.publish("orders", [("a", b"2"), ("b", b"3")])
    # Where a checkpoint exists, startingOffsets says nothing.
    consumer.run(lab.stream("orders", startingOffsets="earliest"))
    assert sorted(consumer.values) == values(2, 3)
    consumer.run(lab.stream("orders"))
    assert sorted(consumer.values) == values(2, 3)
    assert consumer.log_files("offsets") == [0, 1]


def test_a_stream_begins_where_it_is_told(lab: Lab) -> None:
    lab.create("orders", 1)
    times = [lab.publish("orders", [(None, b"%d" % n), (None, b"%d" % (n + 1))]).time_us for n in (0, 2, 4)]

    def first(**options: str) -> list[bytes]:
        consumer = lab.consumer("from " + "".join(options.values()).replace(":", "_"))
        consumer.run(lab.stream("orders", **options))
        return consumer.values

    assert first(startingOffsets="earliest") == values(0, 1, 2, 3, 4, 5)
    assert first(startingOffsets='{"0": 3}') == values(3, 4, 5)
    assert first(startingTimestamp=format_rfc3339(times[1])) == values(2, 3, 4, 5)
    assert first(startingTimestamp=format_rfc3339(times[1] + 1)) == values(4, 5)
    assert first(startingTimestamp="1999-12-31T23:59:59-05:00") == values(0, 1, 2, 3, 4, 5)
    assert first(startingTimestamp="2999-01-01T00:00:00Z") == []


def test_rows_are_what_was_published(lab: Lab) -> None:
    lab.create("orders", 3)
    published = lab.publish("orders", [("a", b"\x00\xff"), (None, b""), ("", "größe".encode())])
    (delivered,) = (lab.consumer().run(lab.stream("orders", startingOffsets="earliest")),)
    # Spark gives naive times of this process's zone.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=published.time_us)
    for row in delivered:
        assert (row.queue, row.redelivered) == ("orders", False)
        assert row.timestamp.astimezone(UTC) == moment
    found = {(row.key, bytes(row.value), row.partition, row.offset) for row in delivered}
    assert found == {(each.key, each.value, each.partition, each.offset) for each in lab.browse("orders")}
    assert lab.stream("orders").dtypes == [
        ("key", "string"),
        ("value", "binary"),
        ("queue", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("redelivered", "boolean"),
    ]


# --- how much a micro-batch takes -------------------------------------------------------------------------------------


def test_available_now_reads_in_batches_within_the_limit_what_was_there_when_it_began(lab: Lab) -> None:
    lab.create("orders", 4)
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(250)])
    lab.publish("orders", [("one key", b"%d" % n) for n in range(250, 400)])
    consumer = lab.consumer()

    def publish_more(batch_id: int) -> bool:
        lab.publish("orders", [("late", b"late")])
        return False

    consumer.failing = publish_more
    stream = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="120")
    consumer.run(stream)
    assert consumer.sizes == [120, 120, 120, 40]
    assert sorted(consumer.values, key=int) == values(*range(400))
    # Split over the partitions by backlog: none waits while others are read.
    assert set(counts(consumer.batches[0][1])) == {0, 1, 2, 3}
    consumer.failing = lambda _batch_id: False
    assert [bytes(row.value) for row in consumer.run(stream)] == [b"late"] * 4


def test_both_limits_hold_together(lab: Lab) -> None:
    lab.create("orders", 2)
    for publish in range(20):
        lab.publish(
            "orders", [(f"k{n}", b"%02d%02d" % (publish, n) + bytes(996)) for n in range(10)], compression="none"
        )
    wanted = sorted(message.value for message in lab.browse("orders"))

    def sizes(**limits: str) -> list[int]:
        consumer = lab.consumer("_".join(limits.values()))
        consumer.run(lab.stream("orders", startingOffsets="earliest", **limits))
        assert sorted(consumer.values) == wanted
        return consumer.sizes

    by_bytes = sizes(maxBytesPerTrigger="50k")
    assert all(30 <= size <= 51 for size in by_bytes[:-1]), by_bytes
    assert max(sizes(maxBytesPerTrigger="50k", maxMessagesPerTrigger="150")) <= 51
    assert sizes(maxBytesPerTrigger="10m", maxMessagesPerTrigger="150") == [150, 50]
    consumer = lab.consumer("tiny")  # a limit that no message fits into still makes progress
    query = consumer.start(lab.stream("orders", startingOffsets="earliest", maxBytesPerTrigger="1"))
    wait_until(lambda: len(consumer.rows) >= 3, "progress under a tiny limit")
    query.stop()
    assert set(consumer.sizes) == {1}


def test_trigger_once_reads_everything_whatever_the_limits(lab: Lab) -> None:
    """Spark asks with ReadAllAvailable (spark-traps.md 13)."""
    lab.create("orders", 2)
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(100)])
    consumer = lab.consumer()
    limited = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="7", maxBytesPerTrigger="10")
    ended(consumer.start(limited, once=True))
    assert consumer.sizes == [100]
    bounded = lab.consumer("bounded")  # but for what may be in hand at once
    stream = lab.stream("orders", startingOffsets="earliest", maxDeliveredUnackedMsgsPerFlow="40")
    ended(bounded.start(stream, once=True))
    assert bounded.sizes == [40]
    bounded.run(stream)
    assert bounded.sizes == [40, 40, 20]


# --- what a restart reads ---------------------------------------------------------------------------------------------


def test_a_batch_that_did_not_finish_is_delivered_again_with_the_same_rows(lab: Lab) -> None:
    """Whatever was published meanwhile, and whatever the options say now."""
    lab.create("orders", 3)
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(90)])
    consumer = lab.consumer()
    stream = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="40")
    failed: list[int] = []

    def third_fails_once(batch_id: int) -> bool:
        if batch_id == 2 and not failed:
            failed.append(batch_id)
            return True
        return False

    consumer.failing = third_fails_once
    assert "batch 2 fails on purpose" in failure(consumer.start(stream, available_now=True))
    assert consumer.sizes == [40, 40]
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(90, 200)])
    consumer.run(lab.stream("orders", maxMessagesPerTrigger="5000"))
    assert consumer.sizes == [40, 40, 10, 110]
    assert sorted(consumer.values, key=int) == values(*range(200))

    last = consumer.forget_commit()  # it was delivered, but Spark did not note it
    before = consumer.batches[-1]
    consumer.run(stream)
    assert consumer.batches[-1] == before
    assert before[0] == last


def test_a_position_of_another_queue_is_refused(lab: Lab) -> None:
    """Of one by another name, and of one that was deleted and created again under its name."""
    lab.create("orders", 2)
    lab.create("bills", 2)
    lab.publish("orders", [("a", b"0")])
    consumer = lab.consumer()
    consumer.run(lab.stream("orders", startingOffsets="earliest"))
    assert "is another queue" in failure(consumer.start(lab.stream("bills")))

    admin.delete_queue(lab.queue("orders"))
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"1")])
    said = failure(consumer.start(lab.stream("orders")))
    assert "deleted and created again" in said
    assert "new checkpoint location" in said
    assert consumer.values == [b"0"]


def test_a_queue_that_is_replaced_under_a_waiting_query_ends_it(lab: Lab) -> None:
    """An idle query spends its time waiting for news; those of a new queue are none of its own."""
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"0")])
    consumer = lab.consumer()
    query = consumer.start(lab.stream("orders", startingOffsets="earliest", pollInterval="30s"))
    wait_until(lambda: consumer.values == [b"0"], "first message")
    time.sleep(1)  # by now it waits
    admin.delete_queue(lab.queue("orders"))
    assert "has been deleted" in failure(query)

    lab.create("bills", 1)
    other = lab.consumer("other")
    query = other.start(lab.stream("bills", startingOffsets="earliest", pollInterval="30s"))
    wait_until(lambda: other.checkpoint.joinpath("commits", "0").exists(), "first batch")
    time.sleep(1)
    replace_at_once(lab, "bills")
    assert "deleted and created again" in failure(query)
    assert other.values == []


def replace_at_once(lab: Lab, name: str) -> None:
    """Another queue with news in place of this one, at one instant: a look finds either the old or the new."""
    folder = lab.store_folder / "default"
    lab.create(f"{name}.new", 1)
    lab.publish(f"{name}.new", [("a", b"not yours")])
    head = (folder / f"{name}.new" / "_head.json").read_bytes()
    (folder / "head.tmp").write_bytes(head)
    (folder / "head.tmp").rename(folder / name / "_head.json")


# --- an idle query ----------------------------------------------------------------------------------------------------


def readers(spark: SparkSession) -> list[psutil.Process]:
    """The processes that hold a stream's reader."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return readers_among(psutil.Process(gateway.proc.pid).children(recursive=True))


def test_an_idle_query_makes_no_batches_and_hardly_any_load_and_wakes_up_at_once(lab: Lab) -> None:
    lab.create("orders", 16)
    consumer = lab.consumer()
    query = consumer.start(lab.stream("orders"))
    wait_until((consumer.checkpoint / "commits" / "0").exists, "first batch")
    processes = readers(lab.spark)
    assert processes, "the reader's process was not found"
    time.sleep(1)
    before_s = [sum(process.cpu_times()[:2]) for process in processes]
    begun_s = time.monotonic()
    time.sleep(5)
    used_s = sum(sum(process.cpu_times()[:2]) for process in processes) - sum(before_s)
    load = used_s / (time.monotonic() - begun_s)
    assert load < 0.03, f"{load:.1%} of a core"
    assert consumer.log_files("offsets") == [0]
    assert query.isActive

    begun_s = time.monotonic()
    lab.publish("orders", [("a", b"news")])
    wait_until(lambda: consumer.values == [b"news"], "news")
    assert time.monotonic() - begun_s < 10  # about 0.3 s on an idle machine
    wait_until(lambda: consumer.log_files("commits") == [0, 1], "commit")
    time.sleep(1)
    assert consumer.log_files("offsets") == [0, 1]


def test_progress_tells_ends_and_lag(lab: Lab) -> None:
    lab.create("orders", 2)
    lab.publish("orders", [(None, b"%d" % n) for n in range(100)])
    ends = lab.head("orders").next
    consumer = lab.consumer()
    query = consumer.start(
        lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="60"), available_now=True
    )
    ended(query)
    told = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]
    assert [sum(each["lag"] for each in one["partitions"].values()) for one in told][:2] == [40, 0]
    assert told[-1]["flow"] is None
    for partition in (0, 1):
        assert told[-1]["partitions"][str(partition)] == {"epoch": 0, "end": ends[partition], "lag": 0}


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_union_of_a_stream_with_itself_delivers_everything_twice(lab: Lab) -> None:
    lab.create("orders", 3)
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(30)])
    stream = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="20")
    consumer = lab.consumer()
    consumer.run(stream.union(stream))
    assert sorted(consumer.values, key=int) == sorted(values(*range(30), *range(30)), key=int)


def test_a_union_of_two_queues_keeps_their_positions_apart(lab: Lab) -> None:
    for name in ("orders", "bills"):
        lab.create(name, 2)
        lab.publish(name, [("a", name.encode())])
    consumer = lab.consumer()

    def both() -> DataFrame:
        return lab.stream("orders", startingOffsets="earliest").union(lab.stream("bills", startingOffsets="earliest"))

    consumer.run(both())
    lab.publish("bills", [("a", b"more")])
    consumer.run(both())
    assert sorted(consumer.values) == [b"bills", b"more", b"orders"]
