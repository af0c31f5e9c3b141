"""`partq status` and `partq ui`: JSON as the interface has it, words for people, and what is left where something is
away or damaged.
"""

from __future__ import annotations

import json

import pytest

from tests.cli.groups import Group
from tests.support.command_line import Partq

STATUS = ("status", "orders", "--group", "billing")
BESIDE = (*STATUS, "--ownership", "store")
AWAY = "redis://127.0.0.1:1/0"


def share(group: Group, status: str, *second: object) -> None:
    """What the coordinator wrote: partition 0 is billing-1's, `second` is what becomes of partition 1."""
    body = {
        "queue_id": group.head["queue_id"],
        "status": status,
        "holddown_left_s": None,
        "settings": {"rebalance_delay_s": 5.0, "max_handoff_time_s": 3.0, "access_type": "non-exclusive"},
        "trigger": False,
        "altered": False,
        "binds": 2,
        "retired": {},
        "flows": {
            "billing-1": ["billing-1", "i1", True, 1, True, 0],
            "billing-2": ["billing-2", "i2", True, 2, False, 0],
        },
        "owners": [["billing-1", "i1"], ["billing-2", "i2"]],
        "partitions": {"0": ["owned", 1, 0], "1": second},
    }
    group.document("state", "state", body, within="t1")


@pytest.fixture
def handoff(partq: Partq) -> Group:
    """A group in the middle of a handoff: partition 1 waits for two messages of billing-1."""
    group = Group(partq, {0: 3, 1: 3}, messages=20)
    group.bind(progress="0:3/3,5/3", note="micro-batches take 9 s")
    group.lead()
    share(group, "Rebalancing", "paused", 1, 0, 1, 0, 60.0, False, False, "")
    return group


def test_the_json_is_the_interfaces(handoff: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        pytest.fail("a group has hundreds of flows: they are not asked for one by one")

    monkeypatch.setattr("partq_spark.group.ownership.Ownership.read_flow", ask)
    found = handoff.partq.json(*BESIDE)
    assert (found["namespace"], found["queue"], found["group"]) == ("default", "orders", "billing")
    assert (found["rebalance_status"], found["rebalance_deadline_s"]) == ("Rebalancing", None)
    assert found["scale_status"] == "Ready"
    ready, paused = found["partitions"]
    assert 0 < ready["lag_s"] < 60
    assert (ready["status"], ready["flow"], ready["epoch"], ready["delivered"]) == ("Ready", "billing-1", 1, 3)
    assert (ready["lag"], ready["handoff"], ready["reason"]) == (handoff.ends[0] - 3, None, "")
    assert paused["status"] == "Paused"
    assert (paused["handoff"]["to"], paused["handoff"]["waiting_for"]) == ("billing-2", 2)
    assert 30 < paused["handoff"]["remaining_s"] <= 60
    one, two = found["flows"]
    assert (one["flow"], one["partitions"], one["note"]) == ("billing-1", [0, 1], "micro-batches take 9 s")
    assert (two["flow"], two["active"], two["last_seen_s"], two["note"]) == ("billing-2", False, None, "")
    assert found["coordinator"]["leader"] == "host:1"


def test_people_read_the_reason_and_watch_it(handoff: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = handoff.partq(*STATUS, COLUMNS="80", PARTQ_OWNERSHIP="store").stdout
    (reason,) = (line for line in shown.splitlines() if line.startswith("partition 1: "))
    assert reason.startswith("partition 1: paused: waits for 2 messages of flow billing-1, ")
    assert reason.endswith(" s left, then goes to billing-2")
    assert "1 Ready, 1 Paused" in shown
    assert "\nflow billing-1: micro-batches take 9 s\n" in shown
    assert "host:1, renewed" in shown
    looks = iter(range(3))

    def until_interrupted(_: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", until_interrupted)
    watched = handoff.partq(*BESIDE, "--watch", "--json", code=1).stdout.splitlines()
    assert [json.loads(line)["partitions"][1]["status"] for line in watched] == ["Paused"] * 3
    handoff.create("new")
    shown = handoff.partq("status", "orders", "--group", "new", COLUMNS="80", PARTQ_OWNERSHIP="store").stdout
    assert "partitions 0-1: no flow has taken it yet\n" in shown, "those with one reason share a line"
    assert "! no coordinator leads this group" in shown


@pytest.mark.conformance("OBS-06")
@pytest.mark.parametrize("said", [("--ownership", AWAY), ()])
def test_with_redis_away_the_checkpoints_are_shown_and_why_it_is_no_more(partq: Partq, said: tuple[str, ...]) -> None:
    group = Group(partq, {1: 3}, ownership=AWAY)
    group.create("reports", ownership=AWAY)
    shown = partq(*STATUS, *said, PARTQ_OWNERSHIP=AWAY)
    banner = next(line for line in shown.stdout.splitlines() if line.startswith("! "))
    assert "the checkpoints alone are shown" in banner
    assert "127.0.0.1:1" in banner
    assert "change" not in banner, "nothing was to be changed"
    assert "group alter" not in shown.stdout
    found = partq.json(*STATUS, *said, PARTQ_OWNERSHIP=AWAY)
    assert [banner[2:]] == found["notes"]
    assert [(each["epoch"], each["acknowledged"], each["status"]) for each in found["partitions"]] == [
        (0, 0, "Unassigned"),
        (1, 3, "Unbound"),
    ]
    assert (found["flows"], found["coordinator"]) == ([], {"leader": None, "age_s": None})
    assert partq.json("checkpoints", "orders", "--group", "billing")["partitions"][1]["acknowledged"] == 3

    listed = partq.json("group", "list", "orders", "--ownership", AWAY)
    assert [(each["group"], each["flows"]) for each in listed] == [("billing", None), ("reports", None)]


@pytest.mark.conformance("REB-15")
def test_a_damaged_checkpoint_is_told_with_what_to_do_and_the_others_are_shown(handoff: Group) -> None:
    handoff.edit(1, epoch="many")
    share(handoff, "Ready", "fencing", 1, 0, 1, 2, None, False, False, "what it was")
    healthy, stuck = handoff.partq.json(*BESIDE)["partitions"]
    assert (healthy["status"], healthy["acknowledged"], healthy["reason"]) == ("Ready", 3, "")
    assert (stuck["status"], stuck["flow"], stuck["acknowledged"]) == ("Paused", "billing-2", 3)
    assert stuck["reason"].startswith(
        "stuck: its checkpoint cannot be rewritten for flow billing-2 at epoch 2, the other partitions go on; repair "
    )
    assert "checkpoint default/orders/billing/checkpoint/1" in stuck["reason"]
    assert "restore the blob" in stuck["reason"]
    without = handoff.partq.json(*STATUS, "--ownership", "none")
    assert "restore the blob" in without["partitions"][1]["reason"]
    (handoff.folder / "billing/checkpoint/1").unlink()
    reason = handoff.partq.json(*BESIDE)["partitions"][1]["reason"]
    assert reason.endswith("every few seconds: what it was"), "in the coordinator's words"
