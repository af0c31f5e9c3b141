"""What once lost messages, or gave them out twice without a mark, with real queries: decision 0043."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, Row

from tests.spark.flows.conftest import Shared, flow_of, got
from tests.spark.flows.test_by_hand import acknowledger
from tests.support.spark import failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


@pytest.mark.conformance("SEQ-01")
def test_by_hand_two_runs_that_fail_lose_nothing(shared: Make) -> None:
    """The end of the third run's first batch was equal to its start: it idled, and went on behind its messages."""
    orders = shared(partitions=1, coordinated=False)
    options = {"ownership": "none", "ackMode": "manual", "flow": "left", "checkpointInterval": "0s"}
    consumer, query = orders.start("left", **options)
    consumer.failing = lambda batch: batch > 0
    orders.publish(*[(0, b"%d" % number) for number in range(10)])
    assert "fails on purpose" in failure(query)
    # The repetition of a failed batch is empty, and complete; what follows it fails again.
    failed = consumer.log_files("offsets")[-1]
    consumer.failing = lambda batch: batch > failed
    assert "fails on purpose" in failure(orders.restart(consumer, **options))
    failed = consumer.log_files("offsets")[-1]
    consumer.failing = lambda _batch: False
    orders.restart(consumer, **options)
    wait_until(lambda: got(consumer) == [(0, offset) for offset in range(10)], "what nobody has acknowledged")
    assert all(row.redelivered for row in consumer.rows)
    orders.publish(*[(0, b"new") for _ in range(3)])
    wait_until(lambda: got(consumer) == [(0, offset) for offset in range(13)], "what is new")
    acknowledger(orders, "left").in_hand().acknowledge({0: 13})
    wait_until(lambda: orders.offsets() == [13], "the acknowledgement")


def test_without_checkpoints_a_batch_that_failed_is_not_skipped(shared: Make) -> None:
    """The query comes back when its partitions have become nobody's; 12 of 22 messages were handled once."""
    orders = shared(partitions=2)
    options = {"checkpoints": "none"}
    consumer, query = orders.start("left", **options)
    wait_until(lambda: orders.shares() == {flow_of(consumer): 2}, "both partitions")
    consumer.failing = lambda batch: batch > 0
    orders.publish(*[(p, b"first") for p in (0, 1) for _ in range(5)])
    assert "fails on purpose" in failure(query)
    wait_until(lambda: set(orders.owners().values()) == {None}, "the expiry of the only flow")
    consumer.failing = lambda _batch: False
    orders.publish(*[(p, b"second") for p in (0, 1) for _ in range(6)])
    orders.restart(consumer, **options)
    wait_until(lambda: got(consumer) == orders.everything(), "everything, once")
    assert {row.redelivered for row in consumer.rows if row.offset < 5} == {True}


@pytest.mark.conformance("HAN-05")
def test_a_union_of_two_loads_of_one_group_reads_each_message_once_in_a_batch(shared: Make) -> None:
    """While the second load waits for its share, the first one's partitions move to it: 92 of 200 came twice."""
    orders = shared(partitions=4, handoff_s=1.0)
    orders.lab.publish(orders.name, [(f"key-{number}", b"x") for number in range(200)])
    seen: list[Row] = []

    def handle(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.select("partition", "offset", "redelivered").collect()
        assert len({(row.partition, row.offset) for row in rows}) == len(rows), "twice in one micro-batch"
        seen.extend(rows)

    checkpoint = orders.consumer("union").checkpoint
    for _ in range(3):
        union = orders.stream(flow="left").union(orders.stream(flow="right"))
        writer = union.writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert query.exception() is None
    assert {(row.partition, row.offset) for row in seen} == set(orders.everything())
    first: set[tuple[int, int]] = set()
    for row in seen:
        assert row.redelivered or (row.partition, row.offset) not in first, f"{row} came before"
        first.add((row.partition, row.offset))


@pytest.mark.conformance("HAN-03")
@pytest.mark.parametrize("ownership", ["none", "redis"])
def test_after_an_older_spark_checkpoint_what_comes_again_is_marked(shared: Make, ownership: str) -> None:
    orders = shared(partitions=1, coordinated=ownership == "redis", delay_s=6.0 if ownership == "redis" else 0.0)
    options = {"flow": "left", "checkpointInterval": "1h"} | ({"ownership": "none"} if ownership == "none" else {})
    consumer, query = orders.start("left", **options)
    orders.publish(*[(0, b"first") for _ in range(5)])
    wait_until(lambda: len(consumer.rows) == 5, "the first batch")
    wait_until(lambda: consumer.log_files("commits")[-1] == consumer.log_files("offsets")[-1], "its end")
    copy = consumer.checkpoint.with_name("copy")
    shutil.copytree(consumer.checkpoint, copy)
    orders.publish(*[(0, b"second") for _ in range(15)])
    wait_until(lambda: len(consumer.rows) == 20, "the second batch")
    query.stop()
    shutil.rmtree(consumer.checkpoint)
    copy.rename(consumer.checkpoint)
    orders.restart(consumer, **options)
    wait_until(lambda: len(consumer.rows) == 35, "what the older Spark checkpoint does not know of")
    assert [(row.offset, row.redelivered) for row in consumer.rows[20:]] == [(n, True) for n in range(5, 20)]
