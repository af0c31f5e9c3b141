"""Queries of a group that end and come back: on their Spark checkpoint, after their reader was killed, alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.flows.conftest import GROUP, Shared, flow_of, got
from tests.spark.test_stream_source import readers
from tests.support.servers import free_port
from tests.support.spark import ended, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


@pytest.mark.conformance("FLO-07", "LOS-01")
def test_a_restart_within_the_delay_gets_its_partitions_back_and_repeats_its_batch(shared: Make) -> None:
    orders = shared(partitions=2, delay_s=15.0)
    consumer, query = orders.start("one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(consumer.rows) == 2, "first messages")
    failing: list[int] = []

    def once(batch_id: int) -> bool:
        failing.append(batch_id)
        return len(failing) == 1

    consumer.failing = once
    orders.publish((0, b"c"), (1, b"d"))
    assert "fails on purpose" in failure(query)
    name, epochs = flow_of(consumer), {p: each.epoch for p, each in orders.checkpoints().items()}
    wait_until(lambda: not orders.records()[name].bound, "the unbind")
    assert orders.offsets() == [1, 1], "stop() has written down what was complete"

    orders.publish((0, b"e"))
    begun_s = time.monotonic()
    orders.restart(consumer)
    wait_until(lambda: got(consumer) == orders.everything(), "the batch again, and what is new")
    assert time.monotonic() - begun_s < 14.0, "it did not wait for the delay"
    assert flow_of(consumer) == name
    assert {p: each.epoch for p, each in orders.checkpoints().items()} == epochs
    assert not any(row.redelivered for row in consumer.rows)


@pytest.mark.conformance("HAN-10")
def test_a_replay_leaves_out_what_has_moved_on(shared: Make) -> None:
    orders = shared(partitions=2)
    one, query = orders.start("one")
    wait_until(lambda: orders.shares() == {flow_of(one): 2}, "both partitions")
    one.failing = lambda _batch_id: True
    orders.publish((0, b"a"), (1, b"b"))
    assert "fails on purpose" in failure(query)
    two, _ = orders.start("two")
    wait_until(lambda: got(two) == orders.everything(), "the other query has them")
    assert all(row.redelivered for row in two.rows), "the first one may have delivered them"
    one.failing = lambda _batch_id: False
    orders.restart(one)
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")
    wait_until(lambda: orders.offsets()[0] != 0, "its checkpoint, which is written within a second")


def test_a_killed_reader_is_missed_only_until_its_session_is_over(shared: Make) -> None:
    """SIGKILL of the source process: the query fails, and its restart, which finds a heartbeat that stands still, gets
    its partitions back.
    """
    orders = shared(partitions=2, delay_s=15.0)
    consumer, query = orders.start("one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(consumer.rows) == 2, "first messages")
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgement")
    epochs = {p: each.epoch for p, each in orders.checkpoints().items()}
    (reader,) = readers(orders.lab.spark)
    reader.kill()
    failure(query)
    orders.publish((0, b"c"), (1, b"d"))
    orders.restart(consumer)
    wait_until(lambda: got(consumer) == orders.everything(), "everything")
    assert {p: each.epoch for p, each in orders.checkpoints().items()} == epochs


def test_a_stopped_query_leaves_at_once_and_its_acknowledgements_are_written(shared: Make) -> None:
    """Spark's two SIGTERMs (spark-traps.md 2)."""
    orders = shared(partitions=2, delay_s=30.0)
    consumer, query = orders.start("one", checkpointInterval="1h")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(consumer.rows) == 2, "messages")
    wait_until(lambda: consumer.log_files("commits") == [0, 1], "commit")
    time.sleep(1.0)  # one more look: the batch is complete
    assert orders.offsets() == [0, 0], "the interval is long"
    query.stop()
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements", 5)
    wait_until(lambda: not orders.records()[flow_of(consumer)].bound, "the unbind", 5)
    wait_until(lambda: readers(orders.lab.spark) == [], "the end of the reader", 5)


@pytest.mark.conformance("CHK-06")
def test_available_now_shares_a_queue_and_acknowledges_its_last_batch(shared: Make) -> None:
    orders = shared(partitions=3)
    orders.publish(*((p, b"%d" % n) for p in range(3) for n in range(20)))
    consumer = orders.consumer("now")
    stream = orders.stream(maxMessagesPerTrigger="25", checkpointInterval="1h")
    consumer.run(stream)
    assert got(consumer) == orders.everything()
    assert orders.offsets() == [20, 20, 20]
    # Spark ends the source's process when the query has ended, and does not wait for what it does then.
    wait_until(lambda: not orders.records()[flow_of(consumer)].bound, "the flow has unbound", 30)
    orders.publish((1, b"more"))
    consumer.run(stream)
    assert got(consumer) == orders.everything()
    assert not any(row.redelivered for row in consumer.rows)

    once = orders.consumer("once")  # Trigger.Once: a single look per run, its last batch acknowledged in the next
    for _ in range(2):
        ended(once.start(orders.stream(), once=True))
    assert orders.offsets() == [20, 21, 20]


