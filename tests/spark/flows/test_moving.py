"""What a micro-batch may hold while partitions move, and what becomes of a handoff whose two ends do not last."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from partq_spark.query import offsets
from partq_spark.query.offsets import BatchSpan
from tests.spark.flows.conftest import SESSION_S, Shared, flow_of, got
from tests.spark.flows.test_handoffs import Gate, statuses
from tests.spark.test_stream_source import readers
from tests.support.spark import Consumer, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


class Ownership(NamedTuple):
    """Whose a partition is, as its checkpoint says."""

    partition: int
    epoch: int
    flow: str


class Watch:
    """Looks at all checkpoints again and again. `first_s`: the wall clock after the look that found it first."""

    def __init__(self, orders: Shared) -> None:
        self._orders = orders
        self.first_s: dict[Ownership, float] = {}
        self.nobodys: list[int] = []  # partitions that had an owner, and at some look none

    @contextmanager
    def running(self) -> Iterator[Watch]:
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(0.02):
                self._look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _look(self) -> None:
        for partition, found in self._orders.checkpoints().items():
            if found.owner is None:
                self.nobodys.append(partition)
            else:
                self.first_s.setdefault(Ownership(partition, found.epoch, found.owner.flow), time.time())

    def flows_of(self, partition: int, epoch: int) -> set[str]:
        return {each.flow for each in self.first_s if each[:2] == (partition, epoch)}

    def over_s(self, partition: int, epoch: int) -> float:
        """When that ownership was over for certain."""
        return min((s for each, s in self.first_s.items() if each[0] == partition and each[1] > epoch), default=1e12)


class Planned(NamedTuple):
    """A batch of a Spark checkpoint: what it was to read, and when that was written down."""

    spans: dict[int, BatchSpan]
    at_s: float


def planned(consumer: Consumer) -> dict[int, Planned]:
    result = {}
    for batch in consumer.log_files("offsets"):
        path = consumer.checkpoint / "offsets" / str(batch)
        end = offsets.decode(json.loads(path.read_text().splitlines()[-1]))
        assert end is not None
        spans = {p: span for p, span in end.spans.items() if span.start < span.to}
        result[batch] = Planned(spans, path.stat().st_mtime)
    return result


def slow_now_and_then(batch: int) -> bool:
    """Longer than max-handoff-time."""
    time.sleep(0.5 if batch % 2 else 0.0)
    return False


@pytest.mark.conformance("HAN-05", "DIS-05")
def test_every_batch_is_whole_and_of_partitions_that_were_its_flows_when_it_was_planned(shared: Make) -> None:
    """Four partitions move four times, some by force, while messages flow."""
    orders = shared(partitions=4, handoff_s=0.3)
    one, _ = orders.start("one", maxMessagesPerTrigger="100")
    stop = threading.Event()

    def keep_publishing() -> None:
        while not stop.wait(0.1):
            orders.publish(*((p, b"x") for p in range(4)))

    publisher = threading.Thread(target=keep_publishing)
    watch = Watch(orders)
    with watch.running():
        publisher.start()
        try:
            wait_until(lambda: len(one.rows) > 20, "messages at the first query")
            one.failing = slow_now_and_then
            two, second = orders.start("two", maxMessagesPerTrigger="100")
            orders.wait_for_shares(2, 2)
            wait_until(lambda: len(two.rows) > 20, "messages at the second query")
            second.stop()
            orders.wait_for_shares(4)
            begun = len(two.rows)
            orders.restart(two, maxMessagesPerTrigger="100")
            orders.wait_for_shares(2, 2)
            wait_until(lambda: len(two.rows) > begun + 20, "messages at the second query again")
        finally:
            stop.set()
            publisher.join()
        wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
    assert len(watch.first_s) >= 4 + 6, "partitions moved"
    for consumer in (one, two):
        name, plans = flow_of(consumer), planned(consumer)
        delivered: dict[int, list[dict[int, list[int]]]] = defaultdict(list)
        for batch, rows in consumer.batches:
            by_partition: dict[int, list[int]] = defaultdict(list)
            for row in rows:
                by_partition[row.partition].append(row.offset)
            delivered[batch].append(by_partition)
        for batch, plan in plans.items():
            for partition, span in plan.spans.items():
                assert watch.flows_of(partition, span.epoch) == {name}, "an epoch is one flow's"
                assert plan.at_s <= watch.over_s(partition, span.epoch), "planned while it lasted"
            for rows_of in delivered[batch]:  # a batch that comes again may leave partitions out, nothing else
                for partition, found in rows_of.items():
                    span = plan.spans[partition]
                    assert sorted(found) == list(range(span.start, span.to)), "not torn"


class Handoff(NamedTuple):
    """Query one has both partitions and a batch in hand; two has come, and `partition` is paused on its way to it."""

    one: Consumer
    gate: Gate
    two: Consumer
    second: StreamingQuery
    reader: psutil.Process  # of the second query
    partition: int


def into_a_handoff(orders: Shared) -> Handoff:
    one, _ = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    before = readers(orders.lab.spark)
    gate = Gate()
    one.failing = gate
    gate.close()
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(gate.held.is_set, "the batch")
    two, second = orders.start("two")
    (reader,) = set(readers(orders.lab.spark)) - set(before)
    wait_until(lambda: "Paused" in statuses(orders).values(), "the pause")
    (moving,) = [partition for partition, status in statuses(orders).items() if status == "Paused"]
    return Handoff(one, gate, two, second, reader, moving)


@pytest.mark.conformance("HAN-08")
def test_the_reader_of_the_receiving_query_is_killed_during_the_handoff(shared: Make) -> None:
    """The old flow's batch is not complete, and max-handoff-time far: the partition is planned again all the same."""
    orders = shared(partitions=2, handoff_s=60.0)
    one, gate, two, second, reader, moving = into_a_handoff(orders)
    epochs = {p: each.epoch for p, each in orders.checkpoints().items()}
    reader.kill()
    failure(second)
    wait_until(lambda: set(statuses(orders).values()) == {"Ready"}, "the end of the pause", SESSION_S + 20)
    assert orders.owners() == dict.fromkeys((0, 1), flow_of(one))
    orders.publish((moving, b"newer"))
    gate.open()
    wait_until(lambda: got(one) == orders.everything(), "everything, once")
    assert {p: each.epoch for p, each in orders.checkpoints().items()} == epochs, "it never moved"
    assert not any(row.redelivered for row in one.rows)

    orders.restart(two)
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once, by both")


@pytest.mark.conformance("HAN-09")
def test_a_partition_that_is_planned_back_during_its_handoff_has_one_owner_all_the_time(shared: Make) -> None:
    """The receiving query stops in good order; then another comes, and this time the old one lets go."""
    orders = shared(partitions=2, handoff_s=60.0)
    watch = Watch(orders)
    with watch.running():
        one, gate, two, second, _, moving = into_a_handoff(orders)
        second.stop()
        wait_until(lambda: set(statuses(orders).values()) == {"Ready"}, "the way back")
        orders.publish((moving, b"newer"))
        gate.open()
        wait_until(lambda: got(one) == orders.everything(), "everything, once, by the old flow")
        orders.restart(two)
        orders.wait_for_shares(1, 1)
        orders.publish((0, b"c"), (1, b"d"))
        wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
    assert not any(row.redelivered for row in one.rows + two.rows)
    assert watch.nobodys == []
    assert all(len(watch.flows_of(each.partition, each.epoch)) == 1 for each in watch.first_s), "one owner per epoch"
    state = orders.state()
    assert state is not None
    assert sorted(each.epoch for each in state.partitions.values()) == [1, 2], "planned back, it kept its epoch"
