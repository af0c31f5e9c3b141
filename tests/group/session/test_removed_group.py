"""A flow whose group is removed while it lives: it ends and says so, instead of waiting for a coordinator for ever."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid
from tests.group.session.world import KEY, Process, World, bound


def flow_of(world: World) -> Process:
    """A flow that has acknowledged a part of each partition."""
    world.coordinator()
    flow = world.flow("a")
    bound(flow)
    for partition in flow.look().claims:
        assert flow.deliver(partition, 50)
        assert flow.acknowledge(partition, 50)
    flow.session.flush()
    return flow


def remove(world: World, *partitions: int) -> None:
    """As `partq group remove --ownership` does it, after the head; the coordinator has noticed."""
    world.tickers = [each for each in world.tickers if each.run.__qualname__.startswith("Process")]
    for partition in partitions:
        world.checkpoints().bury(partition, confirm=lambda: None)
    world.server.open().drop_group(KEY)


def look_on(world: World, flow: Process) -> None:
    for _ in range(300):
        flow.look()
        world.sleep(0.1)


def test_a_flow_of_a_removed_group_ends_and_says_so() -> None:
    world = World()
    flow = flow_of(world)
    remove(world, 0, 1)
    with pytest.raises(Invalid, match=r"group default/orders/billing was removed .* flow 'a' ends"):
        look_on(world, flow)


def test_a_redis_that_lost_everything_is_not_taken_for_that() -> None:
    """The checkpoints say that the group is there."""
    world = World()
    flow = flow_of(world)
    remove(world)
    look_on(world, flow)


def test_one_whose_answers_got_lost_waits_for_its_coordinator() -> None:
    """It was never given anything, so it cannot know whose tombstones these are."""
    world = World()
    for partition in (0, 1):
        world.checkpoints().fence(partition, to=None, epoch=1, start=3, delivered=None)
        world.checkpoints().bury(partition, confirm=lambda: None)
    flow = world.flow("a")
    flow.session.bind(wait_s=0.0)
    flow.freeze()
    world.sleep(60.0)
    flow.look()
    assert flow.session.is_bound
