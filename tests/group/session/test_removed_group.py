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


def dropped(world: World) -> None:
    """As `partq group remove --ownership` does it; the coordinator has noticed."""
    world.tickers = [each for each in world.tickers if each.run.__qualname__.startswith("Process")]
    world.server.open().drop_group(KEY)


def look_on(world: World, flow: Process) -> None:
    for _ in range(300):
        flow.look()
        world.sleep(0.1)


def test_a_flow_of_a_removed_group_ends_and_says_so() -> None:
    """What looks at the head is the flow's caller's."""
    world = World()
    flow = flow_of(world)

    def head() -> None:
        raise Invalid("the group was removed")

    flow.session._require_group = head
    dropped(world)
    with pytest.raises(Invalid, match="was removed"):
        look_on(world, flow)


def test_a_redis_that_lost_everything_is_not_taken_for_that() -> None:
    """The head says that the group is there."""
    world = World()
    flow = flow_of(world)
    dropped(world)
    look_on(world, flow)


def test_one_whose_answers_got_lost_waits_for_its_coordinator() -> None:
    """It was never given anything, so it does not ask."""
    world = World()
    flow = world.flow("a")
    flow.session.bind(wait_s=0.0)
    flow.freeze()
    world.sleep(60.0)
    flow.look()
    assert flow.session.is_bound
