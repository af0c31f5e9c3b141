"""A query that forgot the option `ownership`, beside one that shares the group; and changing how a group is shared."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.cli import processes
from tests.spark.flows.conftest import GROUP, Shared, flow_of, got
from tests.support.spark import failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def test_a_query_that_forgot_the_ownership_is_refused_and_the_group_changes_on_purpose(shared: Make) -> None:
    """Ten seconds between two writes of a checkpoint: the shared query would not have noticed a fence for as long."""
    orders = shared(partitions=2)
    one, query = orders.start("one", checkpointInterval="10s")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(one.rows) == 2, "first messages")

    two, forgot = orders.start("two", ownership="none")
    said = failure(forgot)
    assert f"group '{GROUP}' of queue '{orders.name}' has ownership=redis://…, not ownership=none" in said
    assert f"partq group alter {orders.name} --group {GROUP} --ownership none" in said
    for _ in range(10):
        orders.publish((0, b"c"), (1, b"d"))
        time.sleep(0.1)
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
    assert two.rows == []
    assert not any(row.redelivered for row in one.rows)

    alter = ("group", "alter", orders.name, "--group", GROUP, "--ownership", "none", "--from", orders.ownership)
    lives = processes.run(orders.lab.store_folder, *alter)
    assert "whose heartbeat moves" in lives.stderr
    assert query.isActive
    query.stop()
    wait_until(lambda: not any(record.bound for record in orders.records().values()), "the unbind")
    altered = processes.run(orders.lab.store_folder, *alter)
    assert altered.returncode == 0, altered.stderr
    orders.publish((0, b"e"), (1, b"f"))
    assert "not ownership=redis://…" in failure(orders.restart(one))
    orders.restart(one, ownership="none")
    wait_until(lambda: got(one) == orders.everything(), "everything, once, on the same Spark checkpoint")


def test_a_query_that_has_the_group_for_itself_ends_when_that_is_changed(shared: Make) -> None:
    """It is idle, so that nobody can know that it lives; it sees the queue's head before it delivers."""
    orders = shared(partitions=1)
    one, query = orders.start("one", ownership="none")
    orders.publish((0, b"a"))
    wait_until(lambda: orders.offsets() == [1], "an acknowledgement")
    alter = ("group", "alter", orders.name, "--group", GROUP, "--ownership", orders.ownership)
    refused = processes.run(orders.lab.store_folder, *alter)
    assert "may be in use: checkpoint 0" in refused.stderr
    altered = processes.run(orders.lab.store_folder, *alter, "--force")
    assert altered.returncode == 0, altered.stderr
    orders.publish((0, b"b"))
    assert "has ownership=redis://…, not ownership=none" in failure(query)
    assert len(one.rows) == 1
    orders.restart(one)
    wait_until(lambda: got(one) == orders.everything(), "everything, once")
