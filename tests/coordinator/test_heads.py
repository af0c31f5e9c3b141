"""What the head tells a leader: which groups are its own, partitions that a queue has lost, which go when their group
has delivered them to their end (RES-02, RES-04), and checkpoints that were rewound while a flow has them (CHK-04).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.heads import Heads, group_facts
from coordinator.removed_partitions import RemovedPartitions
from partq_spark.base.errors import Invalid
from partq_spark.group import lifecycle, rewinding
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey, Phase
from partq_spark.log import admin, groups
from partq_spark.log.layouts import resized
from partq_spark.log.model import QueueConfig
from tests.coordinator.runtimes import KEY, Coordinator, HandFlow, World, two_flows


def resize(world: World, partitions: int) -> None:
    world.altered(lambda head: resized(head, partitions))


def shrunk() -> tuple[World, Coordinator]:
    """Of four partitions two are removed, with ten messages in each that nobody has acknowledged."""
    world = World(partitions=4)
    coordinator = world.coordinator()
    world.flow("a")
    world.run(1)
    world.flow("b")
    world.run(10)
    assert world.counts() == {"a": 2, "b": 2}
    world.published(10)
    resize(world, 2)
    world.run(3)
    assert known(world) == [0, 1, 2, 3]
    return world, coordinator


def finish(world: World, *partitions: int, offset: int = 10, kept: bool = True) -> None:
    """Their flow delivers and acknowledges them to their end. Where offsets are not `kept`, only its record says so."""
    flows = {each.name: each for each in world.flows}
    for partition in partitions:
        flow: HandFlow = flows[str(world.owners()[partition])]
        assert flow.deliver(partition, offset)
        if kept:
            flow.acknowledge(partition, offset)
        else:
            entry = flow.deliveries[partition] = replace(flow.deliveries[partition], acknowledged=offset)
            flow.store.report(KEY, flow.name, flow.instance, {partition: entry})
    world.run(3)


def known(world: World) -> list[int]:
    return list(world.state().partitions)


@pytest.mark.parametrize("kept", [True, False], ids=["offsets are kept", "checkpoints=none"])
@pytest.mark.conformance("RES-02", "RES-04")
def test_removed_partitions_stay_until_they_are_finished_also_if_they_came_and_went_unseen(kept: bool) -> None:
    """Every leader finds out anew what is finished, and they go one by one."""
    world, first = shrunk()
    second = world.coordinator("c2")
    finish(world, 2, kept=kept)
    assert known(world) == [0, 1, 3]
    first.stopped = True
    world.run(15)
    assert second.runtime.leading
    assert known(world) == [0, 1, 3]
    finish(world, 3, kept=kept)
    assert known(world) == [0, 1]
    assert world.counts() == {"a": 1, "b": 1}
    resize(world, 4)
    world.published(15)
    resize(world, 2)  # before any coordinator has looked
    world.run(3)
    assert known(world) == [0, 1, 2, 3]
    assert [world.checkpoints()[number].offset for number in (2, 3)] == [10, 10], "it goes on where it was let go"
    finish(world, 2, 3, offset=15, kept=kept)
    assert known(world) == [0, 1]
    assert all(world.checkpoints()[number].epoch >= 4 for number in (2, 3))


# --- rewound ----------------------------------------------------------------------------------------------------------


def begun_at_the_end(world: World) -> None:
    """As with `startingOffsets=latest`: the group begins where partitions 2 and 3 end, which then leave the queue."""
    world.published(10)
    starts = (0, 0, *world.queue.head.next[2:])
    world.altered(lambda head: replace(head, groups={KEY.group: structs.replace(head.groups[KEY.group], start=starts)}))


@pytest.mark.conformance("RES-02", "CHK-04")
def test_a_removed_partition_that_is_rewound_behind_the_groups_start_comes_back() -> None:
    """The partitions that share its keys wait for it, so somebody has to have it."""
    world = World(partitions=4)
    begun_at_the_end(world)
    world.coordinator()
    world.flow("a")
    world.run(3)
    resize(world, 2)
    world.run(3)
    assert known(world) == [0, 1], "nothing of the others is the group's to deliver"
    assert world.checkpoints()[2].offset == 10
    head = world.queue.refresh()
    store = lifecycle.checkpoints_of(world.queue, KEY.group)
    steps = rewinding.planned_rewind(
        "orders", head, store.list_readable(), (2,), rewinding.Goal(earliest=True), lambda _: ()
    )
    assert rewinding.carry_out(world.queue, store, KEY.group, steps).error is None
    world.run(3)
    assert known(world) == [0, 1, 2]
    assert (world.checkpoints()[2].offset, world.owners()[2]) == (0, "a")
    finish(world, 2)
    assert known(world) == [0, 1]


@pytest.mark.conformance("RES-02")
def test_a_rewind_brings_no_removed_partition_that_nobody_touched() -> None:
    """It is still where the group begins, at its end. One that cannot be read is not known to be there."""
    world = World(partitions=4)
    begun_at_the_end(world)
    resize(world, 2)
    head = world.queue.refresh()
    later = group_facts(head, structs.replace(head.groups[KEY.group], start=head.next))
    assert (later.leaving, later.partitions) == ({}, (0, 1)), "a group that began after the change has none of it"
    former = CheckpointStore(world.objects, KEY, world.queue.head.queue_id)
    former.fence(2, to=None, epoch=1, start=0, delivered=None)
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    admin.count_rewind(world.queue, KEY.group)
    head = world.queue.refresh()
    facts = group_facts(head, head.groups[KEY.group])
    assert facts.starts == {0: 0, 1: 0, 2: 10, 3: 10}, "removed ones too begin where their group does"
    leaving = RemovedPartitions(lambda _: checkpoints, lambda: world.now_s)
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1)
    world.objects.swap(checkpoints.name_of(3), b"{damaged}", expected=None)
    leaving.forget()
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1, 3)


def test_what_was_finished_before_a_rewind_is_not_taken_for_finished_after_it() -> None:
    world, coordinator = shrunk()
    coordinator.stopped = True
    finish(world, 2)
    head = world.queue.refresh()
    facts = group_facts(head, head.groups[KEY.group])
    assert facts.leaving == {2: 10, 3: 10}
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    leaving = RemovedPartitions(lambda _: checkpoints, lambda: world.now_s)
    assert leaving.finished(facts) == {}, "nobody has looked"
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1, 3)
    assert leaving.finished(facts) == {2: 10}
    assert leaving.finished(replace(facts, rewinds=facts.rewinds + 1)) == {}
    assert leaving.finished(replace(facts, leaving={2: 15, 3: 10})) == {}
    # A rewind that is in the checkpoint, and not yet counted in the head.
    checkpoints.rewind(2, 0, fence=True, delivered=10)
    fenced = checkpoints.fence(2, to=None, epoch=9, start=0, delivered=None, finished=10)
    assert (fenced.offset, fenced.epoch) == (0, 9)
    assert checkpoints.fence(3, to=None, epoch=9, start=0, delivered=None, finished=10).offset == 10


def rested() -> tuple[World, HandFlow, HandFlow]:
    """Two flows that have acknowledged all there is."""
    world, a, b = two_flows()
    for flow in (a, b):
        for number in flow.mapping():
            assert flow.deliver(number, 1000)
            flow.acknowledge(number, 1000)
    world.run(2)
    return world, a, b


def rewind(world: World, partition: int, offset: int = 10) -> None:
    store = lifecycle.checkpoints_of(world.queue, KEY.group)
    store.rewind(partition, offset, fence=True, delivered=world.queue.refresh().next[partition])


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_listed_once_for_a_rewind_and_not_in_other_rounds() -> None:
    world, *_ = rested()
    (first,) = world.coordinators
    old, listed = first.facts(), first.calls("objects.list")
    world.run(30)
    for number in (0, 1):
        rewind(world, number)
    world.run(5)
    assert not listed, "it is the head that tells"
    for times in (1, 2):  # somebody repeated the command
        admin.count_rewind(world.queue, KEY.group)
        world.run(30)
        assert len(listed) == times
    first.runtime.step(old)
    world.run(1)
    assert len(listed) == 2, "old facts are confirmed before anything is listed"
    rewind(world, 0)
    admin.count_rewind(world.queue, KEY.group)
    first.stopped = True
    second = world.coordinator("c2")
    listed = second.calls("objects.list")
    world.run(20)
    assert len(listed) == 1, "to adopt the group, and not for the rewind once more"
    assert world.counts() == {"a": 2, "b": 2}


def test_a_rewind_that_could_not_be_looked_for_is_looked_for_again_and_goes_to_whom_the_partition_does() -> None:
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0))
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    world.published(100)
    for number in (0, 1):
        assert a.deliver(number, 100)
        a.acknowledge(number, 50)
    b = world.flow("b")
    world.settle()
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    rewind(world, paused, 20)
    admin.count_rewind(world.queue, KEY.group)

    def no_answer() -> None:
        raise ConnectionError("no answer")

    coordinator.at("objects.list", no_answer)
    with pytest.raises(ConnectionError):
        coordinator.step()
    world.run(1)
    after = world.checkpoints()[paused]
    assert (after.owner, after.offset, after.redelivered_below) == (b.owner, 20, 100)
    assert world.counts() == {"a": 1, "b": 1}


# --- whose groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ownership", "seen"),
    [
        ("redis://h:6379/0", {"undecided", "redis"}),
        ("rediss://h", {"undecided", "redis"}),
        ("store", {"undecided", "store"}),
    ],
)
def test_groups_are_seen_that_are_shared_by_this_ownership_and_those_of_which_nobody_said_it(
    ownership: str, seen: set[str]
) -> None:
    world = World(partitions=1)
    store, queue = world.objects, admin.create_queue(world.objects, "default", "shared", 1)
    for kind in ("none", "store", "redis"):
        admin.create_group(queue, kind, [0], ownership="redis://elsewhere:1/0" if kind == "redis" else kind)
    admin.create_group(queue, "undecided", [0])
    heads = Heads(store, "default", ownership=ownership)
    heads.look("shared")
    assert {key.group for key in heads.groups()} == seen
    groups.change_ownership(queue, "undecided", queue.head.groups["undecided"], "none")
    with pytest.raises(Invalid, match="is shared in another way now"):
        heads.now(GroupKey("default", "shared", "undecided"))
