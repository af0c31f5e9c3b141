"""How a group is shared: `partq group alter`, and commands that are given an ownership that the group does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.group import lifecycle
from partq_spark.group.heartbeat import HeartbeatThread, Liveness
from partq_spark.group.model import FlowRecord, GroupKey, Owner
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.log import admin
from partq_spark.log import groups as log_groups
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.cli.conftest import Partq
from tests.coordinator.sidecars import Place
from tests.support.flow_loop import Batch, run_flow
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

KEY = GroupKey("default", "orders", "billing")
ALTER = ("group", "alter", "orders", "--group", "billing")
REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def group(partq: Partq) -> Partq:
    """The group `billing` of `orders`, which one flow has for itself; it acknowledged up to 5 a while ago."""
    partq("queue", "create", "orders", "--partitions", 1)
    partq("publish", "orders", stdin='{"key": "k", "value": "x"}\n' * 9)
    store = open_store(partq.url)
    queue = QueueLog(store, "default", "orders")
    queue.refresh()
    admin.create_group(queue, "billing", [0], ownership="none")
    checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
    held = checkpoints.fence(0, to=Owner("alone", "i1"), epoch=1, start=0, delivered=None)
    checkpoints.update_checkpoint(held, 5)
    age(partq, 120)
    return partq


def age(partq: Partq, seconds: float) -> None:
    """The checkpoint was written so long ago, by the disk's clock."""
    path = partq.store / "default/orders/billing/checkpoint/0"
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def way(partq: Partq) -> str | None:
    (found,) = partq.json("group", "list", "orders")
    kind: str | None = found["ownership"]
    return kind


def beside(partq: Partq, *, timeout_s: float = 1.0) -> FlowRecord:
    """A flow's record beside the queue, with a heartbeat that does not move."""
    store = open_store(partq.url)
    ownership = open_ownership("store", store=store)
    record = FlowRecord(
        flow="billing-1",
        instance="i1",
        queue_id=QueueLog(store, "default", "orders").refresh().queue_id,
        incarnation=ownership.incarnation(),
        bound=True,
        session_timeout_s=timeout_s,
    )
    ownership.bind(KEY, record, replaces=None)
    return record


# --- changing it ------------------------------------------------------------------------------------------------------


def test_a_group_is_shared_by_a_redis_from_now_on_and_its_checkpoints_stay(group: Partq) -> None:
    assert group.json(*ALTER, "--ownership", "rediss://h:6380/1") == {
        "queue": "orders",
        "group": "billing",
        "ownership": "redis",
        "was": "none",
        "changed": True,
    }
    assert way(group) == "redis"
    (checkpoint,) = group.json("checkpoints", "orders", "--group", "billing")["partitions"]
    assert (checkpoint["acknowledged"], checkpoint["flow"], checkpoint["epoch"]) == (5, "alone", 1)
    said = group(*ALTER, "--ownership", "redis://elsewhere:6379/0").stdout
    assert "has ownership=redis already. Which Redis that is, is not written down." in said
    assert "billing  " in group("group", "list", "orders").stdout
    assert " redis " in group("group", "list", "orders").stdout


def test_it_must_be_said_how(group: Partq) -> None:
    assert "say how the group is to be shared" in group.misuse(*ALTER, PARTQ_OWNERSHIP=REDIS)
    assert "has no group 'bill'" in group.error("group", "alter", "orders", "--group", "bill", "--ownership", "store")
    assert way(group) == "none"


def test_a_checkpoint_that_was_just_changed_says_that_somebody_may_be_at_work(group: Partq) -> None:
    age(group, -90)
    said = group.error(*ALTER, "--ownership", "store")
    assert "checkpoint 0 (flow 'alone') was changed 3" in said
    assert way(group) == "none"
    assert "from now on; it had ownership=none." in group(*ALTER, "--ownership", "store", "--force").stdout
    assert way(group) == "store"


