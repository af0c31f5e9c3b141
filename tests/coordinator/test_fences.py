"""Fences by themselves: what they believe of records and checkpoints, and that each fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from coordinator.core.actions import Fence
from coordinator.core.events import PartitionFenced
from coordinator.fences import carry_out
from coordinator.observe import Setting
from partq_spark.flow.checkpoints import Checkpoint, CheckpointStore
from partq_spark.flow.model import Owner
from tests.coordinator.world import KEY, World

A = TypeVar("A")
B = TypeVar("B")

PARTITIONS = 3
HEIR = Owner("b", "2")


def test_a_checkpoint_that_cannot_be_read_fails_only_its_own_fence() -> None:
    world = World(partitions=PARTITIONS)
    queue_id = world.queue.head.queue_id
    checkpoints = CheckpointStore(world.objects, KEY, queue_id)
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

    events = carry_out(
        [
            Fence(
                partition=number, owner=Owner("a", "1"), owner_epoch=1, to=HEIR, epoch=2, reports_lost=True, reason=""
            )
            for number in range(PARTITIONS)
        ],
        key=KEY,
        setting=Setting(queue_id=queue_id, incarnation=world.server.incarnation),
        records={},
        checkpoints=Watched(world.objects, KEY, queue_id),
        starts={},
        ends=lambda: (10, 20, 30),
        run=run,
        log=world.log,
    )
    assert events == [PartitionFenced(partition=number, epoch=2, owner=HEIR) for number in (0, 2)]
    assert {number: mark.redelivered_below for number in (0, 2) if (mark := checkpoints.read(number))} == {0: 10, 2: 30}
    (line,) = world.log.of("fence_failed")
    assert line["partition"] == 1
    assert checkpoints.name_of(1) in str(line["reason"])
    assert reads >= PARTITIONS
