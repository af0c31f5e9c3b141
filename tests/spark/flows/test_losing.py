"""What a group loses while its queries run: a reader that freezes, a Redis that goes and comes back empty."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.log.model import QueueConfig
from tests.group.ownership.redis_servers import command
from tests.spark.flows.conftest import SESSION_S, Shared, flow_of, got, start_coordinator
from tests.spark.flows.test_moving import Watch
from tests.spark.test_stream_source import readers
from tests.support.servers import RedisServer, running
from tests.support.spark import Consumer, Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def keeps_order(*consumers: Consumer) -> bool:
    """Of every consumer and partition: offsets grow, but for what is marked."""
    for consumer in consumers:
        latest: dict[int, int] = {}
        for row in consumer.rows:
            if row.offset <= latest.get(row.partition, -1) and not row.redelivered:
                return False
            latest[row.partition] = row.offset
    return True


@pytest.mark.conformance("LOS-06", "HAN-07")
def test_a_reader_that_freezes_past_its_session_delivers_nothing_of_what_moved(shared: Make) -> None:
    orders = shared(partitions=2, delay_s=0.5)
    one, first = orders.start("one")
    (frozen,) = readers(orders.lab.spark)
    two, _ = orders.start("two")
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: got(one, two) == orders.everything(), "the first messages")
    wait_until(lambda: orders.offsets() == [1, 1], "their acknowledgements")
    frozen.suspend()
    try:
        orders.publish((0, b"c"), (1, b"d"))
        wait_until(lambda: orders.shares() == {flow_of(two): 2}, "what the frozen one had", SESSION_S + 30)
        wait_until(lambda: got(one, two) == orders.everything(), "everything")
        wait_until(lambda: orders.offsets() == [2, 2], "acknowledgements")
    finally:
        frozen.resume()
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"e"), (1, b"f"))
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
    assert first.isActive
    assert keeps_order(one, two)


@pytest.mark.conformance("OWN-03")
def test_a_redis_that_comes_back_empty_costs_time_and_marks_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    with running(RedisServer()) as redis:
        orders = Shared(lab=lab, ownership=redis.url, name="orders", partitions=2)
        lab.create("orders", 2, QueueConfig(rebalance_delay_s=0.5, max_handoff_time_s=5.0))
        coordinator = start_coordinator(lab.url, redis.url, tmp_path / "coordinator.log")
        try:
            one, first = orders.start("one", retryTimeout="60s")
            two, second = orders.start("two", retryTimeout="60s")
            orders.wait_for_shares(1, 1)
            orders.publish((0, b"a"), (1, b"b"))
            wait_until(lambda: got(one, two) == orders.everything(), "the first messages")
            redis.kill()
            orders.publish((0, b"c"), (1, b"d"))
            time.sleep(3.0)
            assert len(got(one, two)) == 2, "without Redis nothing is planned"
            redis.start()
            wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
            orders.wait_for_shares(1, 1)
            orders.publish((0, b"e"), (1, b"f"))
            wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything again")
            assert first.isActive
            assert second.isActive
            assert keeps_order(one, two)
            repeated = len(got(one, two)) - len(orders.everything())
            assert repeated <= sum(row.redelivered for row in one.rows + two.rows)
        finally:
            for query in lab.spark.streams.active:
                query.stop()
            coordinator.kill()
            coordinator.wait(10)


@pytest.mark.conformance("OWN-03", "DIS-05")
def test_a_redis_that_is_emptied_under_running_queries_heals_without_a_hand_on_it(lab: Lab, tmp_path: Path) -> None:
    """FLUSHALL: nobody is told, no connection ends."""
    with running(RedisServer()) as redis:
        orders = Shared(lab=lab, ownership=redis.url, name="orders", partitions=4)
        lab.create("orders", 4, QueueConfig(rebalance_delay_s=0.5, max_handoff_time_s=5.0))
        coordinator = start_coordinator(lab.url, redis.url, tmp_path / "coordinator.log")
        watch = Watch(orders)
        try:
            one, first = orders.start("one")
            two, second = orders.start("two")
            orders.wait_for_shares(2, 2)
            orders.publish(*((p, b"a") for p in range(4)))
            wait_until(lambda: orders.offsets() == [1] * 4, "the first acknowledgements")
            with watch.running():
                command(redis, "FLUSHALL")
                orders.publish(*((p, b"b") for p in range(4)))
                wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
                orders.wait_for_shares(2, 2)
                orders.publish(*((p, b"c") for p in range(4)))
                wait_until(lambda: orders.offsets() == [3] * 4, "all acknowledgements")
            assert set(got(one, two)) == set(orders.everything())
            assert all(len(watch.flows_of(each.partition, each.epoch)) == 1 for each in watch.first_s), "never two"
            repeated = len(got(one, two)) - len(orders.everything())
            assert repeated <= sum(row.redelivered for row in one.rows + two.rows)
            assert keeps_order(one, two)
            assert first.isActive
            assert second.isActive
        finally:
            for query in lab.spark.streams.active:
                query.stop()
            coordinator.kill()
            coordinator.wait(10)
