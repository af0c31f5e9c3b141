"""Partitions that a queue has lost, and that their group delivers to their end before they go (RES-02, RES-04)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.heads import group_facts
from coordinator.removed_partitions import RemovedPartitions
from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle, rewinding
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import RebalanceStatus
from partq_spark.log import admin
from partq_spark.log.layouts import resized
from tests.coordinator.world import KEY, Coordinator, HandFlow, World


def grown_and_shrunk() -> tuple[World, Coordinator, HandFlow, HandFlow]:
    """Four partitions, of which two are removed with ten messages in each that nobody has acknowledged."""
    world = World(partitions=4)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.run(1)
    b = world.flow("b")
    world.run(10)
    assert world.counts() == {"a": 2, "b": 2}
    world.published(10)
    resize(world, 2)
    world.run(3)
    return world, coordinator, a, b


def resize(world: World, partitions: int) -> None:
    world.altered(lambda head: resized(head, partitions))


def finish(world: World, *partitions: int, offset: int = 10) -> None:
    """Their flow acknowledges them to their end."""
    flows = {each.name: each for each in world.flows}
    for partition in partitions:
        flow = flows[str(world.owners()[partition])]
        assert flow.deliver(partition, offset)
        flow.acknowledge(partition, offset)


def say(world: World, acknowledged: Mapping[int, int]) -> None:
    """Their flow delivers them to their end, and reports so much as acknowledged: offsets are not kept."""
    flows = {each.name: each for each in world.flows}
    for partition, offset in acknowledged.items():
        flow = flows[str(world.owners()[partition])]
        assert flow.deliver(partition, 10)
        entry = replace(flow.deliveries[partition], acknowledged=offset)
        flow.deliveries[partition] = entry
        flow.store.report(KEY, flow.name, flow.instance, {partition: entry})


def known(world: World) -> list[int]:
    return list(world.state().partitions)


@pytest.mark.conformance("RES-02")
def test_removed_partitions_stay_until_they_are_finished_and_go_together() -> None:
    world, coordinator, *_ = grown_and_shrunk()
    assert known(world) == [0, 1, 2, 3]
    finish(world, 2)
    world.run(3)
    assert known(world) == [0, 1, 3]
    finish(world, 3)
    world.run(3)
    assert known(world) == [0, 1]
    assert world.counts() == {"a": 1, "b": 1}
    assert {n: (each.owner, each.offset) for n, each in world.checkpoints().items() if n > 1} == {
        2: (None, 10),
        3: (None, 10),
    }
    assert coordinator.runtime.leading


@pytest.mark.conformance("RES-02")
def test_what_is_found_finished_at_one_look_goes_in_one_rebalance() -> None:
    world, *_ = grown_and_shrunk()
    before = len(world.log.of("queue_altered"))
    finish(world, 2, 3)
    world.run(3)
    assert known(world) == [0, 1]
    assert len(world.log.of("queue_altered")) == before + 1


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_listed_about_once_a_second_and_only_while_something_leaves() -> None:
    world, coordinator, *_ = grown_and_shrunk()
    listings: list[float] = []

    def hook(verb: str) -> None:
        if verb == "objects.list":
            listings.append(world.now_s)

    coordinator.faults.hook = hook
    world.run(10, every_s=0.1)
    assert 8 <= len(listings) <= 11
    finish(world, 2, 3)
    world.run(3)
    listings.clear()
    world.run(10, every_s=0.1)
    assert listings == []


@pytest.mark.conformance("RES-02")
def test_every_leader_finds_out_anew_what_is_finished() -> None:
    world, first, *_ = grown_and_shrunk()
    second = world.coordinator("c2")
    finish(world, 2)
    first.stopped = True
    world.run(15)
    assert second.runtime.leading
    assert known(world) == [0, 1, 3]
    finish(world, 3)
    second.stopped = True
    third = world.coordinator("c3")
    world.run(15)
    assert third.runtime.leading
    assert known(world) == [0, 1]


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_leader_that_dies_while_partitions_go_is_followed_by_one_that_finishes_it(at: int) -> None:
    world, first, *_ = grown_and_shrunk()
    finish(world, 2, 3)
    first.faults.calls, first.faults.strike_at = 0, at
    world.run(3)
    world.coordinator("c2")
    world.run(20)
    assert known(world) == [0, 1]
    assert world.counts() == {"a": 1, "b": 1}
    assert all(world.checkpoints()[number].owner is None for number in (2, 3))


@pytest.mark.conformance("RES-02", "RES-04")
def test_a_number_that_came_and_went_again_unseen_is_not_taken_for_finished() -> None:
    world, first, *_ = grown_and_shrunk()
    finish(world, 2, 3)
    world.run(3)
    assert known(world) == [0, 1]
    resize(world, 4)
    world.published(15)
    resize(world, 2)  # before any coordinator has looked
    world.run(3)
    assert known(world) == [0, 1, 2, 3]
    finish(world, 2, 3, offset=15)
    world.run(3)
    assert known(world) == [0, 1]
    assert all(world.checkpoints()[number].epoch >= 4 for number in (2, 3))
    assert first.runtime.leading


@pytest.mark.conformance("RES-02", "CHK-04")
def test_a_removed_partition_that_is_rewound_comes_back_until_it_is_finished_again() -> None:
    world, *_ = grown_and_shrunk()
    finish(world, 2, 3)
    world.run(3)
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    epoch = world.checkpoints()[2].epoch
    checkpoints.rewind(2, 4, delivered=10)
    admin.count_rewind(world.queue, KEY.group)
    world.run(3)
    assert known(world) == [0, 1, 2]
    assert world.checkpoints()[2].epoch > epoch + 1
    assert world.checkpoints()[2].redelivered_below == 10
    finish(world, 2)
    world.run(3)
    assert known(world) == [0, 1]


@pytest.mark.conformance("RES-02")
def test_where_offsets_are_not_kept_the_owners_record_says_it() -> None:
    """`checkpoints=none`: the checkpoint stays where it was until the partition is let go."""
    world, *_ = grown_and_shrunk()
    say(world, {2: 10, 3: 9})
    world.run(4)
    assert known(world) == [0, 1, 3]
    assert [world.checkpoints()[number].offset for number in (2, 3)] == [10, 0]


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize("trouble", ["one answer is lost", "another leader", "the ownership store is emptied"])
def test_where_offsets_are_not_kept_what_was_let_go_stays_gone(trouble: str) -> None:
    """Nobody's record says any more that it is finished."""
    world, first, a, b = grown_and_shrunk()
    say(world, {2: 10, 3: 10})
    world.run(4)
    assert known(world) == [0, 1]
    assert {number: world.checkpoints()[number].owner for number in (2, 3)} == {2: None, 3: None}
    epochs = {number: world.checkpoints()[number].epoch for number in (2, 3)}
    if trouble == "one answer is lost":
        first.faults.calls, first.faults.strike_at, first.faults.error = 0, 1, Unavailable("no answer")
    elif trouble == "another leader":
        first.stopped = True
        world.coordinator("c2")
    else:
        for flow in (a, b):
            flow.die()
        world.server.flush()
        world.flow("c")
    world.run(15)
    assert len(world.log.of("group_adopted")) > 1, "the new leader has begun anew"
    assert known(world) == [0, 1]
    assert {number: world.checkpoints()[number].epoch for number in (2, 3)} == epochs


