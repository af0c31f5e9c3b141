"""`partq group`: what it lists, what it refuses to remove and why, and what is left when it has removed a group."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partq_spark.group import lifecycle
from partq_spark.group.heartbeat import HeartbeatThread, Liveness
from partq_spark.group.model import FlowRecord, GroupKey, Owner
from partq_spark.group.ownership import open_ownership
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects import ObjectStore, open_store
from tests.cli.conftest import Partq
from tests.coordinator.sidecars import Place
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

KEY = GroupKey("default", "orders", "billing")
OWNER = Owner("billing-1", "i1")
REMOVE = ("group", "remove", "orders", "--group", "billing")


class Group:
    """The group `billing` of `orders` with two partitions, each acknowledged up to 5 by billing-1 a while ago."""

    def __init__(self, partq: Partq) -> None:
        self.partq = partq
        partq("queue", "create", "orders", "--partitions", 2)
        partq("publish", "orders", stdin="\n".join(json.dumps({"key": f"k{n}", "value": "x"}) for n in range(40)))
        self.store: ObjectStore = open_store(partq.url)
        queue = QueueLog(self.store, "default", "orders")
        self.messages = sum(queue.refresh().next)
        admin.create_group(queue, "billing", [0, 0])
        self.checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
        for partition in (0, 1):
            held = self.checkpoints.fence(partition, to=OWNER, epoch=1, start=0, delivered=None)
            self.checkpoints.update_checkpoint(held, 5)
        self.age(120)

    def age(self, seconds: float, *partitions: int) -> None:
        """Checkpoints were written so long ago, by the disk's clock."""
        for partition in partitions or (0, 1):
            path = self.partq.store / self.checkpoints.name_of(partition)
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    @property
    def names(self) -> list[str]:
        return sorted(QueueLog(self.store, "default", "orders").refresh().groups)

    def bind(self, **facts: object) -> FlowRecord:
        """A flow's record beside the queue, with a heartbeat that does not move."""
        ownership = open_ownership("store", store=self.store)
        record = FlowRecord(
            flow="billing-1",
            instance="i1",
            queue_id=QueueLog(self.store, "default", "orders").refresh().queue_id,
            incarnation=ownership.incarnation(),
            bound=True,
            session_timeout_s=1.0,
        )
        record = replace(record, **facts)  # type: ignore[arg-type]
        ownership.bind(KEY, record, replaces=None)
        return record


@pytest.fixture
def group(partq: Partq) -> Iterator[Group]:
    made = Group(partq)
    yield made
    made.store.close()


# --- listing ----------------------------------------------------------------------------------------------------------


def test_a_queue_without_groups(orders: Partq) -> None:
    assert orders.json("group", "list", "orders") == []
    assert "No groups in queue 'orders'" in orders("group", "list", "orders").stdout


def test_each_group_with_what_it_has_not_acknowledged(group: Group) -> None:
    admin.create_group(QueueLog(group.store, "default", "orders"), "audit", [0, 0])
    audit, billing = group.partq.json("group", "list", "orders")
    assert audit == {
        "group": "audit",
        "since_sequence": 4,
        "ownership": None,
        "unacknowledged": group.messages,
        "oldest": billing["oldest"],
        "changed_s": None,
        "flows": None,
        "problems": [],
    }
    assert (billing["group"], billing["unacknowledged"]) == ("billing", group.messages - 10)
    assert billing["oldest"] == group.partq.browse("orders")[0]["timestamp"]
    assert 120 <= billing["changed_s"] < 180
    shown = [line.split() for line in group.partq("group", "list", "orders").stdout.splitlines()]
    assert shown[2][:3] == ["audit", "4", "40"]
    assert shown[2][-1] == "never"
    assert shown[3][-3:][1:] == ["s", "ago"]


def test_flows_are_shown_with_an_ownership(group: Group) -> None:
    group.bind()
    (billing,) = group.partq.json("group", "list", "orders", "--ownership", "store")
    assert billing["flows"] == ["billing-1"]
    assert "billing-1" in group.partq("group", "list", "orders", "--ownership", "store").stdout


# --- removing ---------------------------------------------------------------------------------------------------------


def refreshed(group: Group) -> QueueLog:
    queue = QueueLog(group.store, "default", "orders")
    queue.refresh()
    return queue


