"""Housekeeping by real coordinator processes on a real directory: what goes, what stays, and who goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

import partq
from tests.cast.sidecars import Place, Sidecar, checkpoints
from tests.support.waiting import wait_until

pytestmark = pytest.mark.crash

# The same program; only that it does not wait between two steps of a kind as long as it does outside of tests.
HASTY: Final = (
    sys.executable,
    "-P",
    "-c",
    (
        "import os; from coordinator import __main__, due_housekeeping as h; "
        "h.RETAIN_LEAST_S = h.RETAIN_MOST_S = h.COMPACT_S = h.COLLECT_LEAST_S = 0.3; os._exit(__main__.main([]))"
    ),
)
SOON: Final = {
    "PARTQ_COORDINATOR_HOUSEKEEPING_LOOK_S": "0.2",
    "PARTQ_COORDINATOR_COLLECTION_GRACE_S": "1",
    "PARTQ_COORDINATOR_COMPACTION_MIN_AGE_S": "0",
    "PARTQ_COORDINATOR_HEADS_S": "0.2",
}


class House(Place):
    """A store with queues that keep messages for a second."""

    def hasty(self, name: str = "c1", **environ: str) -> Sidecar:
        return Sidecar(self.folder, name, self.environ(**SOON, **environ), HASTY)

    def make(self, name: str, retention_s: float | None = 1.0) -> partq.Queue:
        return partq.create_queue(name, store=self.url, retention_s=retention_s, partitions=2)

    def publish(self, queue: partq.Queue, publishes: int = 3) -> None:
        """Ten messages each time."""
        for _ in range(publishes):
            with queue.publisher() as publisher:
                for key in range(10):
                    publisher.send("x", key=f"k{key}")

    def take(self, queue: partq.Queue, group: str, *ends: int) -> None:
        """A flow alone acknowledges up to these offsets, by partition."""
        with queue.consumer(group, starting="earliest", acknowledge="manual", max_messages=1) as consumer:
            while tuple(each.acknowledged for each in checkpoints(queue, group)) != ends:
                batch = consumer.poll(1.0)
                for message in batch or ():
                    if batch is not None and message.offset < ends[message.partition]:
                        batch.acknowledge()

    def segments(self, queue: partq.Queue) -> int:
        return len(list((self.folder / "store/default" / queue.name / "_segments").rglob("*.arrow")))

    def keeper(self, *sidecars: Sidecar) -> list[str]:
        """Who says that it keeps house."""
        return [each.name for each in sidecars if each.health()[1].get("housekeeper") is True]


def readable(queue: partq.Queue) -> int:
    return len(list(queue.browse()))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, "store")


def test_what_every_group_has_acknowledged_goes_and_what_one_needs_stays(house: House) -> None:
    orders, archive, kept = house.make("orders"), house.make("archive"), house.make("kept", None)
    for group in ("billing", "audit"):
        orders.create_group(group, starting="earliest")
    for queue in (orders, archive, kept):
        house.publish(queue)
    messages = [sum(1 for _ in orders.browse(partition=number)) for number in (0, 1)]
    house.take(orders, "billing", *messages)
    house.take(orders, "audit", messages[0], 3)
    with house.hasty() as sidecar:
        wait_until(lambda: readable(orders) == messages[1] - 3, "trimming up to what a group needs")
        wait_until(lambda: readable(archive) == 0, "trimming by age alone where there is no group")
        wait_until(lambda: house.segments(archive) == 0, "collection")
        assert [(each.partition, each.value) for each in orders.browse()] == [(1, b"x")] * (messages[1] - 3)
        assert house.segments(orders) > 0
        house.take(orders, "audit", *messages)
        wait_until(lambda: readable(orders) == 0 and house.segments(orders) == 0, "all the rest")
        assert readable(kept) == 30, "a queue without a retention keeps everything"
        assert house.segments(kept) == 3
        assert {each.queue for each in partq.list_queues(store=house.url)} == {"orders", "archive", "kept"}
        trimmed = [line for line in sidecar.lines("messages_trimmed") if line["queue"] == "orders"]
        assert sum(line["messages"] for line in trimmed) == 30
        assert trimmed[0]["held_back_by"] == "audit"
        assert "retention of 1 s" in trimmed[0]["reason"]
        wait_until(lambda: sum(line["objects"] for line in sidecar.lines("objects_deleted")) >= 6, "word of it")
        assert not sidecar.lines("housekeeping_failed"), sidecar.text()
        assert house.keeper(sidecar) == ["c1"]
        assert sidecar.end() == 0
    with house.hasty("c2") as second:
        wait_until(lambda: house.keeper(second) == ["c2"], "another one, at once")


def test_another_coordinator_goes_on_and_one_that_is_told_not_to_keeps_nothing(house: House) -> None:
    orders = house.make("orders")
    with house.hasty("idle", PARTQ_COORDINATOR_HOUSEKEEPING="false") as idle, house.hasty("first") as first:
        wait_until(idle.is_ready, "a coordinator")
        wait_until(lambda: house.keeper(idle, first) == ["first"], "a housekeeper")
        with house.hasty("second") as second:
            wait_until(second.is_ready, "a second coordinator")
            house.publish(orders, 1)
            wait_until(lambda: readable(orders) == 0, "trimming")
            assert not second.lines("messages_trimmed"), "one is enough"
            first.kill()
            house.publish(orders, 1)
            wait_until(lambda: readable(orders) == 0, "trimming by the other")
            assert house.keeper(idle, second) == ["second"]
            wait_until(lambda: bool(second.lines("messages_trimmed")), "word of it")
            assert not idle.lines("messages_trimmed")
