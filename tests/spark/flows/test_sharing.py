"""What changes while streaming queries share a queue, and goes on: its partition count, its access type, its columns,
where the group is; on Redis, and on blobs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from tests.spark.flows.conftest import (
    Shared,
    coordinator,
    flow_of,
    going_on,
    got,
    marked,
    partition_of,
)
from tests.support.spark import Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]
KEYS = [f"k{number}" for number in range(12)]


def alter(orders: Shared, **changes: Any) -> None:
    """As a person does it, with a word to the coordinator."""
    orders.queue.alter(ownership=orders.ownership, **changes)
    orders.partitions = changes.get("partitions", orders.partitions)


def publish_keys(orders: Shared, number: int) -> None:
    """One message of every key, numbered."""
    orders.lab.publish(orders.name, [(key, b"%d" % number) for key in KEYS])


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
    published: list[int] = []

    def publish() -> None:
        publish_keys(orders, len(published))
        published.append(len(published))

    with going_on(publish, 0.25):
        wait_until(lambda: len(one.rows) > 50, "messages at the first query")
        two = orders.consumer("two")
        two.batches = one.batches  # one list of all that is delivered, in the order in which it was
        orders.restart(two, maxMessagesPerTrigger="100")
        orders.wait_for_shares(0, 4)  # it is bound, and waits for the delay
        for count, shares in ((8, (4, 4)), (3, (1, 2))):
            alter(orders, partitions=count)
            orders.wait_for_shares(*shares, wait_s=50)
            before = len(published)
            wait_until(lambda before=before: len(published) > before + 5, "messages under the new count")  # type: ignore[misc]
    wait_until(lambda: set(got(one)) == set(orders.everything()), "everything")
    assert disorder(one.rows) == []
    assert {row.partition for row in one.rows} == {partition_of(key, n) for n in (4, 8, 3) for key in KEYS}
    assert len(got(one)) - len(set(got(one))) <= len(marked(one))
    wait_until(lambda: set(orders.statuses()) == {0, 1, 2}, "the removed ones to go")
    view = orders.status()
    assert view is not None
    assert view.scale_status == "Ready"


@pytest.mark.azurite
@pytest.mark.conformance("HAN-05", "CHK-01", "CHK-02")
def test_two_queries_share_a_queue_that_is_kept_in_blobs_alone(azure_lab: Lab, tmp_path: Path) -> None:
    """Queue, checkpoints and ownership."""
    orders = Shared(lab=azure_lab, ownership="store", name="orders", partitions=2)
    azure_lab.create("orders", 2, rebalance_delay_s=0.0, max_handoff_time_s=30.0)
    with coordinator(azure_lab.url, "store", tmp_path):
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
