"""Queries of a group that end and come back: on their Spark checkpoint, on an older one, on somebody else's; after the
death of their reader; and when they were lost for a while.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from tests.cast.cable import Cable
from tests.spark.flows.conftest import GROUP, SESSION_S, Gate, Shared, flow_of, frozen, got, marked, readers
from tests.support.spark import Consumer, ended, failure
from tests.support.waiting import wait_until
from tools.servers import RedisServer, running

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]
LONG_S = SESSION_S + 40.0
"""For a lost flow to be missed and its partitions to be taken over, on a busy machine."""


def fail_once(consumer: Consumer, query: StreamingQuery, publish: Callable[[], None]) -> int:
    """The query fails in the batch of what is published; that batch."""
    consumer.failing = lambda _batch: True
    publish()
    assert "fails on purpose" in failure(query)
    consumer.failing = lambda _batch: False
    return consumer.log_files("offsets")[-1]


@pytest.mark.conformance("FLO-07", "LOS-01")
def test_whatever_ended_a_query_within_the_delay_it_gets_its_partitions_back(shared: Make) -> None:
    """A batch that fails, a reader that is killed, an order to stop: the same flow, the same epochs; little marked."""
    orders = shared(delay_s=30.0)
    one, query = orders.start("one", checkpointInterval="1h")
    orders.publish_all(b"a")
    wait_until(lambda: len(one.rows) == 2, "the first messages")
    name, epochs = flow_of(one), orders.epochs()
    gateway = orders.lab.spark.sparkContext._gateway
    assert gateway is not None
    # One of a test before may still write down what it acknowledged.
    wait_until(lambda: len(readers(orders.lab.spark)) == 1, "the end of other readers")
    (reader,) = readers(orders.lab.spark)
    assert reader.ppid() == gateway.proc.pid, "its heartbeat watches the JVM (spark-traps.md 25)"

    fail_once(one, query, lambda: orders.publish_all(b"b"))
    wait_until(lambda: orders.bound() == set(), "the unbind")
    assert orders.offsets() == [1, 1], "stop() has written down what was complete, whatever the interval (39)"
    query = orders.restart(one, checkpointInterval="0s")
    wait_until(lambda: got(one) == orders.everything(), "the batch again")
    orders.wait_for_offsets(2, 2)

    (reader,) = readers(orders.lab.spark)
    reader.kill()
    failure(query)
    orders.publish_all(b"c")
    query = orders.restart(one, checkpointInterval="1h")
    wait_until(lambda: got(one) == orders.everything(), "what came meanwhile, when its session was over")

    commits = one.log_files("offsets")
    wait_until(lambda: one.log_files("commits") == commits, "the commit")
    # Until Spark asks for what comes next, nobody has told the reader that the batch is complete (1). Its status names
    # the question before it is asked, and a stop can come between: this returns when it has been answered.
    query.processAllAvailable()
    query.stop()
    orders.wait_for_offsets(3, 3)
    wait_until(lambda: orders.bound() == set(), "the unbind", 10)
    wait_until(lambda: readers(orders.lab.spark) == [], "the end of the reader (2)", 10)
    orders.restart(one)
    orders.publish_all(b"d")
    wait_until(lambda: got(one) == orders.everything(), "what is new")
    assert (flow_of(one), orders.epochs()) == (name, epochs)
    assert {offset for _, offset in marked(one)} == {2}, "what the one that was killed might have had"


@pytest.mark.conformance("LOS-03", "LOS-04", "CHK-05", "HAN-07", "LOS-06")
def test_a_query_that_was_frozen_or_cut_off_has_lost_its_partition(shared: Make, redis_server: RedisServer) -> None:
    """Its old mapping says nothing when it is back: it gets a share anew."""
    orders = shared(delay_s=0.5, handoff_s=2.0)
    with running(Cable(redis_server.port)) as cable:
        by_cable = f"redis://127.0.0.1:{cable.port}/0"
        one, lost = orders.start("one", checkpointInterval="0s", ownership=by_cable)
        (reader,) = readers(orders.lab.spark)
        two, _ = orders.start("two", checkpointInterval="0s")
        orders.wait_for_shares(1, 1)
        (mine,) = [p for p, flow in orders.owners().items() if flow == flow_of(one)]
        gate = Gate(closed=True)
        one.failing = gate
        orders.publish_all(b"a")
        wait_until(gate.held.is_set, "a batch in hand")
        with frozen(reader):
            wait_until(lambda: orders.shares() == {flow_of(two): 2}, "its partition, elsewhere", LONG_S)
            orders.publish((mine, b"b"))
            wait_until(lambda: orders.offsets()[mine] == 2, "what it had in hand, and more")
            taken = orders.checkpoints()[mine]
            gate.open()
            wait_until(lambda: len(one.rows) == 1, "the end of its batch, whose acknowledgement is to be written late")
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            now = orders.checkpoints()[mine]
            assert now.epoch > taken.epoch or now == taken
        orders.wait_for_shares(1, 1)

        delivered = got(one)
        cable.freeze()
        wait_until(lambda: orders.shares() == {flow_of(two): 2}, "its partition, elsewhere", LONG_S)
        orders.publish_all(b"c")
        wait_until(lambda: orders.offsets() == orders.lab.ends(orders.name), "all of both partitions")
        assert got(one) == delivered
        cable.thaw()
        orders.wait_for_shares(1, 1)
        orders.publish_all(b"d")
        wait_until(lambda: orders.offsets() == orders.lab.ends(orders.name), "all of both partitions, by both")
        assert got(one, two) == sorted([*orders.everything(), (mine, 0)]), "once, but for what was not acknowledged"
        assert marked(one, two) == [(mine, 0)]
        assert len(got(one)) == len(delivered) + 1
        assert lost.isActive
        lost.stop()


@pytest.mark.conformance("FLO-08")
def test_a_twin_on_a_copy_of_the_spark_checkpoint_is_refused_and_one_on_the_same_takes_its_place(shared: Make) -> None:
    """In one session Spark ends the former query of a checkpoint as the later begins: the flow stays the same."""
    orders = shared(delay_s=20.0)
    one, first = orders.start("one")
    orders.publish_all(b"a")
    orders.wait_for_offsets(1, 1)
    before, name = orders.checkpoints(), flow_of(one)
    twin = orders.lab.consumer("twin")
    shutil.copytree(one.checkpoint, twin.checkpoint)
    (twin.checkpoint / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    (twin.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    said = failure(twin.start(orders.stream()), SESSION_S + 60)
    assert f"flow '{name}' of group default/{orders.name}/{GROUP} is in use by another live process" in said
    assert "give this one a name of its own (a query without one: a checkpoint location)" in said
    assert twin.rows == []
    assert orders.checkpoints() == before, "same owner, epoch and instance"
    orders.publish_all(b"b")
    wait_until(lambda: got(one) == orders.everything(), "everything, once, at the first")

    orders.wait_for_offsets(2, 2)
    second = one.start(orders.stream())
    wait_until(lambda: not first.isActive, "the end of the first")
    assert first.exception() is None
    orders.publish_all(b"c")
    wait_until(lambda: got(one) == orders.everything(), "everything, once")
    assert second.isActive
    assert (flow_of(one), marked(one)) == (name, [])
    assert orders.epochs() == {p: each.epoch for p, each in before.items()}


@pytest.mark.conformance("CHK-06")
def test_available_now_shares_a_queue_and_acknowledges_its_last_batch(shared: Make) -> None:
    orders = shared(partitions=3, delay_s=1.0)
    orders.publish(*((p, b"%d" % n) for p in range(3) for n in range(20)))
    one, two = orders.lab.consumer("one"), orders.lab.consumer("two")
    stream = orders.stream(maxMessagesPerTrigger="10", checkpointInterval="1h")
    for query in [each.start(stream, available_now=True) for each in (one, two)]:
        ended(query)
    assert got(one, two) == orders.everything()
    assert orders.offsets() == [20, 20, 20]
    # Spark ends the source's process when the query has ended, and does not wait for what it does then.
    wait_until(lambda: orders.bound() == set(), "the unbind", 30)
    # Within the delay each flow would get back what it had, and no more.
    wait_until(lambda: not orders.assigned(), "the end of the rebalance delay", 30)
    orders.publish((1, b"more"))
    one.run(stream)
    assert got(one, two) == orders.everything()
    assert marked(one, two) == []

    once = orders.lab.consumer("once")  # Trigger.Once: a single look per run, its last batch acknowledged in the next
    for _ in range(2):
        ended(once.start(orders.stream(), once=True))
    assert orders.offsets() == [20, 21, 20]
