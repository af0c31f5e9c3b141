"""`partq status` and `partq ui`: JSON as the interface has it, words for people, and what is left where something is
away or damaged. `partq checkpoints`: what it shows, what a rewind says before it is done, and how far it came if it was
cut off.
"""

from __future__ import annotations

import json
import pkgutil
from typing import Any

import pytest

import partq as api
from partq_spark.group.model import UNBOUNDED
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


SHOW = ("checkpoints", "orders", "--group", "billing")
REWIND = ("checkpoints", "rewind", "orders", "--group", "billing")
STORE = "partq_spark.group.checkpoints.CheckpointStore.rewind"


@pytest.fixture
def group(partq: Partq) -> Group:
    """Three partitions: 0 and 1 are billing-1's, nobody has taken 2."""
    return Group(partq, {0: 8, 1: 5}, partitions=3, messages=60)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_the_checkpoints_are_shown_whatever_a_clock_said(group: Group) -> None:
    group.edit(0, updated="2026-11-20T08:30:00.000000Z")
    found = group.partq.json("checkpoints", "--group", "billing", "orders")
    first, _, last = found.pop("partitions")
    assert found == {"namespace": "default", "queue": "orders", "group": "billing", "lag": 47}
    assert (first["epoch"], first["flow"], first["acknowledged"]) == (1, "billing-1", 8)
    assert (first["lag"], first["updated"]) == (group.ends[0] - 8, "2026-11-20T08:30:00.000000Z")
    assert (last["epoch"], last["flow"], last["acknowledged"], last["updated"]) == (0, None, 0, None)
    ends = [str(end) for end in group.ends]
    group.partq(*REWIND, "--partition", "1", "--to", "2", "--yes")
    shown = group.partq(*SHOW).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[2][:6] == ["0", "1", "billing-1", "8", ends[0], str(group.ends[0] - 8)]
    assert rows[3][:7] == ["1", "2", "nobody", "2", ends[1], str(group.ends[1] - 2), "5"]
    assert rows[3][-2:] == ["s", "ago"]
    assert rows[4] == ["2", "none", "yet", "0", ends[2], ends[2]]
    assert shown.endswith("\nTotal: 3 partitions, 50 messages to be acknowledged.\n")
    for updated, words in (("2999-01-01T00:00:00.000000Z", "0 s ago"), ("yesterday\x1b[2J", r"yesterday\x1b[2J")):
        group.edit(0, updated=updated)
        assert words in group.partq(*SHOW).stdout


def test_no_more_is_marked_than_there_is(group: Group) -> None:
    """Of a checkpoint that was deleted everything is marked, until its owner has claimed it."""
    group.edit(0, redelivered_below=str(UNBOUNDED))
    assert group.partq.json(*SHOW)["partitions"][0]["redelivered_below"] == group.ends[0]
    assert group.partq(*SHOW).stdout.splitlines()[2].split()[6] == str(group.ends[0])


def test_a_damaged_checkpoint_is_named_and_the_others_are_shown_and_rewound(group: Group) -> None:
    group.edit(1, offset="many")
    what = "checkpoint default/orders/billing/checkpoint/1: its metadata key 'offset' is 'many'"
    assert group.partq(*SHOW, code=1).stderr.startswith(f"Error: {what}")
    first, damaged, last = group.partq.json(*SHOW, code=1)["partitions"]
    assert (first["acknowledged"], damaged.keys(), last["acknowledged"]) == (8, {"partition", "error"}, 0)
    assert what in group.partq.error(*REWIND, "--to", "0", "--yes")
    assert group.rewinds == 0
    group.partq(*REWIND, "--to", "0", "--partition", "0", "--yes")
    assert group.partq.json(*SHOW, code=1)["partitions"][0]["acknowledged"] == 0


def test_a_queue_with_the_name_of_a_command(partq: Partq) -> None:
    api.create_queue("rewind", partitions=1, store=partq.url).create_group("billing")
    assert partq.json("checkpoints", "show", "rewind", "--group", "billing")["queue"] == "rewind"


# --- rewinding --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
@pytest.mark.parametrize(
    ("goal", "moves"),
    [
        ("--to earliest", [(0, 8, 0, 8), (1, 5, 0, 5)]),
        ("--to 5", [(0, 8, 5, 3), (1, 5, 5, 0)]),
        ("--by 2 --partition 1 --partition 1", [(1, 5, 3, 2)]),
        ("--to-timestamp 2000-01-01T00:00:00Z", [(0, 8, 0, 8), (1, 5, 0, 5)]),
        # What is not as far is left alone.
        ("--to-timestamp LAST", [(0, 8, 8, 0), (1, 5, 5, 0)]),
    ],
)
def test_a_rewind_says_what_comes_again_marked(group: Group, goal: str, moves: list[tuple[int, int, int, int]]) -> None:
    """For each partition: from where, to where, and how many messages come again. Without --yes it only says so."""
    group.partq("publish", "orders", stdin='{"key": "k", "value": "late"}')
    words = goal.replace("LAST", max(each["timestamp"] for each in group.partq.browse("orders"))).split()
    before, again = group.seen(), sum(count for *_, count in moves)
    for more, code in (((), 2), (("--dry-run",), 0), (("--dry-run", "--yes"), 0)):
        document = group.partq.json(*REWIND, *words, *more, code=code)
        found = [
            tuple(each[name] for name in ("partition", "from", "to", "messages")) for each in document["partitions"]
        ]
        assert (document["rewound"], found) == (False, moves)
        assert f"{again} messages" in group.partq(*REWIND, *words, *more, code=code).output
        assert group.seen() == before
    done = group.partq(*REWIND, *words, "--yes").stdout
    assert (f"{again} messages will be" if again else "Nothing to rewind") in done
    for partition, reached, to, count in moves:
        now = group.checkpoints[partition]
        marked = {"offset": str(to), "epoch": "2", "redelivered_below": str(reached)}
        assert {**now, **marked} == now if count else now == before[0][partition]
    assert group.rewinds == 1


