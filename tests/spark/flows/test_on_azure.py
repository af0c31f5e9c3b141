"""A group on Azure's emulator with nothing else: queue, checkpoints and ownership are blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from partq_spark.log.model import QueueConfig
from tests.spark.flows.conftest import Shared, flow_of, got, start_coordinator
from tests.support.spark import Lab
from tests.support.waiting import wait_until


@pytest.mark.spark
@pytest.mark.azurite
@pytest.mark.conformance("HAN-05", "CHK-01", "CHK-02")
def test_two_queries_share_a_queue_that_is_kept_in_blobs_alone(azure_lab: Lab, tmp_path: Path) -> None:
    orders = Shared(lab=azure_lab, ownership="store", name="orders", partitions=2)
    azure_lab.create("orders", 2, QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=30.0))
    coordinator = start_coordinator(azure_lab.url, "store", tmp_path / "coordinator.log")
    try:
        one, first = orders.start("one")
        orders.publish((0, b"a"), (1, b"b"))
        wait_until(lambda: got(one) == orders.everything(), "the first messages")
        two, _ = orders.start("two", checkpointInterval="1s")
        orders.wait_for_shares(1, 1)
        orders.publish((0, b"c"), (1, b"d"))
        wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
        assert not any(row.redelivered for row in one.rows + two.rows)
        first.stop()
        wait_until(lambda: orders.shares() == {flow_of(two): 2}, "what the first one left")
        orders.publish((0, b"e"), (1, b"f"))
        wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
        wait_until(lambda: orders.offsets() == [3, 3], "the last acknowledgements")
    finally:
        coordinator.kill()
        coordinator.wait(10)
