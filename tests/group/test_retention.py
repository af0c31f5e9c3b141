"""What may go: by age, by what every group has acknowledged, and while others change that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.group import lifecycle, rewinding
from partq_spark.group.checkpoints import CheckpointStore, checkpoint_folder
from partq_spark.group.lifecycle import checkpoints_of, progress_of
from partq_spark.group.model import Checkpoint, GroupKey, Owner
from partq_spark.group.retention import HeldBack, acknowledged_by, holding_back, retain
from partq_spark.group.rewinding import Goal, Gone
from partq_spark.log import admin, compaction, groups, housekeeping
from partq_spark.log.housekeeping import GroupPositions
from partq_spark.log.model import Group
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.settings import QueueConfig
from tests.log.queues import World, once, read_flat, send, values
from tests.support.way import Hooked

MINUTE_US = 60_000_000
OWNER = Owner("flow", "instance")


@pytest.fixture
def world() -> World:
    return World()


def aged(world: World, messages: int = 10, retention_s: float | None = 60.0) -> QueueLog:
    """One partition, a message a minute; the last is half a minute old."""
    queue = world.create(1, config=QueueConfig(retention_s=retention_s))
    for number in range(messages):
        world.clock.now_us += MINUTE_US
        send(queue, values(number))
    world.clock.now_us += MINUTE_US // 2
    return queue


# --- what is done to a group, by whoever has this handle --------------------------------------------------------------

Act = Callable[[QueueLog], object]


def made(name: str, start: int) -> Act:
    return lambda queue: groups.create_group(queue, name, (start,))


def acknowledge(store: CheckpointStore, held: Checkpoint, offset: int) -> None:
    """Nothing more is in hand."""
    store.write(held, offset=offset, may_reach=offset, marked=held.redelivered_below, origin=None, swap=False)


def acknowledged(name: str, offset: int | None, partition: int = 0) -> Act:
    """By a flow that has the partition from the beginning on; without an offset it only has it."""

    def act(queue: QueueLog) -> None:
        store = checkpoints_of(queue, name)
        held = store.read(partition)
        if held is None or held.owner is None:
            start, epoch = None if offset is None else 0, 1 if held is None else held.epoch + 1
            held = store.fence(partition, to=OWNER, epoch=epoch, start=start)
        if offset is not None:
            acknowledge(store, held, offset)

    return act


def rewound(name: str, to: int) -> Act:
    def act(queue: QueueLog) -> None:
        checkpoints_of(queue, name).rewind(0, to)
        groups.count_rewind(queue, name)

    return act


def unreadable(name: str) -> Act:
    def act(queue: QueueLog) -> None:
        store = checkpoints_of(queue, name)
        found = store.read(0)
        assert found is not None
        queue.store.swap(store.name_of(0), {"epoch": "nonsense"}, expected=found.etag)

    return act


def of_a_former_queue(queue: QueueLog) -> None:
    former = CheckpointStore(queue.store, GroupKey("default", "orders", "g"), "anotherqueue")
    acknowledge(former, former.fence(0, to=OWNER, epoch=1, start=0), 9)


def removed(name: str) -> Act:
    return lambda queue: lifecycle.remove(queue, lifecycle.remains(queue, name, None), None)


USUAL = (made("g", 0), acknowledged("g", 9))


@pytest.mark.parametrize(
    ("before", "meanwhile", "earliest"),
    [
        pytest.param([], [], (9,), id="without groups age alone decides"),
        pytest.param([made("g", 0), acknowledged("g", 10)], [], (9,), id="acknowledged and young"),
        pytest.param([made("g", 3)], [], (3,), id="without an offset it is needed from the group's start on"),
        pytest.param([made("g", 3), acknowledged("g", None)], [], (3,), id="with a checkpoint without one, too"),
        pytest.param([made("g", 0), of_a_former_queue], [], (0,), id="of a former queue"),
        pytest.param([made("g", 5), acknowledged("g", 9), unreadable("g")], [], (5,), id="unreadable"),
        pytest.param([made("g", 7), acknowledged("g", 9), rewound("g", 2)], [], (2,), id="rewound behind its start"),
        pytest.param([*USUAL, made("slow", 0), acknowledged("slow", 4)], [], (4,), id="one of two has acknowledged"),
        # After the checkpoints were read, and before the head is swapped.
        pytest.param([], [made("late", 2)], (2,), id="a group is made"),
        pytest.param(USUAL, [removed("g"), made("g", 3)], (3,), id="a group is removed and made again"),
        pytest.param(USUAL, [rewound("g", 4)], (4,), id="a group is rewound"),
        pytest.param([], [lambda queue: admin.alter_queue(queue, partitions=3)], (9, 0, 0), id="partitions come"),
    ],
)
def test_what_is_old_goes_but_for_what_a_group_may_need(
    world: World, before: Sequence[Act], meanwhile: Sequence[Act], earliest: tuple[int, ...]
) -> None:
    """Of ten messages the last is young."""
    queue = aged(world)
    for act in before:
        act(queue)
    others = lambda: [act(world.handle()) for act in meanwhile]  # noqa: E731
    assert retain(in_between(world, "swap", "_head.json", others)).earliest == earliest
    assert read_flat(queue)[0] == b"%d" % earliest[0]
    assert retain(queue).trimmed == 0
    if not before:
        assert housekeeping.trim(queue, (9,) * len(earliest)).earliest == earliest


def in_between(world: World, kind: str, name_end: str, action: Callable[[], object]) -> QueueLog:
    """A handle in whose next such call `action` happens first."""
    hooked = Hooked(world.store)
    hooked.before = once(kind, name_end, action)
    return world.handle(store=hooked)


def test_who_holds_back_most_is_told_first(world: World) -> None:
    queue = aged(world)
    for act in (made("fast", 0), made("slow", 0), acknowledged("fast", 9), acknowledged("slow", 4)):
        act(queue)
    assert retain(queue).held_back == (HeldBack(group="slow", partition=0, offset=4, messages=5),)
    made("far", 0)(queue)
    found = holding_back(queue, queue.refresh())
    assert [(each.group, each.messages) for each in found] == [("far", 6), ("slow", 6), ("fast", 1)]


@pytest.mark.conformance("RES-02")
def test_removed_partitions_go_by_the_same_rule(world: World) -> None:
    queue = world.create(2, config=QueueConfig(retention_s=60.0))
    groups.create_group(queue, "g", (0, 0))
    send(queue, [(f"key {number}", b"x") for number in range(40)])
    admin.alter_queue(queue, partitions=1)
    world.clock.now_us += 2 * MINUTE_US
    first, second = queue.head.next
    acknowledged("g", first)(queue)
    done = retain(queue)
    assert done.earliest == (first, 0)
    assert done.held_back == (HeldBack(group="g", partition=1, offset=0, messages=second),)
    acknowledged("g", second, 1)(queue)
    assert len(queue.head.layouts) == 2
    assert retain(queue).earliest == (first, second)
    assert len(queue.refresh().layouts) == 1, "nothing of the earlier layout is left"


def test_compacted_messages_go_when_all_of_them_are_old(world: World) -> None:
    world.sizes = LogSizes(inline_entries=2)
    queue = aged(world, messages=10, retention_s=None)
    assert compaction.compact(queue, min_age_s=0.0) is not None
    assert retain(queue).trimmed == 0, "without a retention everything stays"
    admin.alter_queue(queue, retention_s=5 * 60.0)
    compacted = queue.head.tree[0].rows[0]
    assert compacted > 5
    assert retain(queue).trimmed == 0, "its last message is younger than five minutes"
    world.clock.now_us += 5 * MINUTE_US
    assert retain(queue).earliest[0] >= compacted


@pytest.mark.parametrize("exact", [False, True])
def test_a_group_made_while_messages_go_begins_at_what_is_left_or_is_refused(world: World, exact: bool) -> None:
    aged(world)
    queue = in_between(world, "swap", "_head.json", lambda: retain(world.handle()))
    start = queue.refresh().earliest
    assert start == (0,)
    with pytest.raises(Invalid, match=r"give offsets from \[9\] on") if exact else nullcontext():
        assert groups.create_group(queue, "late", start, exact=exact).start == (9,)
    assert ("late" in queue.head.groups) != exact
    assert queue.head.earliest == (9,)


def test_positions_count_for_one_group_and_one_number_of_rewinds() -> None:
    known = GroupPositions(since_sequence=5, rewinds=1, offsets={0: 8})
    group = Group(since_sequence=5, start=(3,), rewinds=1)
    assert housekeeping.held_back_by(group, known, 0) == 8
    assert housekeeping.held_back_by(group, known, 1) == 0, "a number that came later"
    assert housekeeping.held_back_by(Group(since_sequence=6, start=(3,)), known, 0) == 3
    assert housekeeping.held_back_by(Group(since_sequence=5, start=(3,), rewinds=2), known, 0) == 0


def test_one_listing_for_each_group_and_none_when_nothing_is_old_enough(world: World) -> None:
    queue = aged(world, messages=1)
    for group in ("a", "b"):
        made(group, 0)(queue)
    hooked = Hooked(world.store)
    listed: list[list[str]] = []
    for _ in range(2):
        hooked.calls.clear()
        retain(world.handle(store=hooked))
        listed.append([name for kind, name in hooked.calls if kind == "list"])
        world.clock.now_us += MINUTE_US
    assert listed == [[], [checkpoint_folder(GroupKey("default", "orders", group)) for group in ("a", "b")]]


# --- rewinding says what came in between ------------------------------------------------------------------------------


@pytest.mark.parametrize("trim_before", ["checkpoint/0", "_head.json", None])
def test_a_rewind_says_what_was_trimmed_before_it_was_counted(world: World, trim_before: str | None) -> None:
    """By who had read the checkpoints before. What lands after it was counted takes nothing of it."""
    queue = aged(world)
    for act in USUAL:
        act(queue)
    trimming = world.handle()
    known = acknowledged_by({"g": progress_of(trimming, "g", trimming.refresh())})

    def trim() -> tuple[int, ...]:
        return housekeeping.trim(trimming, (6,), known).earliest

    other = in_between(world, "swap", trim_before or "nothing", trim)
    progress = progress_of(other, "g", other.refresh())
    steps = rewinding.planned_rewind("orders", progress, (), Goal(offset=0), other.offsets_at)
    outcome = rewinding.carry_out(other, checkpoints_of(other, "g"), "g", steps)
    assert outcome.error is None
    assert [each.after.offset for each in outcome.done] == [0]
    assert outcome.gone == (() if trim_before is None else (Gone(partition=0, start=0, end=6),))
    assert trim() == ((0,) if trim_before is None else (6,))
