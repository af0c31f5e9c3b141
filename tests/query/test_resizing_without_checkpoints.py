"""Groups whose offsets are not kept (`checkpoints=none`), or that have none yet, while the partition count changes:
what nobody reads again is not waited for (RES-03).
"""

from __future__ import annotations

import pytest

from tests.query.resizing import Resizing
from tests.query.test_resizing import until
from tests.query.world import begun, delivered, expected


@pytest.mark.conformance("RES-03")
@pytest.mark.parametrize("ownership", ["none", "store"])
def test_without_checkpoints_a_restart_does_not_wait_for_what_it_has_read_before(ownership: str) -> None:
    """At another epoch nothing is acknowledged, and what the query has completed is not read again."""
    world = Resizing()
    world.coordinated()
    (query,) = begun(world, world.query("left", checkpoints="none", ownership=ownership))
    world.publish(5, 5)
    query.drain()
    query.stop()
    other = world.query("right", checkpoints="none", ownership=ownership).start()
    until(world, [other], lambda: len(other.rows) == 10)
    other.stop()
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(30)])
    query.start()
    until(world, [query], lambda: world.all_delivered(query))
    assert max(query.epochs.values()) > 1
    assert delivered(query) == expected(world), "nothing twice"


@pytest.mark.conformance("RES-03")
@pytest.mark.parametrize("checkpoints", ["none", "store"])
@pytest.mark.parametrize("ownership", ["none", "store"])
def test_a_group_that_begins_after_a_removal_does_not_wait_for_what_was_before_it(
    ownership: str, checkpoints: str
) -> None:
    world = Resizing(partitions=3)
    world.coordinated()
    world.publish(5, 5, 5)
    world.alter(2)
    query = world.query("left", ownership=ownership, checkpoints=checkpoints, startingOffsets="latest")
    begun(world, query)
    world.publish(4, 4)
    until(world, [query], lambda: len(query.rows) == 8)
    assert (query.offsets(0), query.offsets(1)) == ([*range(5, 9)], [*range(5, 9)])


@pytest.mark.conformance("RES-03")
@pytest.mark.parametrize("ownership", ["none", "store"])
def test_without_checkpoints_what_flows_say_counts(ownership: str) -> None:
    world = Resizing()
    world.coordinated()
    left = world.query("left", checkpoints="none", ownership=ownership)
    queries = [left]
    if ownership == "store":
        queries.append(world.query("right", checkpoints="none"))
    begun(world, *queries)
    for query in queries:
        query.trigger()
    keys = [f"key-{n}" for n in range(30)]
    for count in (4, 1, 3):
        world.publish_keys(keys)
        world.alter(count)
    world.publish_keys(keys)
    order = {each.number: each for each in world.messages}
    until(world, [*queries], lambda: world.all_delivered(*queries))
    assert len(order) == len(world.messages)
