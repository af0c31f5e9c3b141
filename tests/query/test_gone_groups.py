"""Queries that start again on their Spark checkpoint after their group was removed: nothing is left out silently."""

from __future__ import annotations

from collections import Counter

import pytest

from partq_spark.base.errors import Fenced, Invalid
from partq_spark.group import lifecycle
from partq_spark.log import admin
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun, delivered, expected

GONE = r"group default/orders/billing was removed"


@pytest.fixture
def world() -> World:
    """Without a coordinator."""
    return World()


def solo(world: World, flow: str | None = None, **options: str) -> Query:
    return world.query(flow, **{"ownership": "none", "startingOffsets": "latest", **options})


def remove(world: World) -> None:
    queue = world.open_queue()
    lifecycle.remove(queue, lifecycle.remains(queue, KEY.group, None), None)


def night(world: World, **options: str) -> Query:
    """A job that has read the first (4, 4) messages and ended; (2, 2) more came since, and its group was removed."""
    (query,) = begun(world, solo(world, "nightly", **options))
    world.publish(4, 4)
    query.drain().stop()
    remove(world)
    world.publish(2, 2)
    return query


@pytest.mark.parametrize("checkpoints", ["store", "none"])
def test_a_job_whose_group_was_removed_is_refused_and_nothing_is_skipped(world: World, checkpoints: str) -> None:
    query = night(world, checkpoints=checkpoints)
    with pytest.raises(Invalid, match=GONE) as refused:
        query.start(available_now=True).trigger()
    assert "flow 'nightly'" in str(refused.value)
    assert "new checkpoint location" in str(refused.value)
    assert 'startingOffsets={"0":4,"1":4}' in str(refused.value), "where it was"
    assert world.queue.refresh().groups == {}, "it was not made anew"

    (again,) = begun(world, solo(world, startingOffsets='{"0":4,"1":4}', checkpoints=checkpoints))
    again.drain()
    assert delivered(query, again) == expected(world)


def test_a_batch_that_was_not_complete_is_not_counted_as_dealt_with(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.drain()
    world.publish(2, 2)
    query.plan()
    query.deliver()
    query.stop()
    remove(world)
    with pytest.raises(Invalid, match=GONE) as refused:
        query.start().trigger()
    assert 'startingOffsets={"0":4,"1":4}' in str(refused.value)


def test_with_manual_acknowledgements_nobody_knows_where_it_was(world: World) -> None:
    """What was delivered may not be dealt with: no place is offered."""
    query = night(world, ackMode="manual")
    with pytest.raises(Invalid, match=GONE) as refused:
        query.start().trigger()
    assert "new checkpoint location" in str(refused.value)
    assert "startingOffsets={" not in str(refused.value)


def test_a_query_that_has_nothing_but_its_name_is_refused_too(world: World) -> None:
    """Where it was to begin was resolved when the group was made."""
    (query,) = begun(world, solo(world))
    query.stop()
    remove(world)
    world.publish(3, 3)
    with pytest.raises(Invalid, match=GONE):
        query.start().trigger()
    assert world.queue.refresh().groups == {}


def test_a_group_that_is_removed_between_a_name_and_the_bind_is_not_made_anew(world: World) -> None:
    (query,) = begun(world, solo(world))
    remove(world)
    with pytest.raises(Invalid, match=GONE):
        query.trigger()
    assert world.queue.refresh().groups == {}


@pytest.mark.parametrize("options", [{}, {"checkpoints": "none"}, {"ackMode": "manual"}])
def test_a_group_that_somebody_made_again_is_not_the_one_that_it_was(world: World, options: dict[str, str]) -> None:
    """The other's group begins at the end, and what came before it was never read by anybody."""
    query = night(world, **options)
    begun(world, solo(world, "other", **options))[0].drain().stop()
    with pytest.raises(Invalid, match=GONE):
        query.start().trigger()
    assert [row for batch in query.batches[-1:] for row in batch.rows if row.offset >= 4] == []


def test_a_batch_of_the_former_group_is_not_repeated_in_the_next_one(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.plan()
    query.kill()
    remove(world)
    admin.create_group(world.open_queue(), KEY.group, [4, 4])
    with pytest.raises(Invalid, match=GONE):
        query.start().trigger()


def test_several_flows_that_start_again_are_all_refused() -> None:
    """Each knows a part of the places; the first one must not make the group for the others."""
    world = World()
    world.coordinated()
    queries = begun(world, world.query("a"), world.query("b"))
    for query in queries:
        query.run()
    world.until(lambda: sorted(len(query.partitions) for query in queries) == [1, 1])
    world.publish(4, 4)
    world.until(lambda: delivered(*queries) == Counter({(p, n): 1 for p in (0, 1) for n in range(4)}))
    for query in queries:
        query.stop()
    remove(world)
    world.publish(2, 2)
    for query in queries:
        with pytest.raises(Invalid, match=GONE) as refused:
            query.start().trigger()
        assert '":4}' in str(refused.value), "what it knows of its own partition"
        assert "startingOffsets={" not in str(refused.value), "it does not know the other's"
    assert world.queue.refresh().groups == {}


def test_a_live_query_sees_that_its_group_is_another_one_before_it_delivers(world: World) -> None:
    (query,) = begun(world, solo(world))
    query.drain()
    remove(world)
    admin.create_group(world.open_queue(), KEY.group, [0, 0])
    world.publish(1, 1)
    with pytest.raises((Fenced, Invalid), match=GONE):
        query.drain()
    assert query.rows == []


@pytest.mark.conformance("RES-05")
def test_a_group_of_another_queue_by_the_same_names_is_another_one(world: World) -> None:
    """Also where it was made with the same sequence number: each queue counts from one."""
    (query,) = begun(world, solo(world))
    since = world.queue.refresh().groups[KEY.group].since_sequence
    world.publish(4, 4)
    query.drain().stop()
    admin.delete_queue(world.open_queue())
    admin.create_queue(world.objects, KEY.namespace, KEY.queue, 2, None, world.effects())
    made = admin.create_group(world.open_queue(), KEY.group, [0, 0], ownership="none")
    assert made.since_sequence == since
    with pytest.raises(Invalid, match="what was read so far is of a queue with id"):
        query.start().trigger()
    assert len(query.rows) == 8