def test_a_rewind_of_what_a_store_has_lost(group: Group) -> None:
    """The store was restored from an older copy: the checkpoint counts messages that are gone."""
    group.edit(0, offset="99")
    group.partq(*REWIND, "--to", str(group.ends[0]), "--partition", "0", "--yes")
    assert group.offsets() == {0: group.ends[0], 1: 5}


def test_a_group_without_offsets_has_nothing_to_rewind(group: Group) -> None:
    group.partq("group", "remove", "orders", "--group", "billing", "--yes")
    group.create("billing")
    assert "no partition of " in group.partq.error(*REWIND, "--to", "earliest", "--yes"), "what a former group left"
    group.take(0, epoch=5)
    assert "checkpoints=none" in group.partq.error(*REWIND, "--to", "earliest", "--yes")


# --- cut off ----------------------------------------------------------------------------------------------------------


def failing(*_: object, **__: object) -> None:
    raise api.Unavailable("the store is away (test)")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


CUT_OFF = [
    (1, failing, "0 is rewound: the store is away (test); repeat the command with --partition 1"),
    (0, interrupted, "nothing else was changed: interrupted; repeat the command with --partition 0 --partition 1"),
]


@pytest.mark.parametrize(("number", "fails", "said"), CUT_OFF)
def test_a_rewind_that_is_cut_off_says_how_far_it_came(group: Group, number: int, fails: Any, said: str) -> None:
    really = pkgutil.resolve_name(STORE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STORE, lambda *given, **more: (fails if given[1] == number else really)(*given, **more))
        result = group.partq(*REWIND, "--to", "3", "--yes", code=1)
    told = f"Error: partition {number} may not be rewound (`partq checkpoints` shows it), {said}\n"
    assert (result.stderr, f"Rewound {number} partition " in result.stdout) == (told, number == 1)
    assert (group.offsets(), group.rewinds) == ({0: 3 if number else 8, 1: 5}, 1), "counted, whatever was done"
    group.partq(*REWIND, "--to", "3", "--yes", "--partition", "1")
    assert group.offsets()[1] == 3


def test_a_head_that_cannot_be_told_is_told_of(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("partq_spark.log.groups.count_rewind", failing)
        message = group.partq.error(*REWIND, "--by", "2", "--yes")
    assert "0-1 are rewound, but the queue's head could not be told" in message
    assert message.endswith("repeat the command with --partition 0 --to 6")
    group.partq(*REWIND, "--partition", "0", "--to", "6", "--yes")
    assert (group.offsets(), group.rewinds) == ({0: 6, 1: 3}, 1)


# --- who notices ------------------------------------------------------------------------------------------------------


def test_it_says_who_notices_and_when(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("partq_spark.group.ownership.Ownership.announce", lambda _, key: told.append(str(key)))

    def said(*words: str) -> str:
        shown = group.partq(*REWIND, "--to", *words).stdout
        return next((line for line in shown.splitlines() if line.startswith("!")), "nothing")

    beside = ("--ownership", "store")
    assert "belong to billing-1, no coordinator leads the group: start one" in said("4", "--dry-run", *beside)
    assert "belong to billing-1: without --ownership a coordinator notices" in said("4", "--yes")
    assert (said("3", "--yes"), told) == ("nothing", []), "nobody has them any more"
    group.take(0, offset="3", epoch=9)
    group.take(1, offset="3", epoch=9, flow="billing-2")
    group.lead()
    assert "belong to billing-1 and 1 other flow: without" in said("2", "--dry-run")
    assert (said("2", "--yes", *beside), told) == ("nothing", ["default/orders/_head"])


def test_an_ownership_that_does_not_answer_costs_a_note_and_a_damaged_one_refuses(group: Group) -> None:
    document = group.partq.json(*REWIND, "--to", "2", "--yes", "--ownership", "redis://127.0.0.1:1/0")
    assert document["rewound"] is True
    assert "coordinators cannot be told, they notice by themselves" in document["notes"][0]
    before = group.seen()
    group.lead()
    (group.folder / "billing/ownership/leader").write_text("what partq did not write")
    assert "leader" in group.partq.error(*REWIND, "--to", "1", "--yes", "--ownership", "store")
    assert group.seen() == before
