"""What a query may have in hand without acknowledging it (HAN-12), and what its progress tells of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.flows.conftest import Shared, flow_of
from tests.spark.flows.test_by_hand import acknowledger
from tests.support.spark import Lab, counts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def told(query: StreamingQuery) -> dict[str, Any]:
    """What the newest progress says of the source."""
    progress = query.lastProgress
    if progress is None or progress.sources[0].latestOffset in (None, "null"):
        return {}
    found: dict[str, Any] = json.loads(progress.sources[0].latestOffset)
    return found


@pytest.mark.conformance("HAN-12")
def test_a_partition_that_nobody_acknowledges_leaves_the_others_their_window(shared: Make) -> None:
    orders = shared(partitions=2)
    blocked, free = 0, 1
    taken: list[Any] = []

    def handle(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        taken.extend(rows)
        done = [row.offset + 1 for row in rows if row.partition == free]
        if done:
            acknowledger(orders, "left").in_hand().acknowledge({free: max(done)})

    orders.publish(*((p, b"%d" % n) for n in range(40) for p in (blocked, free)))
    consumer = orders.consumer("left")
    stream = orders.stream(
        ackMode="manual", flow="left", maxDeliveredUnackedMsgsPerFlow="10", checkpointInterval="0s", pollInterval="20ms"
    )
    query = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(consumer.checkpoint)).start()
    wait_until(lambda: counts(taken).get(free, 0) == 40, "all of the partition that is acknowledged")
    wait_until(lambda: orders.offsets() == [0, 40], "its checkpoint")
    assert counts(taken) == {blocked: 5, free: 40}, "its part of the window, and no more"
    record = orders.records()["left"].deliveries[blocked]
    assert record.delivered - record.acknowledged == 5
    orders.publish((blocked, b"more"), (free, b"more"))
    wait_until(lambda: counts(taken)[free] == 41, "what is new in the other")
    assert counts(taken)[blocked] == 5
    acknowledger(orders, "left").in_hand().acknowledge({blocked: 5})
    wait_until(lambda: counts(taken)[blocked] == 10, "the next ones, as soon as there is room")
    assert query.exception() is None
    assert not any(row.redelivered for row in taken)


def test_progress_tells_flow_partitions_epochs_and_lag(shared: Make) -> None:
    orders = shared(partitions=2)
    one, first = orders.start("one", maxMessagesPerTrigger="4")
    orders.publish(*((p, b"%d" % n) for n in range(4) for p in (0, 1)))
    wait_until(lambda: len(one.rows) == 8, "the messages")
    wait_until(lambda: lags(first)[-1:] == [0], "the progress of the last batch")
    assert lags(first)[-2:] == [4, 0], "after the batch before half of it was to come"
    two, second = orders.start("two")
    orders.wait_for_shares(1, 1)
    orders.publish((0, b"x"), (1, b"y"))
    wait_until(lambda: len(one.rows) + len(two.rows) == 10, "a message for each query")
    for consumer, query in ((one, first), (two, second)):
        wait_until(partial(tells_of_one, query), "progress")
        found = told(query)
        assert found.keys() == {"queue", "group", "flow", "partitions", "notify"}
        assert found["flow"] == flow_of(consumer)
        assert Path(found["notify"]).is_socket()
        ((partition, told_of_it),) = found["partitions"].items()
        assert told_of_it == {"epoch": orders.checkpoints()[int(partition)].epoch, "end": 5, "lag": 0}
        assert orders.owners()[int(partition)] == flow_of(consumer)


def test_progress_of_a_query_that_has_the_group_to_itself_and_of_one_without_a_group(lab: Lab) -> None:
    orders = Shared(lab=lab, ownership="none", name="orders", partitions=2)
    lab.create("orders", 2)
    orders.publish((0, b"a"), (1, b"b"), (1, b"c"))
    alone, solo = orders.start("solo", flow="solo")
    wait_until(lambda: len(alone.rows) == 3, "messages")
    none = lab.consumer("none")
    query = none.start(lab.stream("orders", startingOffsets="earliest"))
    wait_until(lambda: len(none.rows) == 3, "messages without a group")
    wait_until(lambda: bool(told(solo).get("partitions")), "progress")
    found = told(solo)
    assert found.pop("notify")
    assert found == {
        "queue": "orders",
        "group": "billing",
        "flow": "solo",
        "partitions": {"0": {"epoch": 1, "end": 1, "lag": 0}, "1": {"epoch": 1, "end": 2, "lag": 0}},
    }
    wait_until(lambda: bool(told(query)), "progress without a group")
    assert told(query) == {
        "queue": "orders",
        "flow": None,
        "partitions": {"0": {"epoch": 0, "end": 1, "lag": 0}, "1": {"epoch": 0, "end": 2, "lag": 0}},
    }


def tells_of_one(query: StreamingQuery) -> bool:
    return len(told(query).get("partitions", {})) == 1


def lags(query: StreamingQuery) -> list[int]:
    """Of all partitions together, by every progress with messages."""
    found = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress if each.numInputRows]
    return [sum(partition["lag"] for partition in one["partitions"].values()) for one in found]
