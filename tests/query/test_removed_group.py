"""Groups that are removed and made again under their name: nothing of the former one is taken for the new one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from coordinator.facts import facts_of
from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused
from partq_spark.group.model import Owner
from partq_spark.log import admin
from partq_spark.log.groups import remove_group
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.memory import MemoryStore
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun

A = Owner("a", "i1")


@pytest.fixture
def world() -> World:
    """Without a coordinator."""
    return World()


def solo(world: World, flow: str | None = None, **options: str) -> Query:
    return world.query(flow, **{"ownership": "none", **options})


def remove(world: World, store: ObjectStore | None = None) -> int:
    queue = world.open_queue()
    queue.store = store or queue.store
    return lifecycle.remove(queue, lifecycle.remains(queue, KEY.group, None), None)


def found(world: World, partition: int = 0) -> Checkpoint:
    checkpoint = world.checkpoints().read(partition)
    assert checkpoint is not None
    return checkpoint


def acknowledged(world: World, partition: int, offset: int) -> Checkpoint:
    """A checkpoint as a flow of the group left it."""
    held = world.checkpoints().fence(partition, to=A, epoch=3, start=0, delivered=9)
    return world.checkpoints().update_checkpoint(held, offset)


def test_a_removed_group_leaves_tombstones(world: World) -> None:
    begun(world, solo(world))
    world.publish(4, 4)
    left = acknowledged(world, 0, 3)
    assert remove(world) == 1
    assert KEY.group not in world.queue.refresh().groups
    tombstone = found(world)
    assert tombstone.is_tombstone
    assert tombstone.epoch == left.epoch + 1
    with pytest.raises(Fenced):
        world.checkpoints().update_checkpoint(left, 4)


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
def test_leftovers_of_a_removal_that_was_cut_off_do_not_count(world: World, offsets: str) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.drain()
    query.stop()
    world.publish(2, 2)
    queue = world.open_queue()
    remove_group(queue, KEY.group, queue.refresh().groups[KEY.group])
    assert not found(world).is_tombstone, "cut off after the head"
    (other,) = begun(world, solo(world, "other", startingOffsets=offsets))
    assert found(world).is_tombstone
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


def test_a_tombstone_is_not_taken_for_a_rewind(world: World) -> None:
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
    lifecycle.make(world.open_queue(), KEY.group, [0, 0])
    coordinator.frozen = False
    (other,) = begun(world, world.query("b"))
    other.run()
    world.until(lambda: other.offsets(0) == [0, 1, 2, 3], wait_s=120)


# --- races ------------------------------------------------------------------------------------------------------------


@dataclass
class Interrupted:
    """A store in which something happens before a swap of a checkpoint."""

    real: MemoryStore
    before: Callable[[], object] | None

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def swap(self, name: str, content: object, *, expected: str | None) -> str:
        if "/checkpoint/" in name and self.before is not None:
            act, self.before = self.before, None
            act()
        return self.real.swap(name, content, expected=expected)  # type: ignore[arg-type]


def test_a_slow_removal_does_not_bury_what_the_next_group_has_acknowledged(world: World) -> None:
    """The guard is the look at the head between reading a checkpoint and swapping it."""
    begun(world, solo(world))
    world.publish(4, 4)
    acknowledged(world, 0, 3)
    taken: list[Checkpoint] = []

    def made_again() -> None:
        lifecycle.make(world.open_queue(), KEY.group, [0, 0])
        held = world.checkpoints().fence(0, to=Owner("b", "i9"), epoch=9, start=0, delivered=None)
        taken.append(world.checkpoints().update_checkpoint(held, 2))

    with pytest.raises(Conflict, match="made again"):
        remove(world, Interrupted(world.objects, made_again))  # type: ignore[arg-type]
    assert found(world) == taken[0]


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_first_fence_of_the_former_group_that_lands_late_says_nothing_in_the_new_one(
    world: World, cut_off: bool
) -> None:
    """A coordinator was about to give away partition 1, which nobody had yet, when the group was removed and made."""
    world.publish(4, 4)
    queue = world.open_queue()
    made = lifecycle.make(queue, KEY.group, [0, 0])
    acknowledged(world, 0, 3)

    def again() -> None:
        if cut_off:
            remove_group(queue, KEY.group, made)
        else:
            remove(world)
        lifecycle.make(world.open_queue(), KEY.group, [4, 4])

    late = CheckpointStore(Interrupted(world.objects, again), KEY, queue.head.queue_id)  # type: ignore[arg-type]
    with pytest.raises(FenceRefused):
        late.fence(1, to=A, epoch=1, start=0, delivered=None)
    (query,) = begun(world, solo(world))
    world.publish(1, 1)
    query.drain()
    assert (query.offsets(0), query.offsets(1)) == ([4], [4])


def test_a_group_that_never_was_is_made_without_tombstones(world: World) -> None:
    """Also where a former queue of the name had one."""
    world.checkpoints("former").fence(1, to=A, epoch=3, start=0, delivered=9)
    lifecycle.make(world.open_queue(), KEY.group, [0, 0])
    assert [(number, each.epoch) for number, each in world.checkpoints().list_checkpoints().items()] == [(1, 3)]


def test_two_who_make_a_group_bury_what_was_left_once(world: World) -> None:
    world.publish(4, 4)
    acknowledged(world, 0, 3)
    taken: list[Checkpoint] = []

    def made_by_another() -> None:
        lifecycle.make(world.open_queue(), KEY.group, [0, 0])
        taken.append(world.checkpoints().fence(0, to=Owner("b", "i9"), epoch=9, start=0, delivered=None))

    queue = world.open_queue()
    queue.store = Interrupted(world.objects, made_by_another)  # type: ignore[assignment]
    lifecycle.make(queue, KEY.group, [0, 0])
    assert found(world) == taken[0]


def test_a_removal_that_was_cut_off_is_finished_by_the_same_call(world: World) -> None:
    begun(world, solo(world))
    for partition in (0, 1):
        acknowledged(world, partition, 2)
    queue = world.open_queue()
    left = lifecycle.remains(queue, KEY.group, None)
    remove_group(queue, KEY.group, left.group or pytest.fail("there is a group"))
    assert not found(world, 1).is_tombstone
    assert remove(world) == 2
    assert found(world, 1).is_tombstone
    with pytest.raises(Invalid, match="has no group"):
        remove(world)


def test_what_coordinators_know_of_a_group_tells_one_life_from_the_next(world: World) -> None:
    queue = world.open_queue()
    seen = []
    for rewinds in (3, 0, 1):
        made = lifecycle.make(queue, KEY.group, [0, 0])
        for _ in range(rewinds):
            admin.count_rewind(queue, KEY.group)
        seen.append(facts_of(queue.head, queue.head.groups[KEY.group]).rewinds)
        remove_group(queue, KEY.group, made)
    assert seen == sorted(set(seen)), "it grows, and never comes again"


def test_a_group_that_is_another_one_by_now_is_not_removed(world: World) -> None:
    queue = world.open_queue()
    first = lifecycle.make(queue, KEY.group, [0, 0])
    left = lifecycle.remains(queue, KEY.group, None)
    remove_group(world.open_queue(), KEY.group, first)
    lifecycle.make(world.open_queue(), KEY.group, [0, 0])
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
    with pytest.raises(Fenced, match="was removed"):
        query.consumer.look_beside()
    assert found(world).is_tombstone
