"""A group knows how it is shared: a flow that comes another way is refused before it takes or delivers anything."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.log import admin, groups
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun, delivered, expected


@pytest.fixture
def world() -> World:
    made = World()
    made.coordinated()
    return made


def solo(world: World, flow: str | None = None, **options: str) -> Query:
    return world.query(flow, **{"ownership": "none", **options})


def way(world: World) -> str | None:
    return world.queue.refresh().groups[KEY.group].ownership


def test_a_query_that_forgot_the_ownership_takes_nothing_from_those_who_share(world: World) -> None:
    """The grave case: ten seconds between two writes of a checkpoint, in which the shared flow would not notice."""
    (query,) = begun(world, world.query("a", checkpointInterval="10s"))
    query.run()
    world.publish(4, 4)
    world.until(lambda: delivered(query) == expected(world))
    epochs = query.epochs
    forgot = solo(world, "b").start()
    with pytest.raises(Invalid) as refused:
        forgot.trigger()
    said = str(refused.value)
    assert "group 'billing' of queue 'orders'" in said
    assert "ownership=store" in said
    assert "ownership=none" in said
    assert "partq group alter orders --group billing --ownership none" in said
    for _ in range(20):
        world.publish(1, 1)
        world.sleep(0.5)
    world.until(lambda: delivered(query, forgot) == expected(world))
    assert query.epochs == epochs
    assert query.failure is None


def test_a_shared_query_does_not_join_a_group_that_one_query_has_for_itself(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(2, 2)
    query.drain()
    with pytest.raises(Invalid, match=r"ownership=none.*ownership=store"):
        world.query("b").start().trigger()
    assert way(world) == "none"
    world.publish(1, 1)
    query.drain()
    assert delivered(query) == expected(world)


@pytest.mark.parametrize("planned", [False, True])
def test_a_query_that_starts_again_another_way_is_refused(world: World, planned: bool) -> None:
    """Also with a batch that it has to repeat."""
    (query,) = begun(world, world.query())
    query.run()
    world.publish(2, 2)
    world.until(lambda: delivered(query) == expected(world))
    query.stop()
    if planned:
        world.publish(1, 1)
        query.start().plan()
        query.stop()
    other = solo(world)
    other.ends, other.committed = query.ends, query.committed
    with pytest.raises(Invalid, match="partq group alter"):
        other.start().trigger()
    assert other.rows == []


def test_the_first_flow_that_joins_says_how(world: World) -> None:
    queue = world.open_queue()
    admin.create_group(queue, KEY.group, [0, 0])
    assert way(world) is None
    (query,) = begun(world, world.query("a"))
    query.trigger()
    assert way(world) == "store"
    sequence = world.queue.head.sequence
    query.drain()
    begun(world, world.query("b"))[0].drain()
    assert world.queue.refresh().sequence == sequence, "once"


@pytest.mark.parametrize(("before", "after"), [("none", "store"), ("store", "redis://elsewhere:6379/0")])
def test_a_live_query_sees_that_its_group_is_shared_otherwise_before_it_delivers(
    world: World, before: str, after: str
) -> None:
    """It was idle for so long that nobody could know that it lives."""
    (query,) = begun(world, world.query("a", ownership=before))
    query.run()
    world.publish(2, 2)
    world.until(lambda: delivered(query) == expected(world))
    seen = expected(world)
    queue = world.open_queue()
    groups.change_ownership(queue, KEY.group, queue.refresh().groups[KEY.group], after)
    world.publish(1, 1)
    world.until(lambda: query.failure is not None)
    assert isinstance(query.failure, Invalid)
    assert "partq group alter orders --group billing" in str(query.failure)
    assert delivered(query) == seen


def test_what_is_acknowledged_stays_when_a_group_is_shared_otherwise(world: World) -> None:
    """Everything is delivered once; what the former way left open comes to the next one."""
    (alone,) = begun(world, solo(world))
    world.publish(3, 3)
    alone.drain().stop()
    world.publish(2, 2)
    queue = world.open_queue()
    groups.change_ownership(queue, KEY.group, queue.refresh().groups[KEY.group], "store")
    shared = begun(world, world.query("a"), world.query("b"))
    for query in shared:
        query.run()
    world.until(lambda: delivered(alone, *shared) == expected(world))
    assert sorted(len(query.partitions) for query in shared) == [1, 1]


def test_two_first_flows_of_two_ways_one_is_refused(world: World) -> None:
    """The record is set by a swap: the second look finds the first one's way."""
    queue = world.open_queue()
    admin.create_group(queue, KEY.group, [0, 0])
    (query,) = begun(world, solo(world))
    other = world.query("b").start()
    assert query.trigger() is False, "it has joined"
    with pytest.raises(Invalid):
        other.trigger()


def test_a_change_that_was_made_already_is_no_conflict(world: World) -> None:
    queue = world.open_queue()
    seen = admin.create_group(queue, KEY.group, [0, 0], ownership="none")
    for _ in range(2):
        groups.change_ownership(queue, KEY.group, seen, "rediss://h:1/0")
    assert way(world) == "redis"
    with pytest.raises(Conflict, match="ownership=redis meanwhile"):
        groups.change_ownership(queue, KEY.group, seen, "store")
    groups.remove_group(queue, KEY.group, seen)
    with pytest.raises(Conflict, match="was removed meanwhile"):
        groups.change_ownership(queue, KEY.group, seen, "redis://h:1/0")


def test_a_group_that_was_made_again_meanwhile_is_another_one(world: World) -> None:
    queue = world.open_queue()
    seen = admin.create_group(queue, KEY.group, [0, 0])
    groups.remove_group(queue, KEY.group, seen)
    admin.create_group(queue, KEY.group, [0, 0])
    with pytest.raises(Conflict, match="was removed meanwhile: start again"):
        groups.join(queue, KEY.group, seen.since_sequence, "store")
    with pytest.raises(Conflict, match="was removed meanwhile: look at it"):
        groups.change_ownership(queue, KEY.group, seen, "store")
    assert way(world) is None
