"""Fences by themselves: what they believe of records and checkpoints, and that each fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from msgspec import structs

from coordinator.core.actions import Fence
from coordinator.core.events import PartitionFenced
from coordinator.core.machine import pending
from coordinator.fences import carry_out
from coordinator.observe import Validity
from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.model import Owner, Phase
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, SESSION_S, World

A = TypeVar("A")
B = TypeVar("B")

PARTITIONS = 3
HEIR = Owner("b", "2")


def test_a_removed_partition_that_has_no_checkpoint_yet_begins_where_its_group_does() -> None:
    """The flow was given everything, the fences failed, and then the queue got fewer partitions, of which nothing was
    published since the group began.
    """
    world = World(partitions=PARTITIONS)
    world.published(100)
    starts = (10, *world.queue.head.next[1:])
    world.altered(lambda head: replace(head, groups={KEY.group: structs.replace(head.groups[KEY.group], start=starts)}))
    coordinator = world.coordinator()
    world.flow("a")

    def refuse(verb: str) -> None:
        if verb == "objects.swap":
            raise Unavailable("no")

    coordinator.faults.hook = refuse
    world.run(1)
    assert world.checkpoints() == {}
    assert {each.phase for each in world.state().partitions.values()} == {Phase.FENCING}
    fewer = structs.replace(world.queue.head.layout, partitions=1, begin=world.queue.head.layout.begin[:1])
    world.altered(lambda head: replace(head, layouts=(fewer,)))
    coordinator.faults.hook = None
    world.run(8)
    assert world.owners() == {0: "a"}
    assert {number: mark.offset for number, mark in world.checkpoints().items()} == dict(enumerate(starts))


@pytest.mark.conformance("OWN-03")
def test_a_leader_whose_state_was_lost_fences_nothing_that_the_next_one_has_fenced() -> None:
    """It was to take the partitions from a flow that was gone. The store loses that, the flow comes back, and the next
    leader gives them to its new instance, at the epoch that they have in the checkpoints, which is a lower one.
    """
    world = World(partitions=PARTITIONS, config=QueueConfig(rebalance_delay_s=0.0))
    first = world.coordinator("c1")
    world.published(100)
    a = world.flow("a")
    world.settle()
    mapping = a.mapping()

    def lose(verb: str) -> None:
        if verb != "objects.load":
            return
        first.faults.hook = None
        assert {(each.owner, each.to, each.epoch) for each in pending(world.state())} == {(a.owner, None, 2)}
        world.server.flush()
        a.store = world.server.open()
        a.bind(mapping)
        world.coordinator("c2").step()
        assert a.mapping() == mapping

    a.unbind()
    first.faults.hook = lose
    world.run(2)
    assert len(world.coordinators) == 2, "the fences were on their way"
    assert world.owners() == dict.fromkeys(range(PARTITIONS), "a"), "state and checkpoints agree"
    assert a.mapping() == mapping
    assert [line["partition"] for line in world.log.of("fence_failed")] == list(range(PARTITIONS))
    # Else the checkpoints would be nobody's, and if only they are left, nobody knew that somebody delivers.
    world.published(200)
    assert a.deliver(0, 150)
    a.die()
    world.server.flush()
    world.flow("b")
    world.run(2 * SESSION_S)
    assert world.owners() == dict.fromkeys(range(PARTITIONS), "b")
    assert world.checkpoints()[0].redelivered_below >= 150


def test_a_checkpoint_that_cannot_be_read_fails_only_its_own_fence() -> None:
    world = World(partitions=PARTITIONS)
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    world.objects.swap(checkpoints.name_of(1), {"offset": "nonsense"}, expected=None)
    reads = 0
    inside = False

    def run(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        nonlocal inside
        inside = True
        try:
            return [each(item) for item in work]
        finally:
            inside = False

    class Watched(CheckpointStore):
        def read(self, partition: int) -> Checkpoint | None:
            nonlocal reads
            reads += 1
            assert inside, "the pool's threads read, side by side"
            return super().read(partition)

    done = carry_out(
        [
            Fence(
                partition=number, owner=Owner("a", "1"), owner_epoch=1, to=HEIR, epoch=2, reports_lost=True, reason=""
            )
            for number in range(PARTITIONS)
        ],
        key=KEY,
        validity=Validity(queue_id=world.queue.head.queue_id, incarnation=world.server.incarnation),
        records={},
        checkpoints=Watched(world.objects, KEY, world.queue.head.queue_id, since=checkpoints.since),
        starts={},
        finished={},
        ends=lambda: (10, 20, 30),
        is_asked_for=lambda: True,
        run=run,
        log=world.log,
    )
    assert done.events == [PartitionFenced(partition=number, epoch=2, owner=HEIR) for number in (0, 2)]
    assert {number: mark.redelivered_below for number in (0, 2) if (mark := checkpoints.read(number))} == {0: 10, 2: 30}
    (line,) = world.log.of("fence_failed")
    assert line["partition"] == 1
    assert checkpoints.name_of(1) in str(line["reason"])
    assert list(done.failed) == [1]
    assert done.redelivered == 40, "up to the log's end, where nobody knows better"
    assert reads >= PARTITIONS
