"""`partq status` where ownership is kept beside the queue: JSON as the interface has it, words for people."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partq_spark.group import codec, lifecycle
from partq_spark.group.model import (
    Delivery,
    Flow,
    FlowRecord,
    GroupKey,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)
from partq_spark.group.ownership import Ownership, StateDocument, open_ownership
from partq_spark.log.admin import create_group
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.objects.api import Document
from tests.cli.conftest import Partq

KEY = GroupKey("default", "orders", "billing")
AWAY = "redis://127.0.0.1:1/0"
OWNER, NEXT = Owner("billing-1", "i1"), Owner("billing-2", "i2")


@pytest.fixture
def handoff(partq: Partq) -> Partq:
    """A group in the middle of a handoff: partition 1 waits for two messages of billing-1."""
    partq("queue", "create", "orders", "--partitions", 2)
    lines = "\n".join(json.dumps({"key": f"k{number}", "value": "x"}) for number in range(20))
    partq("publish", "orders", stdin=lines)
    store = open_store(partq.url)
    queue = QueueLog(store, "default", "orders")
    head = queue.refresh()
    create_group(queue, "billing", [0, 0])
    checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
    for partition in (0, 1):
        held = checkpoints.fence(partition, to=OWNER, epoch=1, start=0, delivered=None)
        checkpoints.update_checkpoint(held, 3)
    ownership = open_ownership("store", store=store)
    record = FlowRecord(
        flow="billing-1",
        instance="i1",
        queue_id=head.queue_id,
        incarnation=ownership.incarnation(),
        bound=True,
        session_timeout_s=10.0,
        deliveries={
            0: Delivery(epoch=1, delivered=3, acknowledged=3),
            1: Delivery(epoch=1, delivered=5, acknowledged=3),
        },
    )
    ownership.bind(KEY, record, replaces=None)
    ownership.note(KEY, "billing-1", "i1", "micro-batches take 9 s")
    state = GroupState(
        queue_id=head.queue_id,
        incarnation=ownership.incarnation(),
        settings=GroupSettings(),
        partitions={
            0: Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=OWNER),
            1: Partition(partition=1, phase=Phase.PAUSED, epoch=1, owner=OWNER, to=NEXT, deadline_s=60.0),
        },
        flows={
            "billing-1": Flow(name="billing-1", instance="i1", bound=True, since=1, active=True),
            "billing-2": Flow(name="billing-2", instance="i2", bound=True, since=2),
        },
        status=RebalanceStatus.REBALANCING,
        binds=2,
    )
    ownership.swap_state(KEY, codec.encode_state(state, 0.0), token="t1", expected=None)
    ownership.take_lease(KEY, Lease(token="l1", name="host:1", beat=1), expected=None)
    ownership.close()
    store.close()
    return partq


def test_the_json_is_the_interfaces(handoff: Partq) -> None:
    found = handoff.json("status", "orders", "--group", "billing", "--ownership", "store")
    ends = [each["next"] for each in handoff.json("queue", "describe", "orders")["partitions"]]
    assert (found["namespace"], found["queue"], found["group"]) == ("default", "orders", "billing")
    assert (found["rebalance_status"], found["rebalance_deadline_s"]) == ("Rebalancing", None)
    assert found["scale_status"] == "Ready"
    ready, paused = found["partitions"]
    assert 0 < ready.pop("lag_s") < 60
    assert ready == {
        "partition": 0,
        "status": "Ready",
        "flow": "billing-1",
        "epoch": 1,
        "acknowledged": 3,
        "delivered": 3,
        "end": ends[0],
        "lag": ends[0] - 3,
        "handoff": None,
        "reason": "",
    }
    assert paused["status"] == "Paused"
    assert (paused["handoff"]["to"], paused["handoff"]["waiting_for"]) == ("billing-2", 2)
    assert 50 < paused["handoff"]["remaining_s"] <= 60
    flows = {each["flow"]: each for each in found["flows"]}
    assert flows["billing-1"]["partitions"] == [0, 1]
    assert flows["billing-1"]["active"] is True
    assert {flow: each["note"] for flow, each in flows.items()} == {
        "billing-1": "micro-batches take 9 s",
        "billing-2": "",
    }
    assert 0 <= flows["billing-1"]["last_seen_s"] < 30
    assert (flows["billing-2"]["active"], flows["billing-2"]["last_seen_s"]) == (False, None)
    assert found["coordinator"]["leader"] == "host:1"
    assert 0 <= found["coordinator"]["age_s"] < 30


def test_flows_are_not_asked_for_one_by_one(handoff: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        pytest.fail("a group has hundreds of flows")

    monkeypatch.setattr(Ownership, "read_flow", ask)
    found = handoff.json("status", "orders", "--group", "billing", "--ownership", "store")
    assert 0 <= next(each["last_seen_s"] for each in found["flows"] if each["flow"] == "billing-1") < 30


def test_people_read_the_reason(handoff: Partq) -> None:
    shown = handoff("status", "orders", "--group", "billing", COLUMNS="80", PARTQ_OWNERSHIP="store").stdout
    (reason,) = (line for line in shown.splitlines() if line.startswith("partition 1: "))
    assert reason.startswith("partition 1: paused: waits for 2 messages of flow billing-1, ")
    assert reason.endswith(" s left, then goes to billing-2")
    assert "1 Ready, 1 Paused" in shown
    assert "\nflow billing-1: micro-batches take 9 s\n" in shown
    assert "host:1, renewed" in shown


def test_without_ownership_the_checkpoints_are_shown(handoff: Partq) -> None:
    found = handoff.json("status", "orders", "--group", "billing")
    assert [each["acknowledged"] for each in found["partitions"]] == [3, 3]
    assert [each["flow"] for each in found["partitions"]] == ["billing-1", "billing-1"]
    assert "--ownership" in found["notes"][0]


def test_partitions_with_one_reason_share_a_line(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    create_group(QueueLog(open_store(partq.url), "default", "orders"), "billing", [0] * 4)
    shown = partq("status", "orders", "--group", "billing", COLUMNS="80", PARTQ_OWNERSHIP="store").stdout
    assert "partitions 0-3: no flow has taken it yet\n" in shown
    assert "! no coordinator leads this group" in shown


def test_watching_shows_it_again(handoff: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(3))

    def until_interrupted(_: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", until_interrupted)
    watched = handoff("status", "orders", "--group", "billing", "--ownership", "store", "--watch", "--json", code=1)
    documents = [json.loads(line) for line in watched.stdout.splitlines()]
    assert len(documents) == 3
    assert all(each["partitions"][1]["status"] == "Paused" for each in documents)


def test_an_unknown_group_names_those_that_exist(handoff: Partq) -> None:
    message = handoff.error("status", "orders", "--group", "shipping")
    assert "no group 'shipping' (its groups: billing)" in message


@pytest.fixture
def away(partq: Partq) -> Partq:
    """A group that is shared by a Redis that cannot be reached."""
    partq("queue", "create", "orders", "--partitions", 2)
    partq("publish", "orders", stdin="\n".join(json.dumps({"key": f"k{n}", "value": "x"}) for n in range(20)))
    queue = QueueLog(open_store(partq.url), "default", "orders")
    queue.refresh()
    for group in ("billing", "reports"):
        create_group(queue, group, [0, 0], ownership=AWAY)
    held = lifecycle.checkpoints_of(queue, "billing").fence(1, to=OWNER, epoch=4, start=0, delivered=None)
    lifecycle.checkpoints_of(queue, "billing").update_checkpoint(held, 3)
    return partq


@pytest.mark.conformance("OBS-06")
@pytest.mark.parametrize("said", [("--ownership", AWAY), ()])
def test_with_redis_away_the_checkpoints_are_shown_and_why_it_is_no_more(away: Partq, said: tuple[str, ...]) -> None:
    status = ("status", "orders", "--group", "billing", *said)
    shown = away(*status, PARTQ_OWNERSHIP=AWAY)
    banner = next(line for line in shown.stdout.splitlines() if line.startswith("! "))
    assert "the checkpoints alone are shown" in banner
    assert "127.0.0.1:1" in banner
    assert "change" not in banner, "nothing was to be changed"
    assert "group alter" not in shown.stdout
    found = away.json(*status, PARTQ_OWNERSHIP=AWAY)
    assert [banner[2:]] == found["notes"]
    assert [(each["epoch"], each["acknowledged"], each["status"]) for each in found["partitions"]] == [
        (0, 0, "Unassigned"),
        (4, 3, "Unbound"),
    ]
    assert set(found) >= {"namespace", "queue", "group", "rebalance_status", "rebalance_deadline_s", "scale_status"}
    assert (found["flows"], found["coordinator"]) == ([], {"leader": None, "age_s": None})
    assert away.json("checkpoints", "orders", "--group", "billing")["partitions"][1]["acknowledged"] == 3


def test_who_asks_for_the_checkpoints_alone_is_not_told_to_change_how_the_group_is_shared(away: Partq) -> None:
    shown = away("status", "orders", "--group", "billing", "--ownership", "none").stdout
    assert "only the checkpoints are shown" in shown
    assert "alter" not in shown


@pytest.mark.conformance("OBS-06")
def test_with_redis_away_groups_are_listed_without_their_flows(away: Partq) -> None:
    listed = away("group", "list", "orders", "--ownership", AWAY).stdout
    assert listed.count("cannot be reached") == 2
    found = away.json("group", "list", "orders", "--ownership", AWAY)
    assert [(each["group"], each["flows"]) for each in found] == [("billing", None), ("reports", None)]


@pytest.mark.parametrize("given", ["redis://user:s3cret@host/0", "S3cret Password", "memcached://host"])
def test_a_bad_place_is_wrong_use_and_shows_no_secret(handoff: Partq, given: str) -> None:
    by_option = handoff.misuse("status", "orders", "--group", "billing", "--ownership", given)
    by_variable = handoff.misuse("status", "orders", "--group", "billing", PARTQ_OWNERSHIP=given)
    assert "redis://host:port/db" in by_option
    assert "environment variable PARTQ_OWNERSHIP" in by_variable
    assert "3cret" not in by_option + by_variable


@pytest.fixture
def damaged(handoff: Partq) -> Partq:
    """The checkpoint of partition 1 cannot be read, and the coordinator found that out when it fenced it."""
    store = open_store(handoff.url)
    name = "default/orders/billing/checkpoint/1"
    found = store.load(name)
    assert isinstance(found, Document)
    store.swap(name, {**found.metadata, "epoch": "many"}, expected=found.etag)
    ownership = open_ownership("store", store=store)
    state = ownership.read_state(KEY)
    assert isinstance(state, StateDocument)
    known = codec.decode_state(state.body, 0.0, "state")
    stuck = Partition(
        partition=1, phase=Phase.FENCING, epoch=1, owner=OWNER, to=NEXT, to_epoch=2, stuck="checkpoint 1: what it was"
    )
    after = replace(known, partitions={**known.partitions, 1: stuck}, status=RebalanceStatus.READY)
    ownership.swap_state(KEY, codec.encode_state(after, 0.0), token="t2", expected="t1")
    ownership.close()
    store.close()
    return handoff


@pytest.mark.conformance("REB-15")
def test_a_damaged_checkpoint_is_told_with_what_to_do_and_the_others_are_shown(damaged: Partq) -> None:
    found = damaged.json("status", "orders", "--group", "billing", "--ownership", "store")
    healthy, stuck = found["partitions"]
    assert (healthy["status"], healthy["acknowledged"], healthy["reason"]) == ("Ready", 3, "")
    assert (stuck["status"], stuck["flow"], stuck["acknowledged"]) == ("Paused", "billing-2", 3)
    assert stuck["reason"].startswith(
        "stuck: its checkpoint cannot be rewritten for flow billing-2 at epoch 2, the other partitions go on; repair "
    )
    assert "checkpoint default/orders/billing/checkpoint/1" in stuck["reason"]
    assert "restore the blob" in stuck["reason"]
    shown = damaged("status", "orders", "--group", "billing", COLUMNS="80", PARTQ_OWNERSHIP="store").stdout
    assert "\npartition 1: stuck: " in shown
    without = damaged.json("status", "orders", "--group", "billing", "--ownership", "none")
    assert "restore the blob" in without["partitions"][1]["reason"]


def test_a_checkpoint_that_cannot_be_written_is_told_in_the_coordinators_words(damaged: Partq) -> None:
    store = open_store(damaged.url)
    store.delete("default/orders/billing/checkpoint/1")
    store.close()
    found = damaged.json("status", "orders", "--group", "billing", "--ownership", "store")
    assert found["partitions"][1]["reason"].endswith("every few seconds: checkpoint 1: what it was")
