"""`partq checkpoints`: what it shows, what a rewind says before it is done, and how far it came if it was cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, Rewound, checkpoint_folder
from partq_spark.group.model import GroupKey, Lease, Owner
from partq_spark.group.ownership import Ownership
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects import ObjectStore, open_store
from tests.cli.conftest import Partq
from tests.support.edits import edited
from tests.support.ownership import in_objects

KEY = GroupKey("default", "orders", "billing")
OWNER = Owner("billing-1", "i1")
REWIND = ("checkpoints", "rewind", "orders", "--group", "billing")


class Group:
    """The group `billing` of `orders` with three partitions: 0 and 1 are billing-1's, nobody has taken 2."""

    def __init__(self, partq: Partq) -> None:
        self.partq = partq
        partq("queue", "create", "orders", "--partitions", 3)
        partq("publish", "orders", stdin="\n".join(json.dumps({"key": f"k{n}", "value": "x"}) for n in range(60)))
        self.store: ObjectStore = open_store(partq.url)
        queue = QueueLog(self.store, "default", "orders")
        self.ends = queue.refresh().next
        admin.create_group(queue, "billing", [0, 0, 0])
        self.checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
        for partition, offset in ((0, 8), (1, 5)):
            held = self.checkpoints.fence(partition, to=OWNER, epoch=1, start=0, delivered=None)
            self.checkpoints.update_checkpoint(held, offset)

    @property
    def rewinds(self) -> int:
        return QueueLog(self.store, "default", "orders").refresh().groups["billing"].rewinds

    def offsets(self) -> dict[int, int | None]:
        return {number: each.offset for number, each in self.checkpoints.list_checkpoints().items()}

    def seen(self) -> tuple[Mapping[int, Checkpoint], int]:
        """All that a rewind may change."""
        return self.checkpoints.list_checkpoints(), self.rewinds

    def edit(self, partition: int, **keys: str) -> None:
        """By hand, and with a checksum that matches."""
        path = self.partq.store / checkpoint_folder(KEY) / str(partition)
        path.write_text(edited(path.read_text(), **keys))


@pytest.fixture
def group(partq: Partq) -> Iterator[Group]:
    made = Group(partq)
    yield made
    made.store.close()


# --- looking ----------------------------------------------------------------------------------------------------------


def test_the_checkpoints_as_json(group: Group) -> None:
    found = group.partq.json("checkpoints", "orders", "--group", "billing")
    first, _, last = found.pop("partitions")
    assert found == {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "lag": sum(group.ends) - 13,
    }
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


def test_the_checkpoints_for_people(group: Group) -> None:
    group.checkpoints.rewind(1, 2, fence=True, delivered=group.ends[1])
    shown = group.partq("checkpoints", "orders", "--group", "billing").stdout
    rows = [line.split() for line in shown.splitlines()]
    ends = group.ends
    assert rows[2] == ["0", "1", "billing-1", "8", str(ends[0]), str(ends[0] - 8), "0", "s", "ago"]
    assert rows[3] == ["1", "2", "nobody", "2", str(ends[1]), str(ends[1] - 2), str(ends[1]), "0", "s", "ago"]
    assert rows[4] == ["2", "none", "yet", "0", str(ends[2]), str(ends[2])]
    assert shown.endswith(f"\nTotal: 3 partitions, {sum(ends) - 10} messages to be acknowledged.\n")


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


def test_unknown_queues_and_groups_are_refused_with_what_there_is(group: Group) -> None:
    for words in (("checkpoints", "orders"), ("checkpoints", "rewind", "orders", "--to", "earliest", "--yes")):
        assert "its groups: billing" in group.partq.error(*words, "--group", "biling")
    assert "does not exist" in group.partq.error("checkpoints", "order", "--group", "billing")


def test_a_damaged_checkpoint_is_named_and_the_others_are_shown(group: Group) -> None:
    group.edit(1, offset="many")
    result = group.partq("checkpoints", "orders", "--group", "billing", code=1)
    assert "billing-1" in result.stdout
    assert "damaged" in result.stdout
    name = "default/orders/billing/checkpoint/1"
    assert result.stderr.startswith(f"Error: checkpoint {name}: its metadata key 'offset' is 'many'")
    document = json.loads(group.partq("checkpoints", "orders", "--group", "billing", "--json", code=1).stdout)
    assert document["partitions"][1].keys() == {"partition", "error"}
    assert document["partitions"][0]["acknowledged"] == 8


def test_a_queue_with_the_name_of_a_command(partq: Partq) -> None:
    partq("queue", "create", "rewind", "--partitions", 1)
    admin.create_group(QueueLog(open_store(partq.url), "default", "rewind"), "billing", [0])
    assert partq.json("checkpoints", "show", "rewind", "--group", "billing")["queue"] == "rewind"


def test_options_may_come_first(group: Group) -> None:
    assert group.partq.json("checkpoints", "--group", "billing", "orders")["queue"] == "orders"