def test_two_queries_with_available_now_share_the_work(shared: Make) -> None:
    orders = shared(partitions=2, delay_s=1.0)
    orders.publish(*((p, b"%d" % n) for p in range(2) for n in range(40)))
    one, two = orders.consumer("one"), orders.consumer("two")
    queries = [each.start(orders.stream(maxMessagesPerTrigger="2"), available_now=True) for each in (one, two)]
    for query in queries:
        ended(query)
    assert got(one, two) == orders.everything()
    assert orders.offsets() == [40, 40]


@pytest.mark.conformance("CHK-07")
def test_a_query_without_a_group_touches_nothing_of_any_group(shared: Make) -> None:
    orders = shared(partitions=2, coordinated=False)
    orders.publish((0, b"a"))
    grouped = orders.consumer("grouped")
    grouped.run(orders.stream(ownership="none"))
    before = {path: path.read_bytes() for path in group_files(orders)}
    head = orders.lab.head(orders.name)
    for name in ("alone", "also alone"):
        consumer = orders.lab.consumer(name)
        consumer.run(orders.lab.stream(orders.name, startingOffsets="earliest"))
        assert consumer.values == [b"a"]
    assert {path: path.read_bytes() for path in group_files(orders)} == before
    assert orders.lab.head(orders.name) == head
    assert orders.state() is None


def group_files(orders: Shared) -> list[Path]:
    folder = orders.lab.store_folder / "default" / orders.name / GROUP
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.conformance("OWN-01")
@pytest.mark.parametrize("checkpoints", ["store", "none"])
@pytest.mark.parametrize("ownership", ["redis", "none"])
def test_ownership_and_checkpoints_with_and_without_each_other(shared: Make, ownership: str, checkpoints: str) -> None:
    orders = shared(partitions=2, coordinated=ownership == "redis")
    options = {"checkpoints": checkpoints, **({"ownership": "none"} if ownership == "none" else {})}
    consumer = orders.consumer("one")
    for value in (b"a", b"b"):
        orders.publish((0, value), (1, value))
        consumer.run(orders.stream(**options))
    assert got(consumer) == orders.everything()
    assert [offset or 0 for offset in orders.offsets()] == ([2, 2] if checkpoints == "store" else [0, 0])
    assert (orders.state() is None) == (ownership == "none")


def test_alone_in_a_group_a_second_query_takes_over_and_the_first_says_so(shared: Make) -> None:
    orders = shared(partitions=2, coordinated=False)
    one, first = orders.start("one", ownership="none", flow="one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: len(one.rows) == 2, "messages")
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    two, _ = orders.start("two", ownership="none", flow="two")
    said = failure(first)
    assert "flow 'two' (instance" in said
    assert f"took over partition 0 of group default/{orders.name}/{GROUP} at epoch 2, flow 'one' stops" in said
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")


def test_a_second_live_query_under_one_name_is_refused(shared: Make) -> None:
    orders = shared(partitions=2)
    orders.start("one", flow="left")
    orders.publish((0, b"a"))
    wait_until(lambda: orders.shares() == {"left": 2}, "the first")
    _, twin = orders.start("twin", flow="left")
    assert "flow 'left' of group" in failure(twin)


def test_without_redis_a_query_fails_in_time_and_says_why(shared: Make) -> None:
    orders = shared(partitions=1, coordinated=False)
    consumer = orders.consumer("one")
    stream = orders.stream(ownership=f"redis://127.0.0.1:{free_port()}/0", retryTimeout="2s")
    begun_s = time.monotonic()
    said = failure(consumer.start(stream))
    assert "redis://127.0.0.1" in said
    assert time.monotonic() - begun_s < 30


def test_bad_options_are_refused_where_a_person_sees_them(shared: Make) -> None:
    orders = shared(partitions=1, coordinated=False)
    with pytest.raises(Exception, match=r"'flow' .* is for a consumer group"):
        orders.lab.stream(orders.name, flow="left")
    with pytest.raises(Exception, match="ackMode='manual' needs the option flow"):
        orders.stream(ackMode="manual")


def test_the_heartbeat_belongs_to_the_reader_process_of_the_jvm(shared: Make) -> None:
    """The liveness watches the reader's parent: that has to be the JVM (spark-traps.md 25)."""
    orders = shared(partitions=1)
    orders.start("one")
    gateway = orders.lab.spark.sparkContext._gateway
    assert gateway is not None
    (reader,) = readers(orders.lab.spark)
    assert reader.ppid() == gateway.proc.pid
