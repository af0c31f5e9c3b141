"""What may go: by age, by what every group has acknowledged, and while others change that."""

from __future__ import annotations

import pytest

from partq_spark.group import lifecycle, rewinding
from partq_spark.group.checkpoints import CheckpointStore, Rewound, checkpoint_folder
from partq_spark.group.model import GroupKey, Owner
from partq_spark.group.retention import HeldBack, acknowledged_by, holding_back, retain
from partq_spark.group.rewinding import Goal, Gone, RewindOutcome, RewindStep
from partq_spark.log import admin, compaction, housekeeping
from partq_spark.log.housekeeping import GroupPositions
from partq_spark.log.model import Group, QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
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


def checkpoints(queue: QueueLog, group: str) -> CheckpointStore:
    return lifecycle.checkpoints_of(queue, group)


def acknowledge(queue: QueueLog, group: str, offset: int, partition: int = 0) -> None:
    """A flow that has the partition from the beginning on acknowledges up to `offset`."""
    store = checkpoints(queue, group)
    held = store.read(partition)
    if held is None or held.owner is None:
        epoch = 1 if held is None else held.epoch + 1
        held = store.fence(partition, to=OWNER, epoch=epoch, start=0, delivered=None)
    store.update_checkpoint(held, offset)


def rewind(queue: QueueLog, group: str, to: int, *, counted: bool = True) -> None:
    checkpoints(queue, group).rewind(0, to, fence=True)
    if counted:
        admin.count_rewind(queue, group)


# --- what goes --------------------------------------------------------------------------------------------------------


def test_without_groups_age_alone_decides(world: World) -> None:
    queue = aged(world)
    done = retain(queue)
    assert (done.trimmed, done.earliest, done.held_back) == (9, (9,), ())
    assert read_flat(queue) == [b"9"]
    assert retain(queue).trimmed == 0


def test_without_a_retention_everything_stays(world: World) -> None:
    queue = aged(world, retention_s=None)
    assert retain(queue).trimmed == 0
    assert len(read_flat(queue)) == 10


def test_what_one_of_the_groups_has_not_acknowledged_stays_however_old(world: World) -> None:
    queue = aged(world)
    for group in ("fast", "slow"):
        admin.create_group(queue, group, (0,))
    acknowledge(queue, "fast", 9)
    acknowledge(queue, "slow", 4)
    done = retain(queue)
    assert (done.trimmed, done.earliest) == (4, (4,))
    assert done.held_back == (HeldBack(group="slow", partition=0, offset=4, messages=5),)


def test_what_is_acknowledged_but_young_stays(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "fast", (0,))
    acknowledge(queue, "fast", 10)
    assert retain(queue).earliest == (9,)


def test_a_partition_without_an_offset_is_needed_from_the_groups_start_on(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "new", (3,))
    assert retain(queue).earliest == (3,)
    # checkpoints=none: there is a checkpoint, it has no offset
    checkpoints(queue, "new").fence(0, to=OWNER, epoch=1, start=None, delivered=None)
    assert retain(queue).earliest == (3,)


def test_a_checkpoint_of_a_former_queue_counts_for_nothing(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (0,))
    former = CheckpointStore(queue.store, GroupKey("default", "orders", "g"), "anotherqueue")
    former.update_checkpoint(former.fence(0, to=OWNER, epoch=1, start=0, delivered=None), 9)
    assert retain(queue).trimmed == 0


def test_a_checkpoint_that_cannot_be_read_holds_back_what_it_may_need(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (5,))
    acknowledge(queue, "g", 9)
    store = checkpoints(queue, "g")
    found = store.read(0)
    assert found is not None
    queue.store.swap(store.name_of(0), {"epoch": "nonsense"}, expected=found.etag)
    assert retain(queue).earliest == (5,)


