"""Streaming queries that share a queue: handoffs between micro-batches, by real queries, Redis and coordinator."""

from __future__ import annotations

import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.spark.listener import PartqListener
from tests.spark.flows.conftest import (
    Gate,
    Shared,
    flow_of,
    going_on,
    got,
    marked,
    planned,
    told,
)
from tests.spark.flows.watch import Watch
from tests.support.spark import Consumer, Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def with_both(orders: Shared, **options: str) -> tuple[Consumer, Gate]:
    """A query that has both partitions, and the gate that holds its batches back: open."""
    one, _ = orders.start("one", **options)
    wait_until(lambda: orders.shares() == {flow_of(one): orders.partitions}, "all partitions")
    gate = Gate()
    one.failing = gate
    return one, gate


@pytest.mark.conformance("HAN-11", "HAN-01")
def test_the_worked_example(shared: Make) -> None:
    """Seed 000: B1 and B2 are delivered to consumer 1 and not acknowledged, B3 is in the queue, B4 and B5 are yet to be
    published, when consumer 2 comes and partition 1 is handed over. Partition 0, where the messages of A are, sees no
    pause.
    """
    orders = shared()
    a, b = 0, 1
    one, gate = with_both(orders, maxMessagesPerTrigger="2")
    gate.close()
    orders.publish((b, b"B1"), (b, b"B2"))
    wait_until(gate.held.is_set, "B1 and B2 in consumer 1's hands")
    orders.publish((b, b"B3"))

    two, _ = orders.start("two")
    wait_until(lambda: orders.statuses() == {a: "Ready", b: "Paused"}, "the pause of partition 1 alone")
    orders.publish((b, b"B4"), (a, b"A1"))
    time.sleep(0.5)
    assert two.values == [], "new messages stay in the queue meanwhile"
    assert orders.offsets()[b] == 0
    assert orders.statuses() == {a: "Ready", b: "Paused"}
    gate.open()  # consumer 1 is done with B1 and B2
    wait_until(lambda: len(two.values) == 2, "B3 and B4")
    orders.publish((b, b"B5"), (a, b"A2"))
    wait_until(lambda: len(two.values) == 3 and len(one.values) == 4, "B5 and A2")

    assert [value for value in one.values if value.startswith(b"B")] == [b"B1", b"B2"]
    assert two.values == [b"B3", b"B4", b"B5"]
    assert [value for value in one.values if value.startswith(b"A")] == [b"A1", b"A2"]
    assert marked(one, two) == []


def slow_now_and_then(batch: int) -> bool:
    """Longer than max-handoff-time."""
    time.sleep(0.5 if batch % 2 else 0.0)
    return False


@pytest.mark.conformance("HAN-05", "DIS-05", "DIS-06")
def test_every_batch_is_whole_and_of_partitions_that_were_its_flows_when_it_was_planned(shared: Make) -> None:
    """Four partitions move three times, some by force, while messages flow; progress tells who has what."""
    orders = shared(partitions=4, handoff_s=0.3)
    one, _ = orders.start("one", maxMessagesPerTrigger="100")
    watch = Watch(orders)
    with watch.running():
        with going_on(lambda: orders.publish_all(b"x"), 0.1):
            wait_until(lambda: len(one.rows) > 20, "messages at the first query")
            one.failing = slow_now_and_then
            two, second = orders.start("two", maxMessagesPerTrigger="100")
            orders.wait_for_shares(2, 2)
            wait_until(lambda: len(two.rows) > 20, "messages at the second query")
            wait_until(lambda: len(told(second).get("partitions", {})) == 2, "progress of two partitions")
            assert told(second)["flow"] == flow_of(two)
            assert all(each["epoch"] >= 2 and each["lag"] >= 0 for each in told(second)["partitions"].values())
            second.stop()
            orders.wait_for_shares(4)
            begun = len(two.rows)
            orders.restart(two, maxMessagesPerTrigger="100")
            orders.wait_for_shares(2, 2)
            wait_until(lambda: len(two.rows) > begun + 20, "messages at the second query again")
        wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
    assert len(watch.first_s) >= 4 + 6, "partitions moved"
    for consumer in (one, two):
        delivered: dict[int, list[dict[int, list[int]]]] = defaultdict(list)
        for batch, rows in consumer.batches:
            by_partition: dict[int, list[int]] = defaultdict(list)
            for row in rows:
                by_partition[row.partition].append(row.offset)
            delivered[batch].append(by_partition)
        for batch in consumer.log_files("offsets"):
            at_s = (consumer.checkpoint / "offsets" / str(batch)).stat().st_mtime
            spans = {int(p): span for p, span in planned(consumer, batch)["p"].items() if span[1] < span[2]}
            for partition, (epoch, *_) in spans.items():
                assert watch.flows_of(partition, epoch) == {flow_of(consumer)}, "an epoch is one flow's"
                assert at_s <= watch.over_s(partition, epoch), "planned while it lasted"
            for rows_of in delivered[batch]:  # a batch that comes again may leave partitions out, nothing else
                for partition, found in rows_of.items():
                    assert sorted(found) == list(range(*spans[partition][1:3])), "not torn"


