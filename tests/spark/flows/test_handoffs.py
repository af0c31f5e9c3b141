"""Streaming queries that share a queue: handoffs between micro-batches, by real queries, Redis and coordinator."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from tests.spark.flows.conftest import Shared, flow_of, got
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


class Gate:
    """Holds a consumer's batches back while it is closed."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()

    def close(self) -> None:
        self.held.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self, _batch_id: int) -> bool:
        if not self._open.is_set():
            self.held.set()
            assert self._open.wait(60)
        return False


@pytest.mark.conformance("HAN-11")
def test_the_worked_example(shared: Make) -> None:
    """Seed 000: B1 and B2 are delivered to consumer 1 and not acknowledged, B3 is in the queue, B4 and B5 are yet to be
    published, when consumer 2 comes and partition 1 is handed over. Partition 0, where the messages of A are, sees no
    pause.
    """
    orders = shared(partitions=2)
    a, b = 0, 1
    one, _ = orders.start("one", maxMessagesPerTrigger="2")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    gate = Gate()
    one.failing = gate
    gate.close()
    orders.publish((b, b"B1"), (b, b"B2"))
    wait_until(gate.held.is_set, "B1 and B2 in consumer 1's hands")
    orders.publish((b, b"B3"))

    two, _ = orders.start("two")
    wait_until(lambda: "Paused" in statuses(orders).values(), "the pause")
    assert statuses(orders) == {a: "Ready", b: "Paused"}
    orders.publish((b, b"B4"), (a, b"A1"))
    time.sleep(0.5)
    assert two.values == [], "new messages stay in the queue meanwhile"
    assert orders.offsets()[b] == 0
    assert statuses(orders) == {a: "Ready", b: "Paused"}
    gate.open()  # consumer 1 is done with B1 and B2
    wait_until(lambda: len(two.values) == 2, "B3 and B4")
    orders.publish((b, b"B5"), (a, b"A2"))
    wait_until(lambda: len(two.values) == 3 and len(one.values) == 4, "B5 and A2")

    assert [value for value in one.values if value.startswith(b"B")] == [b"B1", b"B2"]
    assert two.values == [b"B3", b"B4", b"B5"]
    assert [value for value in one.values if value.startswith(b"A")] == [b"A1", b"A2"]
    assert not any(row.redelivered for row in one.rows + two.rows)


def statuses(orders: Shared) -> dict[int, str]:
    state = orders.state()
    phases = {"paused": "Paused", "fencing": "Paused"}
    return {n: phases.get(p.phase, "Ready") for n, p in state.partitions.items()} if state is not None else {}


@pytest.mark.conformance("HAN-01", "HAN-02", "HAN-05", "DIS-05", "DIS-06")
def test_a_second_query_joins_and_one_leaves_while_messages_flow(shared: Make) -> None:
    orders = shared(partitions=4)
    one, first = orders.start("one", maxMessagesPerTrigger="20")
    stop = threading.Event()

    def keep_publishing() -> None:
        while not stop.wait(0.05):
            orders.publish(*((p, b"x") for p in range(4)))

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        wait_until(lambda: len(one.rows) > 20, "messages at the first query")
        two, second = orders.start("two", maxMessagesPerTrigger="20")
        orders.wait_for_shares(2, 2)
        wait_until(lambda: len(two.rows) > 20, "messages at the second query")
        told = json.loads(second.lastProgress.sources[0].latestOffset)  # type: ignore[union-attr] # it has made progress
        assert told["flow"] == flow_of(two)
        assert Path(told["notify"]).is_socket()
        assert len(told["partitions"]) == 2
        assert all(each["epoch"] >= 2 and each["lag"] >= 0 for each in told["partitions"].values())
        first.stop()
        orders.wait_for_shares(4)
    finally:
        stop.set()
        publisher.join()
    wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
    # All handoffs drained: nothing twice, but for what the first one had not acknowledged when it was stopped.
    repeated = [row for row in two.rows if row.redelivered]
    twice = len(got(one, two)) - len(orders.everything())
    assert twice <= len(repeated) <= 60
    for consumer in (one, two):
        for partition in range(4):
            found = [row.offset for row in consumer.rows if row.partition == partition]
            assert found == sorted(set(found))


@pytest.mark.conformance("HAN-06")
def test_idle_queries_hand_over_at_once_and_make_no_batches(shared: Make) -> None:
    orders = shared(partitions=2)
    one, _ = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    two, _ = orders.start("two")
    begun_s = time.monotonic()
    orders.wait_for_shares(1, 1)
    assert time.monotonic() - begun_s < 10
    time.sleep(0.5)
    assert one.log_files("offsets") == two.log_files("offsets") == [0]


@pytest.mark.conformance("HAN-03", "HAN-07")
def test_a_batch_that_outlasts_the_handoff_time_comes_again_marked_and_is_not_acknowledged(shared: Make) -> None:
    orders = shared(partitions=2, handoff_s=1.0)
    one, _ = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    gate = Gate()
    one.failing = gate
    gate.close()
    orders.publish((0, b"a"), (1, b"b"))
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
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: len(one.rows) == 3, "the first query goes on with what it kept")
    assert {row.partition for row in one.rows[2:]} == {1 - moved}


@pytest.mark.conformance("HAN-04")
def test_other_partitions_flow_while_one_waits(shared: Make) -> None:
    """A batch of a query runs as a whole, so that the other flow's partitions are those that can be watched."""
    orders = shared(partitions=4)
    one, _ = orders.start("one")
    two, _ = orders.start("two")
    orders.wait_for_shares(2, 2)
    gate = Gate()
    one.failing = gate
    gate.close()
    orders.publish(*((p, b"x") for p in range(4)))
    wait_until(gate.held.is_set, "the batch")
    three, _ = orders.start("three")
    wait_until(lambda: "Paused" in statuses(orders).values() or bool(three.rows), "a handoff")
    before = len(two.rows)
    orders.publish(*((p, b"y") for p in range(4)))
    wait_until(lambda: len(two.rows) > before, "messages of the others")
    gate.open()
    wait_until(lambda: got(one, two, three) == orders.everything(), "everything, once")


def test_a_copy_of_the_plan_reads_twice_what_the_flow_has(shared: Make) -> None:
    """A self-union asks for the partitions twice (spark-traps.md 29)."""
    orders = shared(partitions=2)
    consumer = orders.consumer("union")

    def twice() -> DataFrame:
        stream = orders.stream(ownership="none")
        return stream.union(stream)

    orders.publish((0, b"a"), (1, b"b"))
    consumer.run(twice())
    orders.publish((0, b"c"))
    consumer.run(twice())
    assert sorted(consumer.values) == [b"a", b"a", b"b", b"b", b"c", b"c"]