# --- rewinding --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
def test_a_rewind_says_what_comes_again_and_marks_it(group: Group) -> None:
    shown = group.partq(*REWIND, "--to", "3", "--yes").stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[2] == ["0", "8", "3", "5", "billing-1"]
    assert rows[3] == ["1", "5", "3", "2", "billing-1"]
    assert "Rewound 2 partitions" in shown
    assert "7 messages will be delivered again" in shown
    found = group.checkpoints.list_checkpoints()
    assert {number: (each.offset, each.epoch, each.owner) for number, each in found.items()} == {
        0: (3, 2, None),
        1: (3, 2, None),
    }
    assert [each.redelivered_below for each in found.values()] == list(group.ends[:2]), "nobody knows how far they came"
    assert group.rewinds == 1


def test_what_is_beyond_the_end_of_the_log_does_not_come_again(group: Group) -> None:
    """The store was restored from an older copy, and the checkpoint counts messages that are gone."""
    group.edit(0, offset="99")
    end = group.ends[0]
    document = group.partq.json(*REWIND, "--to", str(end), "--partition", "0", "--yes")
    assert [(each["from"], each["to"], each["messages"], each["rewound"]) for each in document["partitions"]] == [
        (99, end, 0, True)
    ]
    assert group.offsets() == {0: end, 1: 5}


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--dry-run", "--yes")])
def test_without_yes_or_dry_nothing_is_changed(group: Group, more: tuple[str, ...]) -> None:
    before = group.seen()
    result = group.partq(*REWIND, "--to", "earliest", *more, code=0 if more else 2)
    assert "13 messages" in (result.stdout if more else result.stderr)
    assert "billing-1" in result.stdout
    if not more:
        assert "Add --yes" in result.stderr
    document = group.partq.json(*REWIND, "--to", "earliest", *more, code=0 if more else 2)
    assert document["rewound"] is False
    assert [(each["from"], each["to"], each["messages"], each["rewound"]) for each in document["partitions"]] == [
        (8, 0, 8, False),
        (5, 0, 5, False),
    ]
    assert group.seen() == before


def test_some_partitions_by_a_number_of_messages(group: Group) -> None:
    document = group.partq.json(*REWIND, "--by", "2", "--partition", "1", "--partition", "1", "--yes")
    assert document["rewound"] is True
    assert document["partitions"] == [
        {"partition": 1, "from": 5, "to": 3, "messages": 2, "flow": "billing-1", "rewound": True}
    ]
    assert group.offsets() == {0: 8, 1: 3}


def test_to_a_time_leaves_alone_what_is_not_as_far(group: Group) -> None:
    before = group.offsets()
    group.partq("publish", "orders", stdin='{"key": "k", "value": "late"}')
    last = max(each["timestamp"] for each in group.partq.browse("orders"))
    document = group.partq.json(*REWIND, "--to-timestamp", last, "--yes")
    assert {each["messages"] for each in document["partitions"]} == {0}
    assert group.offsets() == before
    document = group.partq.json(*REWIND, "--to-timestamp", "2000-01-01T00:00:00Z", "--yes")
    assert [each["to"] for each in document["partitions"]] == [0, 0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--to", "6"), "partition 1 of .* is acknowledged up to 5 and cannot be rewound to 6: give an offset from 2"),
        (("--to", "1"), "partition 0 of .* keeps messages from 2 on and cannot be rewound to 1"),
        (("--by", "4"), "partition 1 of .* keeps messages from 2 on and cannot be rewound to 1"),
        (("--to", "3", "--partition", "0", "--partition", "3"), "has partitions 0 to 2, there is no 3"),
        (("--to", "3", "--partition", "0", "--partition", "2"), "partition 2 of .* no flow has taken it yet"),
    ],
    ids=" ".join,
)
def test_all_is_checked_before_anything_is_changed(group: Group, words: tuple[str, ...], reason: str) -> None:
    queue = QueueLog(group.store, "default", "orders")
    queue.change(lambda head: replace(head, earliest=(2, 2, 0), sequence=head.sequence + 1))
    before = group.seen()
    message = group.partq.error(*REWIND, *words, "--yes")
    assert re.search(reason, message), message
    assert group.seen() == before


def test_what_a_former_group_left_of_a_partition_that_nobody_has_taken_yet_hinders_no_rewind(group: Group) -> None:
    """A former group of the name left it."""
    queue_id = QueueLog(group.store, "default", "orders").refresh().queue_id
    CheckpointStore(group.store, KEY, queue_id).fence(2, to=OWNER, epoch=1, start=1, delivered=None)
    assert "no flow has taken it yet" in group.partq.error(*REWIND, "--to", "1", "--partition", "2", "--yes")
    group.partq(*REWIND, "--to", "1", "--yes")
    assert group.offsets() == {0: 1, 1: 1, 2: None}