@pytest.fixture
def _listening(lab: Lab) -> Iterator[None]:
    listener = PartqListener()
    lab.spark.streams.addListener(listener)
    yield
    lab.spark.streams.removeListener(listener)


@pytest.mark.usefixtures("_listening")
@pytest.mark.conformance("HAN-02", "HAN-06")
def test_a_query_hands_over_as_soon_as_its_batch_is_complete_and_an_idle_one_at_once(shared: Make) -> None:
    """The next trigger, which would acknowledge the batch without a listener, is long in coming (spark-traps.md 30)."""
    orders = shared()
    orders.publish_all(b"1")
    one, query = orders.start("one", trigger="12 seconds", checkpointInterval="1m")
    wait_until(lambda: len(one.rows) == 2, "the batch, at the second trigger")
    two, _ = orders.start("two")
    orders.wait_for_shares(1, 1)
    assert len(one.log_files("offsets")) == 2, "no third trigger was needed"
    assert two.rows == []
    assert sorted(orders.offsets()) == [0, 1], "written where the handoff wanted it"
    path = Path(told(query)["notify"])
    assert path.is_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert flow_of(one) == told(query)["flow"]
    query.stop()
    wait_until(lambda: not path.exists(), "the end of the socket")

    orders.wait_for_shares(2)
    idle = two.log_files("offsets")
    three, _ = orders.start("three")
    orders.wait_for_shares(1, 1)
    time.sleep(0.5)
    assert two.log_files("offsets") == idle, "no batch was made for a handoff"
    assert three.log_files("offsets") == [0]


@pytest.mark.conformance("HAN-03", "HAN-07")
def test_a_batch_that_outlasts_the_handoff_time_comes_again_marked_and_is_not_acknowledged(shared: Make) -> None:
    orders = shared(handoff_s=1.0)
    one, gate = with_both(orders)
    gate.close()
    orders.publish_all(b"a")
    wait_until(gate.held.is_set, "the batch")
    two, _ = orders.start("two")
    wait_until(lambda: len(two.rows) == 1, "what was not acknowledged")
    moved = two.rows[0].partition
    orders.publish((moved, b"newer"))
    wait_until(lambda: len(two.rows) == 2, "what is newer")
    assert [(row.offset, row.redelivered) for row in two.rows] == [(0, True), (1, False)]
    wait_until(lambda: orders.offsets()[moved] == 2, "the second query's acknowledgement")
    gate.open()
    wait_until(lambda: orders.offsets()[1 - moved] == 1, "the first query's acknowledgement of what it kept")
    assert orders.offsets()[moved] == 2
    assert orders.owners()[moved] == flow_of(two)
    orders.publish_all(b"c")
    wait_until(lambda: len(one.rows) == 3, "the first query goes on with what it kept")
    assert {row.partition for row in one.rows[2:]} == {1 - moved}


@pytest.mark.conformance("HAN-05")
def test_a_union_of_two_loads_of_one_group_reads_each_message_once_in_a_batch(shared: Make) -> None:
    """While the second load waits for its share, the first one's partitions move to it: 92 of 200 came twice."""
    orders = shared(partitions=4, handoff_s=1.0)
    orders.lab.publish(orders.name, [(f"key-{number}", b"x") for number in range(200)])
    consumer = orders.consumer("union")
    for _ in range(3):
        consumer.run(orders.stream(flow="left").union(orders.stream(flow="right")))
    for _, rows in consumer.batches:
        assert len({(row.partition, row.offset) for row in rows}) == len(rows), "twice in one micro-batch"
    assert set(got(consumer)) == set(orders.everything())
    first: set[tuple[int, int]] = set()
    for row in consumer.rows:
        assert row.redelivered or (row.partition, row.offset) not in first, f"{row} came before"
        first.add((row.partition, row.offset))