@pytest.mark.conformance("RES-02")
def test_removed_partitions_go_by_the_same_rule(world: World) -> None:
    queue = world.create(2, config=QueueConfig(retention_s=60.0))
    admin.create_group(queue, "g", (0, 0))
    send(queue, [(f"key {number}", b"x") for number in range(40)])
    admin.alter_queue(queue, partitions=1)
    world.clock.now_us += 2 * MINUTE_US
    first, second = queue.head.next
    acknowledge(queue, "g", first, 0)
    done = retain(queue)
    assert done.earliest == (first, 0)
    assert done.held_back == (HeldBack(group="g", partition=1, offset=0, messages=second),)
    acknowledge(queue, "g", second, 1)
    assert len(queue.head.layouts) == 2
    assert retain(queue).earliest == (first, second)
    assert len(queue.refresh().layouts) == 1, "nothing of the earlier layout is left"


def test_a_group_that_was_rewound_behind_its_start_keeps_what_it_went_back_to(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (7,))
    acknowledge(queue, "g", 9)
    rewind(queue, "g", 2)
    assert retain(queue).earliest == (2,)
    assert housekeeping.trim(queue, (9,)).earliest == (2,), (
        "where nothing is known of its checkpoints everything is kept"
    )


def test_compacted_messages_go_when_all_of_them_are_old(world: World) -> None:
    world.sizes = LogSizes(inline_entries=2)
    queue = aged(world, messages=10, retention_s=None)
    assert compaction.compact(queue, min_age_s=0.0) is not None
    admin.alter_queue(queue, retention_s=5 * 60.0)
    compacted = queue.head.tree[0].rows[0]
    assert compacted > 5
    assert retain(queue).trimmed == 0, "its last message is younger than five minutes"
    world.clock.now_us += 5 * MINUTE_US
    assert retain(queue).earliest[0] >= compacted


def test_looking_when_nothing_is_old_enough_asks_no_checkpoints(world: World) -> None:
    queue = aged(world, messages=1)
    admin.create_group(queue, "g", (0,))
    hooked = Hooked(world.store)
    retain(world.handle(store=hooked))
    assert "list" not in {kind for kind, _ in hooked.calls}


# --- while others change it -------------------------------------------------------------------------------------------


def meanwhile(world: World, kind: str, name_end: str, action: object) -> QueueLog:
    """A handle in whose next such call `action` happens first."""
    hooked = Hooked(world.store)
    hooked.before = once(kind, name_end, action)  # type: ignore[arg-type]
    return world.handle(store=hooked)


def test_a_group_that_is_made_after_the_checkpoints_were_read_holds_back(world: World) -> None:
    queue = aged(world)
    other = world.handle()
    done = retain(meanwhile(world, "swap", "_head.json", lambda: admin.create_group(other, "late", (2,))))
    assert done.earliest == (2,)
    assert done.held_back[0].group == "late"
    assert read_flat(queue)[0] == b"2"


@pytest.mark.parametrize("exact", [False, True])
def test_a_group_made_while_messages_go_begins_at_what_is_left_unless_its_user_named_the_offset(
    world: World, exact: bool
) -> None:
    aged(world)
    queue = meanwhile(world, "swap", "_head.json", lambda: retain(world.handle()))
    start = queue.refresh().earliest
    assert start == (0,)
    assert admin.create_group(queue, "late", start, exact=exact).start == ((0,) if exact else (9,))
    assert queue.head.earliest == (9,)


def test_a_group_that_is_removed_and_made_again_meanwhile_holds_back_by_its_new_start(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (0,))
    acknowledge(queue, "g", 9)

    def again() -> None:
        other = world.handle()
        lifecycle.remove(other, lifecycle.remains(other, "g", None), None)
        admin.create_group(other, "g", (3,))

    assert retain(meanwhile(world, "swap", "_head.json", again)).earliest == (3,)