@pytest.mark.conformance("RES-02", "RES-04")
def test_where_offsets_are_not_kept_a_number_that_came_and_went_again_unseen_is_not_taken_for_finished() -> None:
    world, *_ = grown_and_shrunk()
    say(world, {2: 10, 3: 10})
    world.run(4)
    assert known(world) == [0, 1]
    resize(world, 4)
    world.published(15)
    resize(world, 2)  # before any coordinator has looked
    world.run(3)
    assert known(world) == [0, 1, 2, 3]
    assert [world.checkpoints()[number].offset for number in (2, 3)] == [10, 10], "it goes on where it was let go"


def test_what_was_finished_before_a_rewind_is_not_taken_for_finished_after_it() -> None:
    world, *_ = grown_and_shrunk()
    finish(world, 2)
    head = world.queue.refresh()
    facts = group_facts(head, head.groups[KEY.group])
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    leaving = RemovedPartitions(lambda _: checkpoints, lambda: world.now_s)
    assert leaving.finished(facts) == {}, "nobody has looked"
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1, 3)
    assert leaving.finished(facts) == {2: 10}
    assert leaving.finished(replace(facts, rewinds=facts.rewinds + 1)) == {}
    assert leaving.finished(replace(facts, leaving={2: 15, 3: 10})) == {}