def test_from_a_redis_that_is_not_named_only_by_force(group: Partq) -> None:
    group(*ALTER, "--ownership", REDIS)
    said = group.error(*ALTER, "--ownership", "none")
    assert "which alone knows whether one of its flows lives: name it (--from redis://host:port/db)" in said
    assert "127.0.0.1:1" in group.error(*ALTER, "--ownership", "none", "--from", REDIS), "asked, and did not answer"
    assert "127.0.0.1:1" in group.error(*ALTER, "--ownership", "none", PARTQ_OWNERSHIP=REDIS)
    assert way(group) == "redis"
    group(*ALTER, "--ownership", "none", "--force", PARTQ_OWNERSHIP=REDIS)
    assert way(group) == "none"


def test_what_lies_beside_the_queue_is_looked_at_without_being_named(group: Partq) -> None:
    """A flow that died is no obstacle; what is left of it goes."""
    group(*ALTER, "--ownership", "store")
    beside(group)
    age(group, -90)
    group(*ALTER, "--ownership", "none")
    assert way(group) == "none"
    assert open_ownership("store", store=open_store(group.url)).read_flows(KEY) == {}


@pytest.mark.redis
def test_a_live_flow_keeps_its_group_as_it_is_and_one_that_comes_another_way_ends(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """A coordinator and a flow with a heartbeat thread; afterwards the coordinator lets the group be."""
    place = Place(tmp_path, redis_server.url)
    partq = Partq(tmp_path / "store")
    key = place.group(partitions=2)
    partq(*ALTER, "--ownership", place.ownership)
    to_none = (*ALTER, "--ownership", "none", "--from", place.ownership)
    with place.sidecar() as sidecar:
        flow = place.flow(key, "a")
        beating = HeartbeatThread(flow.beat, 0.2, Liveness(parent=os.getppid()), name="a test").start()
        try:
            wait_until(lambda: bool(flow.observe().claims), "partitions")
            assert "is in use by flow 'a' (instance " in partq.error(*to_none)
            assert "is in use by flow 'a' (instance " in partq.error(*to_none, "--force")
            assert way(partq) == "redis"
        finally:
            beating.stop()
        flow.unbind()
        partq(*to_none)
        assert way(partq) == "none"
        wait_until(lambda: not sidecar.leads, "end of its leadership")
        assert place.state(key) is None
    with pytest.raises(Invalid, match="partq group alter orders --group billing --ownership"):
        run_flow(flow, lambda _: None, lambda _: None, keep_on=lambda: True, head=place.queue(key).refresh)
    assert not flow.is_bound


def test_a_flow_in_plain_python_sees_that_its_group_is_shared_otherwise(group: Partq) -> None:
    store = open_store(group.url)
    queue = QueueLog(store, "default", "orders")
    queue.refresh()
    ownership = open_ownership("store", store=store, group=KEY)
    with pytest.raises(Invalid, match=r"has ownership=none \(one query has all of it\), not ownership=store"):
        admin.create_group(queue, "billing", [0], ownership=ownership.url)
    group(*ALTER, "--ownership", "store")
    assert admin.create_group(queue, "billing", [0], ownership=ownership.url).ownership == "store"

    session = Session(
        ownership,
        lifecycle.checkpoints_of(queue, KEY.group),
        KEY,
        queue.head.queue_id,
        "a",
        SessionSettings(session_timeout_s=5.0, beat_interval_s=0.2, checkpoint_interval_s=1.0),
    )
    handled: list[Batch[bytes]] = []
    turns = iter(range(20))

    def keep_on() -> bool:
        if next(turns) == 2:
            age(group, 90)
            found = queue.refresh().groups["billing"]
            log_groups.change_ownership(queue, "billing", found, "none")
        return True

    with pytest.raises(Invalid, match="not ownership=store"):
        run_flow(session, lambda _: None, handled.append, keep_on=keep_on, head=queue.refresh, bind_wait_s=0.0)
    assert not session.is_bound
    assert next(turns) == 3, "at its next turn"


# --- commands that come another way -----------------------------------------------------------------------------------

COMMANDS = [
    ("group", "remove", "orders", "--group", "billing", "--yes"),
    ("status", "orders", "--group", "billing"),
    ("checkpoints", "rewind", "orders", "--group", "billing", "--to", "0", "--yes"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_command_that_is_given_another_ownership_is_refused(group: Partq, command: tuple[str, ...]) -> None:
    said = group.error(*command, "--ownership", "store")
    assert "group 'billing' of queue 'orders' has ownership=none (one query has all of it), not ownership=store" in said
    assert f"partq group alter orders --group billing --ownership store --store {group.url}" in said
    (checkpoint,) = group.json("checkpoints", "orders", "--group", "billing")["partitions"]
    assert checkpoint["acknowledged"] == 5


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_what_the_environment_says_may_be_meant_for_other_groups(group: Partq, command: tuple[str, ...]) -> None:
    group(*command, PARTQ_OWNERSHIP=REDIS)


def test_a_shared_group_is_not_removed_unseen(group: Partq) -> None:
    group(*ALTER, "--ownership", REDIS)
    remove = ("group", "remove", "orders", "--group", "billing", "--yes")
    assert "name it (--ownership redis://host:port/db)" in group.error(*remove)
    group(*remove, "--force")
    assert group.json("group", "list", "orders") == []


def test_status_looks_beside_the_queue_by_itself(group: Partq) -> None:
    status = ("status", "orders", "--group", "billing")
    assert "one query has all of the group" in " ".join(group.json(*status)["notes"])
    group(*ALTER, "--ownership", "store")
    beside(group)
    assert "no coordinator leads this group" in " ".join(group.json(*status)["notes"])
    group(*ALTER, "--ownership", REDIS, "--force")
    assert "name the place where ownership is kept" in " ".join(group.json(*status)["notes"])


def test_a_list_asks_an_ownership_for_its_own_groups_alone(group: Partq) -> None:
    queue = QueueLog(open_store(group.url), "default", "orders")
    queue.refresh()
    admin.create_group(queue, "shared", [0], ownership="store")
    alone, shared = group.json("group", "list", "orders", "--ownership", "store")
    assert (alone["ownership"], alone["flows"]) == ("none", None)
    assert (shared["ownership"], shared["flows"]) == ("store", [])


# --- what holds back, and what is left --------------------------------------------------------------------------------


def test_a_group_without_acknowledgements_holds_back_for_ever_and_that_is_said(group: Partq) -> None:
    store = open_store(group.url)
    queue = QueueLog(store, "default", "orders")
    queue.refresh()
    lifecycle.checkpoints_of(queue, KEY.group).fence(0, to=Owner("b", "i2"), epoch=2, start=None, delivered=None)
    admin.create_group(queue, "silent", [2], ownership="none")
    lifecycle.checkpoints_of(queue, "silent").fence(0, to=Owner("s", "i1"), epoch=1, start=None, delivered=None)
    described = {each["group"]: each["for_ever"] for each in group.json("queue", "describe", "orders")["held_back"]}
    assert described == {"billing": False, "silent": True}
    said = " ".join(group("queue", "describe", "orders").stdout.split())
    assert "group silent needs 7 messages in partition 0, from offset 2, for ever: checkpoints=none writes" in said
    notes = " ".join(group.json("status", "orders", "--group", "silent")["notes"])
    assert "the group holds back every message since its start" in notes
    assert "holds back" not in " ".join(group.json("status", "orders", "--group", "billing")["notes"])


def test_a_queue_is_deleted_with_what_its_groups_left(group: Partq) -> None:
    group(*ALTER, "--ownership", "store")
    beside(group)
    deleted = group.json("queue", "delete", "orders", "--yes")
    assert deleted["deleted"] is True
    left = [path for path in (group.store / "default").rglob("*") if path.is_file() and path.name != ".lock"]
    assert left == []
