"""A queue from its creation to its deletion in an S3 bucket, by a real server, real queries and a real coordinator.
Everything is in the bucket, ownership as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import partq
from tests.spark.flows.conftest import GROUP, Shared, coordinator, flow_of, got, marked
from tests.support.spark import Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.mark.conformance("HAN-05", "CHK-01", "CHK-02")
@pytest.mark.parametrize("service_lab", ["spark_s3"], indirect=True)
def test_a_queue_lives_its_whole_life_in_a_bucket(service_lab: Lab, tmp_path: Path) -> None:
    orders = Shared(lab=service_lab, ownership="store", name="orders", partitions=2)
    queue = service_lab.create("orders", 2, rebalance_delay_s=0.0, max_handoff_time_s=30.0)
    service_lab.append(service_lab.spark.range(10).selectExpr("'k' || id key", "'by Spark' value"), "orders")
    for _ in range(70):  # more than the head holds itself
        orders.publish((0, b"small"))
    with coordinator(service_lab.url, "store", tmp_path):
        one, first = orders.start("one")
        wait_until(lambda: got(one) == orders.everything(), "the first messages")
        two, second = orders.start("two")
        orders.wait_for_shares(1, 1)
        orders.publish_all(b"a")
        wait_until(lambda: got(one, two) == orders.everything(), "everything, once, by two flows")
        queue.alter(ownership="store", partitions=4)
        orders.partitions = 4
        orders.wait_for_shares(2, 2)
        orders.publish_all(b"b")
        wait_until(lambda: got(one, two) == orders.everything(), "everything, once, of twice as many partitions")
        assert marked(one, two) == []
        first.stop()
        wait_until(lambda: orders.shares() == {flow_of(two): 4}, "what the first one left")
        orders.publish_all(b"c")
        wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
        assert len(got(one, two)) - len(orders.everything()) <= len(marked(one, two))
        second.processAllAvailable()  # until Spark asks for what comes next, nobody has told that the batch is complete
        second.stop()
        wait_until(lambda: orders.bound() == set(), "the end of the second one")
        orders.wait_for_offsets(*service_lab.ends("orders"))

        queue.rewind(GROUP, to="earliest", ownership="store")
        assert queue.compact(min_age_s=0).steps
        again, third = orders.start("again")
        wait_until(lambda: got(again) == orders.everything(), "everything again, joined meanwhile")
        assert marked(again) == got(again)
        third.processAllAvailable()
        third.stop()
        orders.wait_for_offsets(*service_lab.ends("orders"))
    queue.trim("2100-01-01T00:00:00Z")
    assert service_lab.browse("orders") == []
    assert sum(queue.collect(grace_s=0).deleted for _ in range(3)) > 0
    queue.delete()
    assert partq.list_queues(store=queue.store) == ()
