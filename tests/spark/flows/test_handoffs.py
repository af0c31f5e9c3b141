"""Streaming queries that share a queue, by real queries, Redis and coordinator: handoffs between micro-batches; its
partition count changes; and all of it is kept in blobs alone.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.spark.listener import PartqListener
from tests.spark.flows.conftest import Gate, Shared, coordinator, flow_of, going_on, got, marked, partition_of, told
from tests.support.spark import Consumer, Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]
KEYS = [f"k{number}" for number in range(12)]


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

    two, second = orders.start("two")
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
    partitions = {str(b): {"epoch": orders.epochs()[b], "end": 5, "lag": 0}}
    wait_until(lambda: told(second).get("partitions") == partitions, "progress (15)")
    assert told(second).keys() == {"queue", "group", "flow", "partitions", "notify"}


@pytest.mark.conformance("HAN-02", "HAN-06")
def test_a_query_hands_over_as_soon_as_its_batch_is_complete_and_an_idle_one_at_once(shared: Make) -> None:
    """The next trigger, which would acknowledge the batch without a listener, is long in coming (spark-traps.md 30)."""
    orders = shared()
    listener = PartqListener()
    orders.lab.spark.streams.addListener(listener)
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
    orders.lab.spark.streams.removeListener(listener)

    orders.wait_for_shares(2)
    idle = two.log_files("offsets")
    three, _ = orders.start("three")
    orders.wait_for_shares(1, 1)
    time.sleep(0.5)
    assert two.log_files("offsets") == idle, "no batch was made for a handoff"
    assert three.log_files("offsets") == [0]


@pytest.mark.conformance("HAN-05")
def test_a_union_of_two_loads_of_one_group_reads_each_message_once_in_a_batch(shared: Make) -> None:
    """While the second load waits for its share, the first one's partitions move to it: 92 of 200 came twice."""
    orders = shared(partitions=4, handoff_s=1.0)
    orders.lab.publish(orders.name, [(f"key-{number}", b"x") for number in range(200)])
    consumer = orders.lab.consumer("union")
    for _ in range(3):
        consumer.run(orders.stream(flow="left").union(orders.stream(flow="right")))
    for _, rows in consumer.batches:
        assert len({(row.partition, row.offset) for row in rows}) == len(rows), "twice in one micro-batch"
    assert set(got(consumer)) == set(orders.everything())
    first: set[tuple[int, int]] = set()
    for row in consumer.rows:
        assert row.redelivered or (row.partition, row.offset) not in first, f"{row} came before"
        first.add((row.partition, row.offset))


@pytest.mark.conformance("RES-01", "RES-02", "RES-03", "REB-08", "REB-09")
def test_a_queue_grows_and_shrinks_while_queries_share_it_and_a_publisher_publishes(shared: Make) -> None:
    orders = shared(partitions=4, delay_s=60.0)  # which a change of the count does not wait for
    one, _ = orders.start("one", maxMessagesPerTrigger="100")
    wait_until(lambda: orders.shares() == {flow_of(one): 4}, "all partitions")
    published: list[int] = []

    def publish() -> None:
        orders.lab.publish(orders.name, [(key, b"%d" % len(published)) for key in KEYS])
        published.append(len(published))

    with going_on(publish, 0.25):
        wait_until(lambda: len(one.rows) > 50, "messages at the first query")
        two = orders.lab.consumer("two")
        two.batches = one.batches  # one list of all that is delivered, in the order in which it was
        orders.restart(two, maxMessagesPerTrigger="100")
        orders.wait_for_shares(0, 4)  # it is bound, and waits for the delay
        for count, shares in ((8, (4, 4)), (3, (1, 2))):
            orders.queue.alter(ownership=orders.ownership, partitions=count)
            orders.partitions = count
            orders.wait_for_shares(*shares, wait_s=50)
            before = len(published)
            wait_until(lambda before=before: len(published) > before + 5, "messages under the new count")  # type: ignore[misc]
    wait_until(lambda: set(got(one)) == set(orders.everything()), "everything")
    last: dict[str, int] = {}
    for row in one.rows:
        assert row.redelivered or int(row.value) > last.get(row.key, -1), "in the order of its key"
        last[row.key] = max(int(row.value), last.get(row.key, -1))
    assert {row.partition for row in one.rows} == {partition_of(key, n) for n in (4, 8, 3) for key in KEYS}
    assert len(got(one)) - len(set(got(one))) <= len(marked(one))
    wait_until(lambda: set(orders.statuses()) == {0, 1, 2}, "the removed ones to go")
    view = orders.status()
    assert view is not None
    assert view.scale_status == "Ready"


@pytest.mark.azurite
@pytest.mark.parametrize("service_lab", ["spark_azurite"], indirect=True)
@pytest.mark.conformance("HAN-05", "CHK-01", "CHK-02")
def test_two_queries_share_a_queue_that_is_kept_in_blobs_alone(service_lab: Lab, tmp_path: Path) -> None:
    """Queue, checkpoints and ownership."""
    orders = Shared(lab=service_lab, ownership="store", name="orders", partitions=2)
    service_lab.create("orders", 2, rebalance_delay_s=0.0, max_handoff_time_s=30.0)
    with coordinator(service_lab.url, "store", tmp_path):
        one, first = orders.start("one")
        orders.publish_all(b"a")
        wait_until(lambda: got(one) == orders.everything(), "the first messages")
        two, _ = orders.start("two", checkpointInterval="1s")
        orders.wait_for_shares(1, 1)
        orders.publish_all(b"b")
        wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
        assert marked(one, two) == []
        first.stop()
        wait_until(lambda: orders.shares() == {flow_of(two): 2}, "what the first one left")
        orders.publish_all(b"c")
        wait_until(lambda: set(got(one, two)) == set(orders.everything()), "everything")
        assert len(got(one, two)) - len(orders.everything()) <= len(marked(one, two))
        orders.wait_for_offsets(3, 3)
