"""Groups that are removed and made again under their name: nothing of the former one is taken for the new one's."""

from __future__ import annotations

import pytest

from coordinator.heads import group_facts
from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.model import Owner
from partq_spark.log import admin
from partq_spark.log.groups import remove_group
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun

A = Owner("a", "i1")


@pytest.fixture
def world() -> World:
    """Without a coordinator."""
    return World()


def solo(world: World, flow: str | None = None, **options: str) -> Query:
    return world.query(flow, **{"ownership": "none", **options})


def remove(world: World) -> None:
    queue = world.open_queue()
    lifecycle.remove(queue, lifecycle.remains(queue, KEY.group, None), None)


def found(world: World, partition: int = 0) -> Checkpoint:
    checkpoint = world.checkpoints().read(partition)
    assert checkpoint is not None
    return checkpoint


def acknowledged(world: World, partition: int, offset: int) -> Checkpoint:
    """A checkpoint as a flow of the group left it."""
    held = world.checkpoints().fence(partition, to=A, epoch=3, start=0, delivered=9)
    return world.checkpoints().update_checkpoint(held, offset)


def test_what_a_removed_group_leaves_counts_for_nothing(world: World) -> None:
    begun(world, solo(world))
    world.publish(4, 4)
    left = acknowledged(world, 0, 3)
    remove(world)
    assert KEY.group not in world.queue.refresh().groups
    assert found(world).is_void
    assert found(world).epoch == left.epoch + 1


def test_a_group_made_again_begins_anew_whatever_its_flows_remember(world: World) -> None:
    """What a flow knows at the same epoch counts as exact, so the epoch must not come again. (Who has the former group
    in its Spark checkpoint is refused: `test_gone_groups`.)
    """
    (query,) = begun(world, solo(world, "a"))
    world.publish(4, 4)
    query.drain()
    assert query.epochs == {0: 1, 1: 1}
    query.stop()
    remove(world)
    (again,) = begun(world, solo(world, "a"))
    again.drain()
    assert again.offsets(0) == [0, 1, 2, 3], "from startingOffsets on, once more"
    assert again.epochs == {0: 3, 1: 3}


@pytest.mark.parametrize("offsets", ["earliest", "latest"])
def test_a_group_made_again_begins_where_it_is_told_to(world: World, offsets: str) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.drain()
    query.stop()
    world.publish(2, 2)
    remove(world)
    (other,) = begun(world, solo(world, "other", startingOffsets=offsets))
    world.publish(1, 1)
    other.drain()
    assert other.offsets(0) == ([0, 1, 2, 3, 4, 5, 6] if offsets == "earliest" else [6])


def test_a_query_of_its_own_whose_group_is_removed_ends_and_says_so(world: World) -> None:
    (query,) = begun(world, solo(world))
    query.run()
    world.publish(4, 4)
    world.until(lambda: world.offset(0) == 4)
    remove(world)
    world.until(lambda: query.failure is not None)
    assert isinstance(query.failure, Invalid)
    assert "group default/orders/billing was removed" in str(query.failure)


def test_another_group_of_the_name_is_not_taken_for_a_rewind(world: World) -> None:
    """The group is in the head again before its query looked: it must not go on as if it were its own."""
    (query,) = begun(world, solo(world))
    query.drain()
    world.publish(4, 4)
    remove(world)
    admin.create_group(world.open_queue(), KEY.group, [0, 0])
    with pytest.raises(Fenced, match="was removed"):
        query.drain()
    assert query.rows == []


def test_a_shared_query_whose_group_is_removed_ends_and_says_so() -> None:
    world = World()
    world.coordinated()
    (query,) = begun(world, world.query("a"))
    query.run()
    world.publish(4, 4)
    world.until(lambda: world.offset(0) == 4)
    remove(world)
    world.until(lambda: query.failure is not None)
    assert "was removed" in str(query.failure)


def test_a_leader_that_never_saw_the_group_gone_notices_that_it_is_another_one() -> None:
    """Removed and made again between two looks: what it takes for its flow's must not stay as it is."""
    world = World()
    coordinator = world.coordinated()
    (query,) = begun(world, world.query("a"))
    query.run()
    world.publish(4, 4)
    world.until(lambda: world.offset(0) == 4)
    query.kill()
    coordinator.frozen = True
    remove(world)
    admin.create_group(world.open_queue(), KEY.group, [0, 0])
    coordinator.frozen = False
    (other,) = begun(world, world.query("b"))
    other.run()
    world.until(lambda: other.offsets(0) == [0, 1, 2, 3], wait_s=120)


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [True, False])
def test_who_takes_partitions_of_a_group_that_is_removed_meanwhile_says_nothing_in_the_next(
    world: World, again: bool
) -> None:
    """A query alone has looked at the head, and takes its partitions when the group is another one, or none."""
    query = solo(world).start()
    query.trigger()
    world.publish(4, 4)
    real = world.open_queue().store.swap
    looks: list[str] = []

    def late(name: str, content: object, *, expected: str | None) -> str:
        if "/checkpoint/" in name and not looks:
            looks.append(name)
            remove(world)
            if again:
                admin.create_group(world.open_queue(), KEY.group, [4, 4])
        return real(name, content, expected=expected)  # type: ignore[arg-type]

    world.objects.swap = late  # type: ignore[method-assign]
    with pytest.raises((Invalid, Fenced), match="was removed"):
        query.drain()
    assert looks
    assert query.rows == []
    assert found(world).is_void
    (other,) = begun(world, solo(world, "other", startingOffsets="latest"))
    world.publish(1, 1)
    other.drain()
    assert (other.offsets(0), other.offsets(1)) == ([4], [4])


def test_a_group_that_never_was_says_nothing_of_checkpoints_of_a_former_queue(world: World) -> None:
    world.checkpoints("former").fence(1, to=A, epoch=3, start=0, delivered=9)
    admin.create_group(world.open_queue(), KEY.group, [0, 0])
    assert [(number, each.epoch) for number, each in world.checkpoints().list_checkpoints().items()] == [(1, 3)]


def test_a_removal_is_not_repeated_on_what_is_not_there(world: World) -> None:
    begun(world, solo(world))
    remove(world)
    with pytest.raises(Invalid, match="has no group"):
        remove(world)


def test_what_coordinators_know_of_a_group_tells_one_life_from_the_next(world: World) -> None:
    queue = world.open_queue()
    seen = []
    for rewinds in (3, 0, 1):
        made = admin.create_group(queue, KEY.group, [0, 0])
        for _ in range(rewinds):
            admin.count_rewind(queue, KEY.group)
        seen.append(group_facts(queue.head, queue.head.groups[KEY.group]).rewinds)
        remove_group(queue, KEY.group, made)
    assert seen == sorted(set(seen)), "it grows, and never comes again"


def test_a_group_that_is_another_one_by_now_is_not_removed(world: World) -> None:
    queue = world.open_queue()
    first = admin.create_group(queue, KEY.group, [0, 0])
    left = lifecycle.remains(queue, KEY.group, None)
    remove_group(world.open_queue(), KEY.group, first)
    admin.create_group(world.open_queue(), KEY.group, [0, 0])
    with pytest.raises(Conflict, match="made again"):
        lifecycle.remove(queue, left, None)
    assert KEY.group in queue.refresh().groups


def test_a_query_alone_that_runs_a_long_batch_does_not_bring_its_group_back(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.plan()
    query.deliver()
    remove(world)
    world.sleep(5.0)
    with pytest.raises(Invalid, match="was removed"):
        query.consumer.look_while_busy()
    assert found(world).is_void