def test_a_damaged_checkpoint_is_not_rewound_and_others_are(group: Group) -> None:
    group.edit(1, epoch="-1")
    before = group.rewinds
    assert "checkpoint/1: its metadata key 'epoch'" in group.partq.error(*REWIND, "--to", "0", "--yes")
    assert group.rewinds == before
    group.partq(*REWIND, "--to", "0", "--partition", "0", "--yes")
    found = group.checkpoints.read(0)
    assert found is not None
    assert found.offset == 0


def test_a_group_without_offsets_has_nothing_to_rewind(group: Group) -> None:
    for partition in (0, 1, 2):
        group.store.delete(group.checkpoints.name_of(partition))
    assert "no partition of " in group.partq.error(*REWIND, "--to", "earliest", "--yes")
    group.checkpoints.fence(0, to=OWNER, epoch=5, start=None, delivered=None)
    assert "checkpoints=none" in group.partq.error(*REWIND, "--to", "earliest", "--yes")


@pytest.mark.parametrize("words", [(), ("--to", "1", "--by", "1"), ("--to", "latest"), ("--to", "-1"), ("--by", "0")])
def test_a_goal_that_cannot_be_is_wrong_use(group: Group, words: tuple[str, ...]) -> None:
    assert group.partq.misuse(*REWIND, *words, "--yes").startswith("Error: ")


def test_repeating_it_counts_again_and_moves_nothing(group: Group) -> None:
    """A command that was killed between rewinding and counting is repeated."""
    group.checkpoints.rewind(0, 3, fence=True, delivered=None)
    group.checkpoints.rewind(1, 3, fence=True, delivered=None)
    before = group.checkpoints.list_checkpoints()
    assert "Nothing to rewind" in group.partq(*REWIND, "--to", "3", "--yes").stdout
    assert (group.checkpoints.list_checkpoints(), group.rewinds) == (before, 1)


def test_where_one_partition_fails_it_says_how_far_it_came(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    really = CheckpointStore.rewind

    def failing(self: CheckpointStore, partition: int, offset: int, *, fence: bool, delivered: int) -> Rewound:
        if partition == 1:
            raise Unavailable("the store is away (test)")
        return really(self, partition, offset, fence=fence, delivered=delivered)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "rewind", failing)
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
    def failing(queue: QueueLog, name: str) -> None:
        raise Unavailable("the store is away (test)")

    with monkeypatch.context() as patch:
        patch.setattr(admin, "count_rewind", failing)
        message = group.partq.error(*REWIND, "--by", "2", "--yes")
    assert "0-1 are rewound, but the queue's head could not be told" in message
    assert message.endswith("repeat the command with --partition 0 --to 6")
    group.partq(*REWIND, "--partition", "0", "--to", "6", "--yes")
    assert (group.offsets(), group.rewinds) == ({0: 6, 1: 3}, 1)


def test_it_says_who_notices_and_when(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[GroupKey] = []
    monkeypatch.setattr(Ownership, "announce", lambda _, key: told.append(key))
    shown = group.partq(*REWIND, "--to", "4", "--dry-run", "--ownership", "store").stdout
    assert "! partitions belong to billing-1, no coordinator leads the group: start one with" in shown
    assert told == []
    shown = group.partq(*REWIND, "--to", "4", "--yes").stdout
    assert "! partitions belong to billing-1: without --ownership a coordinator notices" in shown
    shown = group.partq(*REWIND, "--to", "3", "--yes").stdout
    assert "!" not in shown, "nobody has them any more"
    assert told == []
    group.checkpoints.fence(0, to=OWNER, epoch=9, start=None, delivered=None)
    group.checkpoints.fence(1, to=Owner("billing-2", "i2"), epoch=9, start=None, delivered=None)
    in_objects(group.store).take_lease(KEY, Lease(token="l1", name="host:1", beat=1), expected=None)
    shown = group.partq(*REWIND, "--to", "2", "--dry-run").stdout
    assert "! partitions belong to billing-1 and 1 other flow: without" in shown
    shown = group.partq(*REWIND, "--to", "2", "--yes", "--ownership", "store").stdout
    assert "!" not in shown
    assert told == [GroupKey("default", "orders", "_head")]


def test_an_ownership_that_does_not_answer_costs_a_note(group: Group) -> None:
    document = group.partq.json(*REWIND, "--to", "2", "--yes", "--ownership", "redis://127.0.0.1:1/0")
    assert document["rewound"] is True
    assert "coordinators cannot be told, they notice by themselves" in document["notes"][0]


def test_an_ownership_that_can_never_be_used_is_refused_before_anything_is_changed(group: Group) -> None:
    before = group.seen()
    folder = group.partq.store / f"{KEY}/ownership"
    folder.mkdir(parents=True)
    (folder / "leader").write_text("what partq did not write")
    assert "leader" in group.partq.error(*REWIND, "--to", "2", "--yes", "--ownership", "store")
    assert group.seen() == before