@pytest.mark.conformance("RES-02", "CHK-04")
def test_a_partition_that_was_rewound_is_not_let_go_at_its_end() -> None:
    """The rewind is in the checkpoint, and not yet counted in the head."""
    world, *_ = grown_and_shrunk()
    say(world, {2: 10, 3: 10})
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    checkpoints.rewind(2, 0, fence=True, delivered=10)
    fenced = checkpoints.fence(2, to=None, epoch=9, start=0, delivered=None, finished=10)
    assert (fenced.offset, fenced.epoch) == (0, 9)
    assert checkpoints.fence(3, to=None, epoch=9, start=0, delivered=None, finished=10).offset == 10


def test_a_group_that_began_after_the_change_has_nothing_to_do_with_what_is_gone() -> None:
    world = World(partitions=4)
    world.published(10)
    resize(world, 2)
    head = world.queue.refresh()
    assert group_facts(head, head.groups[KEY.group]).leaving == {2: 10, 3: 10}
    later = structs.replace(head.groups[KEY.group], start=head.next)
    assert group_facts(head, later).leaving == {}
    assert group_facts(head, later).partitions == (0, 1)


def begun_at_the_end(world: World) -> None:
    """As with `startingOffsets=latest`: the group begins where partitions 2 and 3 end, which then leave the queue."""
    world.published(10)
    world.altered(
        lambda head: replace(
            head, groups={KEY.group: structs.replace(head.groups[KEY.group], start=(0, 0, *head.next[2:]))}
        )
    )


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
    assert world.checkpoints()[2].offset == 0
    assert world.owners()[2] == "a"
    finish(world, 2)
    world.run(3)
    assert known(world) == [0, 1]


@pytest.mark.conformance("RES-02")
def test_a_rewind_brings_no_removed_partition_that_nobody_touched() -> None:
    """It is still where the group begins, at its end. One that cannot be read is not known to be there."""
    world = World(partitions=4)
    begun_at_the_end(world)
    resize(world, 2)
    former = CheckpointStore(world.objects, KEY, world.queue.head.queue_id)
    former.fence(2, to=None, epoch=1, start=0, delivered=None)
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    admin.count_rewind(world.queue, KEY.group)
    head = world.queue.refresh()
    facts = group_facts(head, head.groups[KEY.group])
    leaving = RemovedPartitions(lambda _: checkpoints, lambda: world.now_s)
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1)
    world.objects.swap(checkpoints.name_of(3), b"{damaged}", expected=None)
    leaving.forget()
    assert leaving.with_unfinished(facts, {}, "").partitions == (0, 1, 3)


@pytest.mark.conformance("RES-01", "REB-08")
def test_a_change_during_a_holddown_and_during_a_handoff() -> None:
    world, _, a, b = grown_and_shrunk()
    finish(world, 2, 3)
    b.die()
    world.run(11)
    resize(world, 8)
    world.run(1)
    assert world.state().status is RebalanceStatus.READY
    assert world.counts() == {"a": 8}
    assert all(a.deliver(number, 15) for number in range(8))
    c = world.flow("c")
    world.run(5.5)
    assert world.state().status is RebalanceStatus.REBALANCING
    resize(world, 3)
    world.run(10)
    assert sorted(world.counts().values()) == [1, 2]
    assert c.mapping()
