"""`partq checkpoints`: what it shows, what a rewind says before it is done, and how far it came if it was cut off."""

from __future__ import annotations

from typing import Any

import pytest

import partq as api
from tests.cli.groups import NEXT, Group
from tests.support.command_line import Partq

SHOW = ("checkpoints", "orders", "--group", "billing")
REWIND = ("checkpoints", "rewind", "orders", "--group", "billing")


@pytest.fixture
def group(partq: Partq) -> Group:
    """Three partitions: 0 and 1 are billing-1's, nobody has taken 2."""
    return Group(partq, {0: 8, 1: 5}, partitions=3, messages=60)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_the_checkpoints_are_shown(group: Group) -> None:
    found = group.partq.json("checkpoints", "--group", "billing", "orders")
    first, _, last = found.pop("partitions")
    assert found == {"namespace": "default", "queue": "orders", "group": "billing", "lag": 47}
    assert first.pop("updated").endswith("Z")
    assert first == {
        "partition": 0,
        "epoch": 1,
        "flow": "billing-1",
        "instance": "i1",
        "acknowledged": 8,
        "end": group.ends[0],
        "lag": group.ends[0] - 8,
        "redelivered_below": 0,
    }
    assert (last["epoch"], last["flow"], last["acknowledged"], last["updated"]) == (0, None, 0, None)

    ends = [str(end) for end in group.ends]
    group.checkpoints().rewind(1, 2, fence=True, delivered=group.ends[1])
    shown = group.partq(*SHOW).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[2][:6] == ["0", "1", "billing-1", "8", ends[0], str(group.ends[0] - 8)]
    assert rows[3][:7] == ["1", "2", "nobody", "2", ends[1], str(group.ends[1] - 2), ends[1]]
    assert rows[2][-2:] == rows[3][-2:] == ["s", "ago"]
    assert rows[4] == ["2", "none", "yet", "0", ends[2], ends[2]]
    assert shown.endswith("\nTotal: 3 partitions, 50 messages to be acknowledged.\n")


@pytest.mark.parametrize(
    ("updated", "words"),
    [
        ("2000-01-01T00:00:00.000000Z", "days ago"),
        ("2999-01-01T00:00:00.000000Z", "0 s ago"),
        ("yesterday\x1b[2J", r"yesterday\x1b[2J"),
    ],
)
def test_whatever_a_clock_said_is_shown(group: Group, updated: str, words: str) -> None:
    group.edit(0, updated=updated)
    assert words in group.partq("checkpoints", "orders", "--group", "billing").stdout


def test_a_damaged_checkpoint_is_named_and_the_others_are_shown_and_rewound(group: Group) -> None:
    group.edit(1, offset="many")
    result = group.partq(*SHOW, code=1)
    assert "billing-1" in result.stdout
    assert "damaged" in result.stdout
    what = "checkpoint default/orders/billing/checkpoint/1: its metadata key 'offset' is 'many'"
    assert result.stderr.startswith(f"Error: {what}")
    document = group.partq.json(*SHOW, code=1)
    assert document["partitions"][1].keys() == {"partition", "error"}
    assert [each["partition"] for each in document["partitions"]] == [0, 1, 2]
    assert document["partitions"][0]["acknowledged"] == 8
    assert what in group.partq.error(*REWIND, "--to", "0", "--yes")
    assert group.rewinds == 0
    group.partq(*REWIND, "--to", "0", "--partition", "0", "--yes")
    assert group.partq.json(*SHOW, code=1)["partitions"][0]["acknowledged"] == 0


def test_a_queue_with_the_name_of_a_command(partq: Partq) -> None:
    api.create_queue("rewind", partitions=1, store=partq.url).create_group("billing")
    assert partq.json("checkpoints", "show", "rewind", "--group", "billing")["queue"] == "rewind"


# --- rewinding --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
def test_a_rewind_says_what_comes_again_and_marks_it(group: Group) -> None:
    shown = group.partq(*REWIND, "--to", "3", "--yes").stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[2:4] == [["0", "8", "3", "5", "billing-1"], ["1", "5", "3", "2", "billing-1"]]
    assert "Rewound 2 partitions" in shown
    assert "7 messages will be delivered again" in shown
    found = group.checkpoints().list_checkpoints()
    assert [(each.offset, each.epoch, each.owner) for each in found.values()] == [(3, 2, None)] * 2
    assert [each.redelivered_below for each in found.values()] == list(group.ends[:2]), "nobody knows how far they came"
    assert group.rewinds == 1
    assert "Nothing to rewind" in group.partq(*REWIND, "--to", "3", "--yes").stdout, "it only counts again"
    assert group.seen() == (found, 2)


def rewound(group: Group, *words: str, **more: Any) -> list[dict[str, Any]]:
    """What a rewind says of each partition."""
    document = group.partq.json(*REWIND, *words, **more)
    assert document["rewound"] is ("--yes" in words and "--dry-run" not in words)
    return [{name: each[name] for name in each if name != "flow"} for each in document["partitions"]]


