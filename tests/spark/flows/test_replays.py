"""Batches that Spark repeats after a restart, of partitions that have been elsewhere meanwhile (HAN-10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.flows.conftest import Shared, flow_of, got
from tests.spark.flows.test_handoffs import Gate
from tests.support.spark import Consumer, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def fails_in_its_batch(orders: Shared) -> tuple[Consumer, str, int]:
    """A query that has both partitions fails in a batch with a message of each, and has left; its flow, that batch."""
    one, query = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    one.failing = lambda _batch: True
    orders.publish((0, b"a"), (1, b"b"))
    assert "fails on purpose" in failure(query)
    wait_until(lambda: not any(record.bound for record in orders.records().values()), "the unbind")
    return one, flow_of(one), one.log_files("offsets")[-1]


def epochs(orders: Shared) -> dict[int, int]:
    return {p: each.epoch for p, each in orders.checkpoints().items()}


@pytest.mark.conformance("HAN-10", "LOS-05")
def test_of_what_has_become_unassigned_a_replay_delivers_nothing(shared: Make) -> None:
    """It comes in a later batch, at a new epoch and marked, since nobody knows whether the sink had it."""
    orders = shared(partitions=2)
    one, _, failed = fails_in_its_batch(orders)
    wait_until(lambda: set(orders.owners().values()) == {None}, "the expiry of the only flow")
    before = epochs(orders)
    assert set(before.values()) == {2}, "nobody's, and the former epoch is over"
    one.failing = lambda _batch: False
    orders.restart(one)
    wait_until(lambda: got(one) == orders.everything(), "everything, once")
    assert [(batch, len(rows)) for batch, rows in one.batches if batch == failed] == [(failed, 0)]
    assert all(row.redelivered for row in one.rows)
    assert all(epoch > before[p] for p, epoch in epochs(orders).items())
    orders.publish((0, b"c"))
    wait_until(lambda: got(one) == orders.everything(), "what is new")
    assert not one.rows[-1].redelivered


@pytest.mark.conformance("HAN-10")
def test_a_replay_does_not_acknowledge_what_went_and_came_back(shared: Make) -> None:
    """Another query had the partitions, and acknowledged nothing of them. The batch that the first one repeats is
    complete for Spark; the checkpoints have to stay where they are until the messages have been delivered.
    """
    orders = shared(partitions=2)
    one, _, failed = fails_in_its_batch(orders)
    two, second = orders.start("two")
    two.failing = lambda _batch: True
    assert "fails on purpose" in failure(second)
    wait_until(lambda: set(orders.owners().values()) == {None}, "the expiry of the other")
    assert orders.offsets() == [0, 0]

    gate = Gate()
    gate.close()
    one.failing = lambda batch: batch != failed and gate(batch)
    orders.restart(one)
    wait_until(gate.held.is_set, "the batch after the one that was repeated")
    assert [len(rows) for batch, rows in one.batches if batch == failed] == [0]
    assert failed in one.log_files("commits")
    assert orders.offsets() == [0, 0], "not acknowledged by the replay"
    assert orders.owners() == dict.fromkeys((0, 1), flow_of(one))
    gate.open()
    wait_until(lambda: orders.offsets() == [1, 1], "the acknowledgement of what was delivered")
    assert got(one) == orders.everything()
    assert all(row.redelivered for row in one.rows)


@pytest.mark.conformance("HAN-10")
def test_a_replay_delivers_the_one_partition_that_it_kept(shared: Make) -> None:
    """One of two partitions has gone to another query by force while the batch was in hand; the other is still held
    when the batch is repeated.
    """
    orders = shared(partitions=2, delay_s=6.0, handoff_s=0.0)
    one, first = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    gate = Gate()
    gate.close()
    one.failing = lambda batch: gate(batch) or len(one.batches) == 1
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(gate.held.is_set, "the batch")
    two, _ = orders.start("two")
    orders.wait_for_shares(1, 1)
    (moved,) = [p for p, flow in orders.owners().items() if flow == flow_of(two)]
    wait_until(lambda: len(two.rows) == 1, "what moved, at its new owner")
    gate.open()
    assert "fails on purpose" in failure(first)
    failed = one.log_files("offsets")[-1]
    one.failing = lambda _batch: False
    orders.restart(one)
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
    (repeated,) = [rows for batch, rows in one.batches if batch == failed]
    assert [(row.partition, row.offset, row.redelivered) for row in repeated] == [(1 - moved, 0, False)]
    assert [row.redelivered for row in two.rows] == [True]
