"""What a user of flows does wrong, or meets: secrets in URLs, a queue that goes away, copied and shared Spark
checkpoints, batches that take too long.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import pytest

from partq_spark.log import admin
from tests.spark.flows.conftest import GROUP, SESSION_S, Shared, flow_of, got
from tests.spark.flows.test_handoffs import Gate
from tests.support.spark import failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


@pytest.mark.parametrize("url", ["redis://user:hunter2@127.0.0.1:1/0", "rediss://:hunter2@127.0.0.1:1/0"])
def test_a_password_in_the_url_is_refused_before_anything_is_started_and_not_repeated(shared: Make, url: str) -> None:
    orders = shared(partitions=1, coordinated=False)
    with pytest.raises(Exception, match="PARTQ_REDIS_PASSWORD") as refused:
        orders.stream(ownership=url)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value)
    assert orders.lab.spark.streams.active == []


@pytest.mark.parametrize("ownership", ["redis", "none"])
def test_a_queue_that_is_deleted_under_a_query_ends_it_and_one_of_the_same_name_is_another(
    shared: Make, ownership: str
) -> None:
    orders = shared(partitions=2, coordinated=ownership == "redis")
    options = {} if ownership == "redis" else {"ownership": "none"}
    one, query = orders.start("one", **options)
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(one.rows) == 2, "messages")
    admin.delete_queue(orders.lab.queue(orders.name))
    assert f"queue '{orders.name}' (namespace 'default', store {orders.lab.url}) has been deleted" in failure(query)
    orders.lab.create(orders.name, 2)
    said = failure(one.start(orders.stream(**options))).replace("\n", " ")
    assert "it was deleted and created again; start anew (a query: with a new checkpoint location)" in said
    orders.publish((0, b"new"))
    two, _ = orders.start("two", **options)
    wait_until(lambda: two.values == [b"new"], "what the new queue has, by a query of its own")


@pytest.mark.conformance("FLO-08")
def test_a_twin_on_a_copy_of_the_spark_checkpoint_is_refused_and_takes_nothing(shared: Make) -> None:
    orders = shared(partitions=2)
    one, first = orders.start("one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    before = orders.checkpoints()
    twin = orders.consumer("twin")
    shutil.copytree(one.checkpoint, twin.checkpoint)
    (twin.checkpoint / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    (twin.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    begun_s = time.monotonic()
    said = failure(twin.start(orders.stream()))
    assert f"flow '{flow_of(one)}' of group default/{orders.name}/{GROUP} is in use by another live process" in said
    assert "give this one a name of its own (a query without one: a checkpoint location)" in said
    assert time.monotonic() - begun_s < SESSION_S + 15
    assert twin.rows == []
    assert orders.checkpoints() == before, "same owner, epoch and instance"
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one) == orders.everything(), "everything, once, at the first")
    assert first.isActive
    assert not any(row.redelivered for row in one.rows)


def test_two_queries_on_one_spark_checkpoint_are_one_after_the_other(shared: Make) -> None:
    """Spark ends the former as the later begins (in one session; a twin elsewhere is refused, FLO-08). The flow stays
    the same, with its partitions.
    """
    orders = shared(partitions=2, delay_s=20.0)
    one, first = orders.start("one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    name, epochs = flow_of(one), [each.epoch for each in orders.checkpoints().values()]
    second = one.start(orders.stream())
    wait_until(lambda: not first.isActive, "the end of the first")
    assert first.exception() is None
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one) == orders.everything(), "everything, once")
    assert second.isActive
    assert flow_of(one) == name
    assert [each.epoch for each in orders.checkpoints().values()] == epochs


def test_a_batch_that_outlasts_max_poll_interval_ends_the_flow_until_the_next_trigger(shared: Make) -> None:
    """The heartbeat goes on, the application hangs: others get its partitions, and what it had in hand."""
    orders = shared(partitions=2)
    gate = Gate()
    one, first = orders.start("one", maxPollInterval="4s")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    two, _ = orders.start("two", maxPollInterval="1h")
    orders.wait_for_shares(1, 1)
    one.failing = gate
    gate.close()
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(gate.held.is_set, "the batch")
    begun_s = time.monotonic()
    orders.wait_for_shares(2)
    assert time.monotonic() - begun_s >= 1.0
    assert not any(record.bound for name, record in orders.records().items() if name == flow_of(one))
    wait_until(lambda: got(two) == orders.everything(), "what it had in hand, elsewhere")
    assert sum(row.redelivered for row in two.rows) == 1
    gate.open()
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: orders.offsets() == [2, 2], "acknowledgement of everything")
    assert first.isActive
    assert len(got(one, two)) == 4 + 1, "the batch that hung was delivered by both"
