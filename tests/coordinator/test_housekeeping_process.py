"""Housekeeping by real coordinator processes on a real directory: what goes, what stays, and who goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from coordinator.housekeeper import lease_key
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import Owner
from partq_spark.group.ownership import open_ownership
from partq_spark.log import admin, names
from partq_spark.log.model import QueueConfig
from partq_spark.log.queue import QueueLog
from tests.cli.conftest import Partq
from tests.coordinator.sidecars import Place, Sidecar
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

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "store")
        self.partq = Partq(folder / "store")

    def hasty(self, name: str = "c1") -> Sidecar:
        return Sidecar(self.folder, name, self.environ(**SOON), HASTY)

    def make(self, name: str, retention_s: float | None = 1.0) -> QueueLog:
        return admin.create_queue(self.store, "default", name, 2, QueueConfig(retention_s=retention_s))

    def publish(self, queue: QueueLog, publishes: int = 3) -> tuple[int, ...]:
        """Ten messages each time; where the partitions end then."""
        for _ in range(publishes):
            lines = "\n".join(json.dumps({"key": f"k{n}", "value": "x"}) for n in range(10))
            self.partq("publish", queue.name, stdin=lines)
        return queue.refresh().next

    def group(self, queue: QueueLog, name: str) -> CheckpointStore:  # type: ignore[override]
        admin.create_group(queue, name, (0,) * queue.refresh().partitions)
        return lifecycle.checkpoints_of(queue, name)

    def acknowledge(self, group: CheckpointStore, *offsets: int) -> None:
        for partition, offset in enumerate(offsets):
            held = group.fence(partition, to=Owner("a", "i1"), epoch=1, start=0, delivered=None)
            group.update_checkpoint(held, offset)

    def segments(self, queue: QueueLog) -> int:
        return sum(1 for _ in self.store.list(names.segment_folder("default", queue.name, queue.head.queue_id)))

    def keeper(self) -> str | None:
        """Whose the lease is."""
        found = open_ownership("store", store=self.store).read_lease(lease_key("default"))
        return found.lease.name if found is not None else None


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_what_every_group_has_acknowledged_goes_and_what_one_needs_stays(house: House) -> None:
    orders, archive, kept = house.make("orders"), house.make("archive"), house.make("kept", None)
    billing, audit = house.group(orders, "billing"), house.group(orders, "audit")
    ends = house.publish(orders)
    house.publish(archive)
    house.publish(kept)
    house.acknowledge(billing, *ends)
    house.acknowledge(audit, ends[0], 3)
    with house.hasty() as sidecar:
        wait_until(lambda: orders.refresh().earliest == (ends[0], 3), "trimming up to what a group needs")
        wait_until(lambda: archive.refresh().messages == 0, "trimming by age alone where there is no group")
        wait_until(lambda: house.segments(archive) == 0, "collection")
        assert orders.refresh().earliest == (ends[0], 3), "not a message more"
        assert house.segments(orders) > 0
        assert [each["value"] for each in house.partq.browse("orders")] == ["x"] * (ends[1] - 3)
        house.acknowledge(audit, ends[0], ends[1])
        wait_until(lambda: orders.refresh().messages == 0 and house.segments(orders) == 0, "all the rest")
        assert kept.refresh().messages == 30, "a queue without a retention keeps everything"
        assert house.segments(kept) == 3
        assert house.partq.json("queue", "list"), "what the lease lies in is no queue"
        trimmed = [line for line in sidecar.lines("messages_trimmed") if line["queue"] == "orders"]
        assert sum(line["messages"] for line in trimmed) == sum(ends)
        assert trimmed[0]["held_back_by"] == "audit"
        assert "retention of 1 s" in trimmed[0]["reason"]
        deleted = "objects_deleted"
        wait_until(lambda: sum(line["objects"] for line in sidecar.lines(deleted)) >= 6, "word of it")
        assert not sidecar.lines("housekeeping_failed"), sidecar.text()
        assert sidecar.health()[1]["housekeeper"] is True
        code, took_s = sidecar.end()
        assert code == 0
        assert took_s < 5
    assert house.keeper() is None, "the lease was given up"


@pytest.mark.conformance("TYP-06")
def test_rows_go_by_retention_as_messages_do(house: House) -> None:
    """Of two versions of the columns."""
    house.partq(
        *("queue", "create", "rows", "--partitions", 1, "--schema", "id INT, name STRING", "--key", "id"),
        *("--retention", 1),
    )
    rows = QueueLog(house.store, "default", "rows")
    rows.refresh()
    audit = house.group(rows, "audit")
    for number in range(6):
        house.partq("publish", "rows", stdin=f'{{"id": {number}, "name": "x"}}\n')
    house.partq("queue", "alter", "rows", "--add-column", "coupon STRING")
    house.partq("publish", "rows", stdin='{"id": 6, "coupon": "y"}\n')
    house.acknowledge(audit, 6)
    with house.hasty() as sidecar:
        wait_until(lambda: rows.refresh().earliest == (6,), "trimming up to what the group needs")
        assert [(each["id"], each["coupon"]) for each in house.partq.browse("rows")] == [(6, "y")]
        house.acknowledge(audit, 7)
        wait_until(lambda: rows.refresh().messages == 0 and house.segments(rows) == 0, "all the rest")
        wait_until(lambda: sum(line["messages"] for line in sidecar.lines("messages_trimmed")) == 7, "word of it")
        assert not sidecar.lines("housekeeping_failed"), sidecar.text()


def test_the_other_coordinator_goes_on_when_the_housekeeper_is_killed(house: House) -> None:
    orders = house.make("orders")
    with house.hasty("first") as first:
        wait_until(lambda: house.keeper() == "first", "a housekeeper")
        with house.hasty("second") as second:
            wait_until(second.is_ready, "a second coordinator")
            house.publish(orders, 1)
            wait_until(lambda: orders.refresh().messages == 0, "trimming")
            assert not second.lines("messages_trimmed"), "one is enough"
            first.kill()
            house.publish(orders, 1)
            wait_until(lambda: orders.refresh().messages == 0, "trimming by the other")
            assert house.keeper() == "second"
            wait_until(lambda: bool(second.lines("messages_trimmed")), "word of it")


def test_a_queue_that_is_damaged_is_told_once_and_the_others_are_kept(house: House) -> None:
    bad, good = house.make("bad"), house.make("good")
    house.publish(bad, 1)
    marks = names.collection_name("default", "bad", bad.head.queue_id)
    house.store.swap(marks, b'{"not": "marks"}', expected=None)
    with house.hasty() as sidecar:
        wait_until(lambda: bool(sidecar.lines("housekeeping_failed")), "a word about it")
        for _ in range(2):
            house.publish(good, 1)
            wait_until(lambda: good.refresh().messages == 0, "trimming of the other")
        failed = sidecar.lines("housekeeping_failed")
        assert [(line["queue"], line["work"]) for line in failed] == [("bad", "collect")]
        wait_until(lambda: bad.refresh().messages == 0, "what else there is to do for it")


def test_a_coordinator_that_is_told_not_to_keeps_nothing(house: House) -> None:
    orders = house.make("orders")
    house.publish(orders, 1)
    settings = {**SOON, "PARTQ_COORDINATOR_HOUSEKEEPING": "false"}
    with Sidecar(house.folder, "idle", house.environ(**settings), HASTY) as idle, house.hasty("busy"):
        wait_until(idle.is_ready, "a coordinator")
        wait_until(lambda: orders.refresh().messages == 0, "trimming by the other one")
        assert house.keeper() == "busy"
        assert not idle.lines("messages_trimmed")