def test_what_is_beyond_the_end_of_the_log_does_not_come_again(group: Group) -> None:
    """The store was restored from an older copy, and the checkpoint counts messages that are gone."""
    group.edit(0, offset="99")
    end = group.ends[0]
    found = rewound(group, "--to", str(end), "--partition", "0", "--yes")
    assert found == [{"partition": 0, "from": 99, "to": end, "messages": 0, "rewound": True}]
    assert group.offsets() == {0: end, 1: 5}


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--dry-run", "--yes")])
def test_without_yes_or_dry_nothing_is_changed(group: Group, more: tuple[str, ...]) -> None:
    before, code = group.seen(), 0 if more else 2
    result = group.partq(*REWIND, "--to", "earliest", *more, code=code)
    assert "13 messages" in (result.stdout if more else result.stderr)
    assert "billing-1" in result.stdout
    assert more or "Add --yes" in result.stderr
    assert rewound(group, "--to", "earliest", *more, code=code) == [
        {"partition": 0, "from": 8, "to": 0, "messages": 8, "rewound": False},
        {"partition": 1, "from": 5, "to": 0, "messages": 5, "rewound": False},
    ]
    assert group.seen() == before


def test_some_partitions_by_a_number_of_messages_and_to_a_time(group: Group) -> None:
    found = rewound(group, "--by", "2", "--partition", "1", "--partition", "1", "--yes")
    assert found == [{"partition": 1, "from": 5, "to": 3, "messages": 2, "rewound": True}]
    assert group.offsets() == {0: 8, 1: 3}
    group.partq("publish", "orders", stdin='{"key": "k", "value": "late"}')
    last = max(each["timestamp"] for each in group.partq.browse("orders"))
    assert {each["messages"] for each in rewound(group, "--to-timestamp", last, "--yes")} == {0}
    assert group.offsets() == {0: 8, 1: 3}, "what is not as far is left alone"
    found = rewound(group, "--to-timestamp", "2000-01-01T00:00:00Z", "--yes")
    assert [each["to"] for each in found] == [0, 0]


def test_a_group_without_offsets_has_nothing_to_rewind(group: Group) -> None:
    group.partq("group", "remove", "orders", "--group", "billing", "--yes")
    group.create("billing")
    assert "no partition of " in group.partq.error(*REWIND, "--to", "earliest", "--yes"), "what a former group left"
    group.take(0, epoch=5)
    assert "checkpoints=none" in group.partq.error(*REWIND, "--to", "earliest", "--yes")


# --- cut off ----------------------------------------------------------------------------------------------------------


def failing(*_: object, **__: object) -> None:
    raise api.Unavailable("the store is away (test)")


def test_where_one_partition_fails_it_says_how_far_it_came(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type(group.checkpoints())
    really = kind.rewind
    with monkeypatch.context() as patch:
        patch.setattr(kind, "rewind", lambda *given, **more: (failing if given[1] == 1 else really)(*given, **more))
        result = group.partq(*REWIND, "--to", "3", "--yes", code=1)
    assert result.stderr == (
        "Error: partition 1 was not rewound, 0 is rewound: the store is away (test); repeat the command with "
        "--partition 1\n"
    )
    assert "Rewound 1 partition " in result.stdout
    assert (group.offsets(), group.rewinds) == ({0: 3, 1: 5}, 1), "what was done is counted"
    group.partq(*REWIND, "--to", "3", "--yes", "--partition", "1")
    assert group.offsets() == {0: 3, 1: 3}


def test_a_head_that_cannot_be_told_is_told_of(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("partq_spark.log.admin.count_rewind", failing)
        message = group.partq.error(*REWIND, "--by", "2", "--yes")
    assert "0-1 are rewound, but the queue's head could not be told" in message
    assert message.endswith("repeat the command with --partition 0 --to 6")
    group.partq(*REWIND, "--partition", "0", "--to", "6", "--yes")
    assert (group.offsets(), group.rewinds) == ({0: 6, 1: 3}, 1)


# --- who notices ------------------------------------------------------------------------------------------------------


def test_it_says_who_notices_and_when(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("partq_spark.group.ownership.Ownership.announce", lambda _, key: told.append(str(key)))
    shown = group.partq(*REWIND, "--to", "4", "--dry-run", "--ownership", "store").stdout
    assert "! partitions belong to billing-1, no coordinator leads the group: start one with" in shown
    shown = group.partq(*REWIND, "--to", "4", "--yes").stdout
    assert "! partitions belong to billing-1: without --ownership a coordinator notices" in shown
    shown = group.partq(*REWIND, "--to", "3", "--yes").stdout
    assert "!" not in shown, "nobody has them any more"
    assert told == []
    group.take(0, epoch=9)
    group.take(1, NEXT, epoch=9)
    group.lead()
    shown = group.partq(*REWIND, "--to", "2", "--dry-run").stdout
    assert "! partitions belong to billing-1 and 1 other flow: without" in shown
    shown = group.partq(*REWIND, "--to", "2", "--yes", "--ownership", "store").stdout
    assert "!" not in shown
    assert told == ["default/orders/_head"]


def test_an_ownership_that_does_not_answer_costs_a_note_and_a_damaged_one_refuses(group: Group) -> None:
    document = group.partq.json(*REWIND, "--to", "2", "--yes", "--ownership", "redis://127.0.0.1:1/0")
    assert document["rewound"] is True
    assert "coordinators cannot be told, they notice by themselves" in document["notes"][0]
    before = group.seen()
    folder = group.partq.store / "default/orders/billing/ownership"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "leader").write_text("what partq did not write")
    assert "leader" in group.partq.error(*REWIND, "--to", "1", "--yes", "--ownership", "store")
    assert group.seen() == before
