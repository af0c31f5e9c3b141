"""ackMode=manual in `foreachBatch`, with real queries, Redis and coordinator (seed 000, "Best Practices")."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pyspark.sql import DataFrame, Row

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.client.acknowledge import Acknowledger, KeySequences
from tests.spark.flows.conftest import GROUP, Shared
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


@dataclass(kw_only=True)
class Application:
    """Handles sequences that end with a message `end`; acknowledges them when they are complete."""

    orders: Shared
    flow: str
    rows: list[Row] = field(default_factory=list)
    finished: list[tuple[str, ...]] = field(default_factory=list)
    trouble: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences = KeySequences(acknowledger(self.orders, self.flow))
        self.memory: dict[tuple[int, str], list[str]] = {}

    def __call__(self, batch: DataFrame, _batch_id: int) -> None:
        try:
            self._handle(batch.orderBy("partition", "offset").collect())
        except Exception as error:
            self.trouble.append(error)
            raise

    def _handle(self, rows: list[Row]) -> None:
        void = self.sequences.begin()
        self.memory = {place: said for place, said in self.memory.items() if place[0] not in void}
        for row in rows:
            self.rows.append(row)
            self.sequences.seen(row.partition, row.offset, row.key)
            said = self.memory.setdefault((row.partition, row.key), [])
            said.append(bytes(row.value).decode())
            if said[-1] == "end":
                self.finished.append(tuple(self.memory.pop((row.partition, row.key))))
                self.sequences.complete(row.partition, row.key)
        self.sequences.acknowledge()

    def start(self) -> object:
        consumer = self.orders.consumer(self.flow)
        stream = self.orders.stream(ackMode="manual", flow=self.flow, checkpointInterval="0s")
        writer = stream.writeStream.foreachBatch(self).option("checkpointLocation", str(consumer.checkpoint))
        return writer.start()


def acknowledger(orders: Shared, flow: str, timeout_s: float = 30.0) -> Acknowledger:
    return Acknowledger(queue=orders.name, group=GROUP, flow=flow, store=orders.lab.url, timeout_s=timeout_s)


@pytest.mark.conformance("SEQ-01")
def test_an_unfinished_sequence_goes_to_the_new_flow_from_its_first_message(shared: Make) -> None:
    orders = shared(partitions=2, handoff_s=1.0)
    left, right = Application(orders=orders, flow="left"), Application(orders=orders, flow="right")
    left.start()
    wait_until(lambda: orders.shares() == {"left": 2}, "both partitions")
    orders.publish((0, b"one"), (1, b"one"))
    orders.publish((0, b"end"), (1, b"two"))
    wait_until(lambda: len(left.rows) == 4, "the first messages")
    wait_until(lambda: orders.offsets() == [2, 0], "the acknowledgement of what is complete")
    right.start()
    orders.wait_for_shares(1, 1)
    owners = orders.owners()
    moved = next(p for p, flow in owners.items() if flow == "right")
    if moved == 0:  # which one moves is the coordinator's choice
        orders.publish((0, b"one"), (0, b"end"))
        wait_until(lambda: right.finished == [("one", "end")], "a sequence at the new flow")
        assert left.memory == {(1, orders.key_of(1)): ["one", "two"]}
        return
    orders.publish((1, b"end"))
    wait_until(lambda: right.finished == [("one", "two", "end")], "the whole sequence at the new flow")
    assert [(row.offset, row.redelivered) for row in right.rows] == [(0, True), (1, True), (2, False)]
    assert left.finished == [("one", "end")]
    wait_until(lambda: orders.offsets()[1] == 3, "its acknowledgement")
    orders.publish((0, b"end"))
    wait_until(lambda: len(left.finished) == 2, "the former flow goes on with what it kept")
    assert left.memory == {}, "it was told that the other sequence is void"
    assert left.trouble == right.trouble == []


@pytest.mark.conformance("SEQ-01")
def test_a_restart_brings_back_what_was_not_acknowledged(shared: Make) -> None:
    orders = shared(partitions=1)
    before = Application(orders=orders, flow="left")
    query = before.start()
    orders.publish((0, b"one"), (0, b"two"))
    wait_until(lambda: len(before.rows) == 2, "the beginning of a sequence")
    query.stop()  # type: ignore[attr-defined]
    after = Application(orders=orders, flow="left")
    after.start()
    orders.publish((0, b"end"))
    wait_until(lambda: after.finished == [("one", "two", "end")], "the whole sequence")
    assert [(row.offset, row.redelivered) for row in after.rows] == [(0, True), (1, True), (2, False)]
    wait_until(lambda: orders.offsets() == [3], "its acknowledgement")


def test_an_application_may_acknowledge_at_any_time(shared: Make) -> None:
    """Also long after its batch, from another thread than Spark's."""
    orders = shared(partitions=1)
    consumer = orders.consumer("left")
    consumer.start(orders.stream(ackMode="manual", flow="left", checkpointInterval="0s", pollInterval="20s"))
    orders.publish((0, b"a"), (0, b"b"))
    wait_until(lambda: len(consumer.rows) == 2, "the messages")
    hand = acknowledger(orders, "left").in_hand()
    assert {p: (held.epoch, held.delivered) for p, held in hand.partitions.items()} == {0: (1, 2)}
    begun_s = time.monotonic()
    assert hand.acknowledge({0: 1}) == {0}
    assert time.monotonic() - begun_s < 2, "the reader's long idle look lets others in"
    wait_until(lambda: orders.offsets() == [1], "the acknowledgement")
    with pytest.raises(Invalid, match="partition 0 cannot be acknowledged up to 3: delivered is up to 2"):
        hand.acknowledge({0: 3})
    with pytest.raises(Invalid, match="partition 7 cannot be acknowledged up to 1: it is not in hand"):
        hand.acknowledge({7: 1})


def test_a_flow_that_is_not_here_is_named(shared: Make) -> None:
    orders = shared(partitions=1)
    with pytest.raises(
        Unavailable, match=f"flow 'nobody' of group default/{orders.name}/billing has no reader process"
    ):
        acknowledger(orders, "nobody", timeout_s=0.5).in_hand()
