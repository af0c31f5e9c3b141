"""The partition count and the access type change while streaming queries share the queue."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from click.testing import CliRunner
from pyspark.sql import Row

from partq_spark.cli.main import cli as partq
from partq_spark.log.admin import alter_queue
from partq_spark.log.partitioner import partition_of
from tests.spark.flows.conftest import GROUP, Shared, flow_of, got
from tests.spark.flows.test_handoffs import Gate
from tests.support.spark import Consumer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]
KEYS = [f"k{number}" for number in range(12)]


def alter(orders: Shared, *arguments: str) -> None:
    """As a person does it."""
    words = ["queue", "alter", orders.name, "--store", orders.lab.url, "--ownership", orders.ownership, *arguments]
    done = CliRunner().invoke(partq, words)
    assert done.exit_code == 0, done.output


def status(orders: Shared) -> dict[str, object]:
    words = ["status", orders.name, "--group", GROUP, "--store", orders.lab.url, "--ownership", orders.ownership]
    done = CliRunner().invoke(partq, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.output)
    return found


def publish_all(orders: Shared, number: int) -> None:
    """One message of every key, numbered."""
    orders.lab.publish(orders.name, [(key, b"%d" % number) for key in KEYS])


def numbers(orders: Shared) -> list[int]:
    """The partitions that the group has to deliver, as its coordinator sees it."""
    state = orders.state()
    return list(state.partitions) if state is not None else []


def disorder(rows: Sequence[Row]) -> list[str]:
    """What came before something older of its key, without what is marked."""
    last: dict[str, int] = defaultdict(lambda: -1)
    found = []
    for row in rows:
        number = int(row.value)
        if not row.redelivered and number <= last[row.key]:
            found.append(f"{row.key}: {number} after {last[row.key]} in partition {row.partition}")
        last[row.key] = max(last[row.key], number)
    return found


@pytest.mark.conformance("RES-01", "RES-02", "RES-03", "REB-08", "REB-09")
def test_a_queue_grows_and_shrinks_while_queries_share_it_and_a_publisher_publishes(shared: Make) -> None:
    orders = shared(partitions=4, delay_s=60.0)  # which a change of the count does not wait for
    one, _ = orders.start("one", maxMessagesPerTrigger="100")
    wait_until(lambda: orders.shares() == {flow_of(one): 4}, "all partitions")
    stop = threading.Event()
    published: list[int] = []

    def keep_publishing() -> None:
        while not stop.wait(0.25):
            publish_all(orders, len(published))
            published.append(len(published))

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        wait_until(lambda: len(one.rows) > 50, "messages at the first query")
        two = orders.consumer("two")
        two.batches = one.batches  # one list of all that is delivered, in the order in which it was
        orders.restart(two, maxMessagesPerTrigger="100")
        orders.wait_for_shares(0, 4)  # it is bound, and waits for the delay
        for count, shares in ((8, (4, 4)), (3, (1, 2))):
            alter(orders, "--partitions", str(count))
            orders.partitions = count
            orders.wait_for_shares(*shares, wait_s=30)
            before = len(published)
            wait_until(lambda before=before: len(published) > before + 10, "messages under the new count")  # type: ignore[misc]
    finally:
        stop.set()
        publisher.join()
    wait_until(lambda: set(got(one)) == set(orders.everything()), "everything")
    assert disorder(one.rows) == []
    assert {row.partition for row in one.rows} == {partition_of(key.encode(), n) for n in (4, 8, 3) for key in KEYS}
    assert len(got(one)) - len(set(got(one))) <= sum(row.redelivered for row in one.rows)
    wait_until(lambda: numbers(orders) == [0, 1, 2], "the removed ones to go")
    assert status(orders)["scale_status"] == "Ready"


@pytest.mark.conformance("RES-03")
def test_only_partitions_that_share_keys_with_what_is_not_finished_wait(shared: Make) -> None:
    """From 2 to 4 partitions: 0 and 2 share keys with the former 0, 1 and 3 with the former 1."""
    orders = shared(partitions=2)
    one, _ = orders.start("one")
    two, _ = orders.start("two")
    three, _ = orders.start("three")  # stands by
    wait_until(lambda: sorted(orders.shares().values()) == [0, 1, 1], "two with one partition each")
    slow = next(p for p, flow in orders.owners().items() if flow == flow_of(two))
    gate = Gate()
    two.failing = gate
    gate.close()
    orders.publish((slow, b"1"))
    wait_until(gate.held.is_set, "a batch in the second query's hands")

    alter(orders, "--partitions", "4")
    orders.partitions = 4
    wait_until(lambda: sorted(orders.shares().values()) == [1, 1, 2], "shares of the new partitions")
    other = 1 - slow
    assert orders.owners()[slow] == flow_of(two)
    assert orders.owners()[slow + 2] in (flow_of(one), flow_of(three))
    orders.publish((slow + 2, b"2"), (other, b"3"), (other + 2, b"4"))
    wait_until(lambda: {row.value[0] for row in one.rows + three.rows} == {51, 52}, "messages of what shares no keys")
    told = status(orders)
    assert told["scale_status"] == "ScalingUp"
    partitions = {each["partition"]: each for each in told["partitions"]}  # type: ignore[attr-defined]
    assert partitions[slow + 2]["lag"] == 1
    assert f"partition {slow}" in partitions[slow + 2]["reason"]
    gate.open()
    wait_until(lambda: len(one.rows + three.rows) == 3, "the message that had to wait")
    assert (one.rows + three.rows)[-1].partition == slow + 2 or b"2" in one.values + three.values
    wait_until(lambda: status(orders)["scale_status"] == "Ready", "the end of the change")
    assert not any(row.redelivered for row in one.rows + two.rows + three.rows)


@pytest.mark.conformance("RES-02", "RES-04")
@pytest.mark.parametrize("ownership", ["redis", "none"])
def test_removed_partitions_are_finished_and_continue_when_they_come_back(shared: Make, ownership: str) -> None:
    alone = {"ownership": "none"} if ownership == "none" else {}
    orders = shared(partitions=4, coordinated=not alone)
    one, query = orders.start("one", **alone)
    publish_all(orders, 0)
    wait_until(
        lambda: orders.offsets() == list(orders.lab.head(orders.name).next), "the first messages' acknowledgement"
    )
    query.stop()
    publish_all(orders, 1)
    before = orders.lab.head(orders.name).next
    alter(orders, "--partitions", "2")
    publish_all(orders, 2)

    query = orders.restart(one, **alone)
    wait_until(lambda: len(one.rows) == 3 * len(KEYS), "what was in the removed partitions, and what came after")
    assert disorder(one.rows) == []
    wait_until(lambda: orders.offsets()[:4] == list(orders.lab.head(orders.name).next), "acknowledgements")
    if not alone:
        wait_until(lambda: numbers(orders) == [0, 1], "the removed ones to go")
    epochs = {p: found.epoch for p, found in orders.checkpoints().items()}

    alter(orders, "--partitions", "4")
    assert orders.lab.head(orders.name).layout.begin[2:] == before[2:]
    publish_all(orders, 3)
    wait_until(lambda: len(one.rows) == 4 * len(KEYS), "messages of partitions that came back")
    assert disorder(one.rows) == []
    for p in (2, 3):
        mine = [row.offset for row in one.rows if row.partition == p]
        assert mine == list(range(len(mine)))  # one continues the other, nothing twice
    if not alone:
        assert all(orders.checkpoints()[p].epoch > epochs[p] for p in (2, 3))
    query.stop()


@pytest.mark.conformance("RES-03")
def test_a_run_to_the_end_reads_all_layouts_in_order(shared: Make) -> None:
    """AvailableNow: what waits for an earlier layout comes in a later batch of the same run."""
    orders = shared(partitions=2, coordinated=False)
    consumer: Consumer = orders.consumer("now")
    for number, count in enumerate((3, 2, 5)):
        publish_all(orders, number)
        alter_queue(orders.lab.queue(orders.name), partitions=count)
    publish_all(orders, 3)
    consumer.run(orders.stream(ownership="none"))
    assert sorted(got(consumer)) == sorted(orders.everything())
    assert disorder(consumer.rows) == []
    moved = [key for key in KEYS if partition_of(key.encode(), 2) != partition_of(key.encode(), 5)]
    assert moved
    assert len(consumer.sizes) > 1
    publish_all(orders, 4)
    consumer.run(orders.stream(ownership="none"))
    assert len(consumer.rows) == 5 * len(KEYS)


@pytest.mark.conformance("RES-06", "REB-08")
def test_the_access_type_changes_while_queries_run(shared: Make) -> None:
    orders = shared(partitions=4, delay_s=60.0)
    alter(orders, "--access-type", "exclusive")
    one, _ = orders.start("one")
    two, _ = orders.start("two")
    wait_until(lambda: orders.shares() == {flow_of(one): 4, flow_of(two): 0}, "one active flow and one standby")
    publish_all(orders, 0)
    wait_until(lambda: len(one.rows) == len(KEYS), "everything at the active one")
    assert two.rows == []
    alter(orders, "--access-type", "non-exclusive")
    orders.wait_for_shares(2, 2)  # at once: the rebalance delay is a minute
    publish_all(orders, 1)
    wait_until(lambda: len(one.rows + two.rows) == 2 * len(KEYS), "both at work")
    assert two.rows
    alter(orders, "--access-type", "exclusive")
    orders.wait_for_shares(0, 4)
    publish_all(orders, 2)
    wait_until(lambda: len(one.rows + two.rows) == 3 * len(KEYS), "one at work")
    assert got(one, two) == orders.everything()