def test_a_group_is_removed_for_good(group: Group) -> None:
    assert group.partq.json(*REMOVE, "--yes") == {
        "queue": "orders",
        "group": "billing",
        "removed": True,
        "checkpoints": 2,
    }
    assert group.names == []
    left = lifecycle.checkpoints_of(refreshed(group), "billing").list_checkpoints()
    assert [each.is_void for each in left.values()] == [True] * 2
    group.partq("queue", "trim", "orders", "--before", "2100-01-01T00:00:00Z")
    assert group.partq.json("queue", "describe", "orders")["messages"] == 0, "nothing is held back any more"


def test_without_yes_nothing_is_removed(group: Group) -> None:
    said = group.partq.misuse(*REMOVE)
    assert "this would remove group 'billing', with 2 checkpoints of queue 'orders'" in said
    assert "Add --yes" in said
    assert group.names == ["billing"]
    assert group.checkpoints.list_checkpoints()[0].offset == 5


def test_the_same_command_finishes_what_was_cut_off(group: Group) -> None:
    """After the head, and before what the ownership has of the group."""
    group.bind(bound=False)
    refreshed(group).change(lambda head: replace(head, groups={}, sequence=head.sequence + 1))
    beside = (*REMOVE, "--ownership", "store")
    assert "what is left of group 'billing'" in group.partq.misuse(*beside)
    assert "Removed what was left of group 'billing'" in group.partq(*beside, "--yes").stdout
    assert "has no group 'billing' (its groups: none yet)" in group.partq.error(*beside, "--yes")
    assert "has no group 'billing' (its groups: none yet)" in group.partq.error(*REMOVE, "--yes")


def test_a_group_that_is_not_there(group: Group) -> None:
    said = group.partq.error("group", "remove", "orders", "--group", "biling", "--yes")
    assert "has no group 'biling' (its groups: billing)" in said
    assert "not allowed" in group.partq.misuse("group", "remove", "orders", "--group", "_head", "--yes")


def test_without_an_ownership_a_group_must_have_been_quiet_for_a_minute(group: Group) -> None:
    group.age(-80, 1)  # 40 s ago
    said = group.partq.error(*REMOVE, "--yes")
    assert re.search(r"checkpoint 1 \(flow 'billing-1'\) was changed 4[0-9] s ago, less than 60 s", said), said
    assert group.names == ["billing"]
    group.partq(*REMOVE, "--yes", "--force")
    assert group.names == []


def test_a_group_made_again_can_be_removed_at_once(group: Group) -> None:
    """Its tombstones are young, and nobody's."""
    group.partq(*REMOVE, "--yes")
    admin.create_group(QueueLog(group.store, "default", "orders"), "billing", [0, 0])
    group.partq(*REMOVE, "--yes")
    assert group.names == []


def test_an_ownership_that_knows_nothing_of_the_group_proves_nothing(group: Group) -> None:
    group.age(-110)
    assert "may be in use" in group.partq.error(*REMOVE, "--yes", "--ownership", "store")


def test_a_flow_that_died_is_no_obstacle(group: Group) -> None:
    """Its heartbeat stands still for the rest of its session timeout; the checkpoints' age does not matter then."""
    group.age(-110)
    group.bind()
    group.partq(*REMOVE, "--yes", "--ownership", "store")
    assert group.names == []
    assert open_ownership("store", store=group.store).read_flows(KEY) == {}, "dropped"


@pytest.mark.redis
def test_a_live_flow_keeps_its_group(tmp_path: Path, redis_server: RedisServer) -> None:
    """A coordinator and a flow with a heartbeat thread; when it has unbound, its group can go."""
    place = Place(tmp_path, f"{redis_server.url}")
    partq = Partq(tmp_path / "store")
    key = place.group(partitions=2)
    remove = ("group", "remove", "orders", "--group", "billing", "--yes", "--ownership", place.ownership)
    with place.sidecar() as sidecar:
        flow = place.flow(key, "a")
        beating = HeartbeatThread(flow.beat, 0.2, Liveness(parent=os.getppid()), name="a test").start()
        try:
            wait_until(lambda: bool(flow.observe().claims), "partitions")
            said = partq.error(*remove)
            assert "is in use by flow 'a' (instance " in said
            assert "stop its query" in said
            assert list(place.queue(key).refresh().groups) == ["billing"]
        finally:
            beating.stop()
        flow.unbind()
        partq(*remove)
        assert list(place.queue(key).refresh().groups) == []
        wait_until(lambda: place.state(key) is None, "end of the group's state")
        wait_until(lambda: not sidecar.leads, "end of its leadership")