def test_a_group_that_is_rewound_meanwhile_keeps_what_it_went_back_to(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (0,))
    acknowledge(queue, "g", 9)
    done = retain(meanwhile(world, "swap", "_head.json", lambda: rewind(world.handle(), "g", 4)))
    assert done.earliest == (4,), "it looked again"


def test_a_partition_that_comes_meanwhile_keeps_all_it_has(world: World) -> None:
    aged(world)
    done = retain(meanwhile(world, "swap", "_head.json", lambda: admin.alter_queue(world.handle(), partitions=3)))
    assert done.earliest == (9, 0, 0)


def test_positions_count_for_one_group_and_one_number_of_rewinds() -> None:
    known = GroupPositions(since_sequence=5, rewinds=1, offsets={0: 8})
    group = Group(since_sequence=5, start=(3,), rewinds=1)
    assert housekeeping.held_back_by(group, known, 0) == 8
    assert housekeeping.held_back_by(group, known, 1) == 0, "a number that came later"
    assert housekeeping.held_back_by(Group(since_sequence=6, start=(3,)), known, 0) == 3
    assert housekeeping.held_back_by(Group(since_sequence=5, start=(3,), rewinds=2), known, 0) == 0


def test_what_holds_back_is_listed_most_messages_first(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "near", (0,))
    admin.create_group(queue, "far", (0,))
    acknowledge(queue, "near", 8)
    found = holding_back(queue, queue.refresh())
    assert [(each.group, each.offset, each.messages) for each in found] == [("far", 0, 10), ("near", 8, 2)]


def test_one_listing_for_each_group(world: World) -> None:
    queue = aged(world)
    for group in ("a", "b"):
        admin.create_group(queue, group, (0,))
    hooked = Hooked(world.store)
    other = world.handle(store=hooked)
    acknowledged_by(other, other.refresh())
    listed = [name for kind, name in hooked.calls if kind == "list"]
    assert listed == [checkpoint_folder(GroupKey("default", "orders", group)) for group in ("a", "b")]


# --- rewinding says what came in between ------------------------------------------------------------------------------


def taken_back(world: World, trim_before: str) -> RewindOutcome:
    """Rewind to 0; a trim that had read the checkpoints before lands before the next such call."""
    queue = aged(world)
    admin.create_group(queue, "g", (0,))
    acknowledge(queue, "g", 9)
    trimming = world.handle()
    known, _ = acknowledged_by(trimming, trimming.refresh())
    hooked = Hooked(world.store)
    hooked.before = once("swap", trim_before, lambda: housekeeping.trim(trimming, (6,), known))
    other = world.handle(store=hooked)
    head = other.refresh()
    store = checkpoints(other, "g")
    steps = rewinding.planned_rewind("orders", head, store.list_readable(), (), Goal(offset=0), other.offsets_at)
    return rewinding.carry_out(other, store, "g", steps)


@pytest.mark.parametrize("trim_before", ["checkpoint/0", "_head.json"])
def test_a_rewind_says_what_was_trimmed_before_it_was_counted(world: World, trim_before: str) -> None:
    outcome = taken_back(world, trim_before)
    assert outcome.error is None
    assert [each.after.offset for each in outcome.done] == [0]
    assert outcome.gone == (Gone(partition=0, start=0, end=6),)


def test_a_trim_that_lands_after_a_rewind_was_counted_takes_nothing_of_it(world: World) -> None:
    queue = aged(world)
    admin.create_group(queue, "g", (0,))
    acknowledge(queue, "g", 9)
    trimming = world.handle()
    known, _ = acknowledged_by(trimming, trimming.refresh())
    store = checkpoints(queue, "g")
    steps = (RewindStep(partition=0, acknowledged=9, to=0, end=10, owner=OWNER),)
    outcome = rewinding.carry_out(queue, store, "g", steps)
    assert [type(each) for each in outcome.done] == [Rewound]
    assert outcome.gone == ()
    assert housekeeping.trim(trimming, (6,), known).earliest == (0,)
