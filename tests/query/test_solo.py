"""`ownership=none`: one query has the whole group, and the one that came last is it. All four ways to keep things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from partq_spark.base.errors import Corrupt, Fenced, Invalid, Unavailable
from partq_spark.client import checkpoints
from partq_spark.group import retention
from partq_spark.group.rewinding import Goal
from partq_spark.log import admin
from partq_spark.objects.api import Document, ObjectInfo, Unchanged
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun, delivered, expected


@pytest.fixture
def world() -> World:
    """Without a coordinator."""
    return World()


def solo(world: World, flow: str | None = None, **options: str) -> Query:
    return world.query(flow, **{"ownership": "none", **options})


def test_a_query_alone_has_everything_and_writes_down_how_far_it_is(world: World) -> None:
    world.publish(4, 3)
    (query,) = begun(world, solo(world))
    query.run()
    world.until(lambda: world.offset(0) == 4 and world.offset(1) == 3)
    assert delivered(query) == expected(world)
    assert query.epochs == {0: 1, 1: 1}
    assert world.server.groups == {}, "no ownership store is asked"


def test_without_checkpoints_it_writes_down_nothing_but_whose_the_partitions_are(world: World) -> None:
    world.publish(4, 3)
    (query,) = begun(world, solo(world, checkpoints="none"))
    query.drain()
    assert delivered(query) == expected(world)
    found = world.checkpoints().read(0)
    assert found is not None
    assert found.owner is not None
    assert found.offset is None


def test_a_second_query_takes_over_and_the_first_says_who_did(world: World) -> None:
    (first,) = begun(world, solo(world, "first"))
    first.run()
    world.publish(4, 4)
    world.until(lambda: world.offset(0) == world.offset(1) == 4)
    (second,) = begun(world, solo(world, "second"))
    second.run()
    world.until(lambda: first.failure is not None)
    assert isinstance(first.failure, Fenced)
    assert "flow 'second' (instance" in str(first.failure)
    assert "took over partition 0 of group default/orders/billing at epoch 2" in str(first.failure)
    world.publish(2, 2)
    world.until(lambda: delivered(first, second) == expected(world))
    assert {row.redelivered for row in second.rows} == {False}


def test_what_the_first_had_not_acknowledged_comes_again_marked(world: World) -> None:
    (first,) = begun(world, solo(world, "first"))
    world.publish(4, 4)
    first.plan()
    first.deliver()
    (second,) = begun(world, solo(world, "second"))
    second.trigger()
    found = world.checkpoints().read(0)
    assert found is not None
    assert found.redelivered_below == 4
    world.publish(1, 1)
    second.trigger()
    assert Counter(row.redelivered for row in second.rows) == {True: 8, False: 2}
    first.committed += 1
    with pytest.raises(Fenced, match="'second'"):
        first.trigger()
    assert world.offset(0) == 0, "the first one's acknowledgement came too late"


def test_a_damaged_checkpoint_that_was_deleted_begins_at_the_groups_start_marked_and_at_a_higher_epoch(
    world: World,
) -> None:
    """What `Corrupt` advises. An epoch that comes twice would make an older Spark checkpoint believe that it is still
    where it was; and what this query had delivered before, it must not deliver again without a mark.
    """
    (first,) = begun(world, solo(world, "first"))
    first.drain()
    (second,) = begun(world, solo(world, "second"))
    world.publish(4, 4)
    second.drain()
    assert second.epochs == {0: 2, 1: 2}
    second.stop()
    name = world.checkpoints().name_of(0)
    found = world.objects.load(name)
    assert isinstance(found, Document)
    world.objects.swap(name, {**found.metadata, "offset": "3"}, expected=found.etag)
    with pytest.raises(Corrupt, match=f"checkpoint {name} is damaged.*delete it"):
        second.start().trigger()
    world.objects.delete(name)
    before = len(second.rows)
    world.publish(1, 1)
    second.start().drain()
    came = [(row.partition, row.offset, row.redelivered) for row in second.rows[before:]]
    assert sorted(came) == [(0, 0, True), (0, 1, True), (0, 2, True), (0, 3, True), (0, 4, True), (1, 4, False)]
    assert second.epochs == {0: 3, 1: 2}
    world.publish(1, 1)
    second.drain()
    assert not any(row.redelivered for row in second.batches[-1].rows)


def test_a_takeover_between_look_and_plan_delivers_nothing(world: World) -> None:
    """The checkpoints are looked at after the log."""
    (first,) = begun(world, solo(world, "first"))
    first.drain()
    world.publish(4, 4)
    (second,) = begun(world, solo(world, "second"))
    second.trigger()
    with pytest.raises(Fenced, match="'second'"):
        first.trigger()
    assert first.rows == []


@pytest.mark.conformance("FLO-07")
def test_a_restart_takes_its_partitions_back_at_their_epochs_and_repeats_its_batch(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.plan()
    query.deliver()
    query.kill()
    query.start()
    query.trigger()
    assert query.batches[-1].rows == query.batches[-2].rows
    assert query.epochs == {0: 1, 1: 1}
    world.publish(1, 1)
    query.drain()
    assert {row.redelivered for row in query.rows} == {False}
    query.stop()
    query.start().drain()
    assert query.epochs == {0: 1, 1: 1}


@pytest.mark.conformance("HAN-10")
def test_a_replay_after_somebody_else_came_and_went_delivers_nothing(world: World) -> None:
    (first,) = begun(world, solo(world, "first"))
    world.publish(4, 4)
    first.plan()
    first.kill()
    (second,) = begun(world, solo(world, "second"))
    second.drain()
    second.stop()
    first.start()
    assert first.deliver() == []
    first.committed += 1
    world.publish(1, 1)
    first.drain()
    assert delivered(first, second) == expected(world)


@pytest.mark.conformance("OWN-01")
@pytest.mark.parametrize("ownership", ["none", "store"])
@pytest.mark.parametrize("checkpoints", ["none", "store"])
def test_ownership_and_checkpoints_work_with_and_without_each_other(
    world: World, ownership: str, checkpoints: str
) -> None:
    if ownership == "store":
        world.coordinated()
    query = world.query("left", ownership=ownership, checkpoints=checkpoints)
    begun(world, query)
    world.publish(4, 4)
    query.drain()
    assert delivered(query) == expected(world)
    query.stop()
    assert (world.offset(0) or 0) == (4 if checkpoints == "store" else 0)
    query.start()
    world.publish(1, 1)
    query.drain()
    assert delivered(query) == expected(world), "its own Spark checkpoint is enough to go on"
    query.stop()
    world.sleep(20.0)
    (other,) = begun(world, world.query("right", ownership=ownership, checkpoints=checkpoints))
    other.drain()
    assert len(other.rows) == (0 if checkpoints == "store" else 10), "a new owner begins where the group began"
    assert {row.redelivered for row in other.rows} <= {True}


@pytest.mark.conformance("OWN-01", "CHK-04")
@pytest.mark.parametrize("ownership", ["none", "store"])
def test_a_query_that_gives_up_checkpoints_leaves_no_offset_that_a_rewind_or_retention_would_count_by(
    world: World, ownership: str
) -> None:
    if ownership == "store":
        world.coordinated()
    kept = world.query("left", ownership=ownership)
    begun(world, kept)
    world.publish(10, 10)
    kept.drain().stop()
    assert (world.offset(0), world.offset(1)) == (10, 10)
    query = world.query("left", ownership=ownership, checkpoints="none")
    query.ends, query.committed = kept.ends, kept.committed
    query.start()
    world.publish(1, 1)
    world.until(lambda: query.trigger() or len(query.rows) == 2)
    assert {row[1:] for row in query.rows} == {(10, False)}, "it goes on by its Spark checkpoint, nothing is marked"
    assert (world.offset(0), world.offset(1)) == (None, None)
    for goal in (Goal(by=5), Goal(earliest=True)):
        with pytest.raises(Invalid, match=r"checkpoints=none.*new Spark checkpoint.*startingOffsets"):
            checkpoints.rewind(world.queue, KEY.group, goal, (), ownership=ownership, dry_run=False)
    held = retention.holding_back(world.queue, world.queue.refresh())
    assert {(each.offset, each.messages, each.for_ever) for each in held} == {(0, 11, True)}
    assert checkpoints.checkpoints(world.queue, KEY.group).lag == 22
    query.stop()
    world.sleep(20.0)
    (other,) = begun(world, world.query("right", ownership=ownership, checkpoints="none"))
    other.drain()
    assert delivered(other) == expected(world), "a new Spark checkpoint begins where the group began"
    assert {row.redelivered for row in other.rows} == {True}


def test_two_that_start_at_once_end_with_one(world: World) -> None:
    first, second = begun(world, solo(world, "first"), solo(world, "second"))
    first.run(), second.run()
    world.publish(3, 3)
    world.until(lambda: (first.failure is None) != (second.failure is None))
    world.until(lambda: set(delivered(first, second)) == set(expected(world)))


def test_what_was_delivered_up_to_the_fence_counts_as_delivered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former owner may read and deliver more between the newcomer's look at the log and its fence."""
    (first,) = begun(world, solo(world, "first"))
    first.drain()
    (second,) = begun(world, solo(world, "second"))
    load = world.objects.load

    def load_slowly(name: str, *, known: str | None = None) -> Document | Unchanged | None:
        if name.endswith("checkpoint/0") and not first.rows:
            world.publish(4, 4)
            assert first.trigger()
        return load(name, known=known)

    monkeypatch.setattr(world.objects, "load", load_slowly)
    second.trigger()
    assert len(first.rows) == 8
    assert Counter(row.redelivered for row in second.rows) == {True: 8}


# --- rewound by somebody ----------------------------------------------------------------------------------------------


def rewind(world: World, partition: int, offset: int, *, end: int | None = None) -> None:
    """As `partq checkpoints rewind` does it. `end`: the log's end as it has seen it."""
    end = world.queue.refresh().next[partition] if end is None else end
    world.checkpoints().rewind(partition, offset, fence=True, delivered=end)
    admin.count_rewind(world.queue, KEY.group)


def drained(world: World, query: Query) -> None:
    """All is delivered, and what is acknowledged is written down: that is due once a second, as a look is."""
    for _ in range(2):
        query.drain()
        world.sleep(2.0)
    query.drain()


@pytest.mark.conformance("CHK-04")
def test_an_idle_query_goes_on_from_where_it_was_rewound_to(world: World) -> None:
    (query,) = begun(world, solo(world))
    query.run()
    world.publish(4, 3)
    world.until(lambda: world.offset(0) == 4 and world.offset(1) == 3)
    rewind(world, 0, 1)
    world.until(lambda: world.offset(0) == 4 and query.epochs == {0: 3, 1: 1}, wait_s=5.0)
    assert query.failure is None
    assert query.offsets(0) == [0, 1, 2, 3, 1, 2, 3]
    assert query.offsets(1) == [0, 1, 2]
    assert [row.redelivered for row in query.rows if row.partition == 0] == [False] * 4 + [True] * 3
    world.publish(1, 1)
    world.until(lambda: world.offset(0) == 5 and world.offset(1) == 4)
    assert [row.redelivered for row in query.batches[-1].rows] == [False, False]


def test_a_batch_that_runs_during_a_rewind_comes_again_marked(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.during = lambda: rewind(world, 0, 0, end=2)  # more was published and delivered since it looked
    query.trigger()
    query.during = lambda: None
    drained(world, query)
    assert query.offsets(0) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert query.offsets(1) == [0, 1, 2, 3]
    assert [row.redelivered for row in query.rows if row.partition == 0] == [False] * 4 + [True] * 4
    assert world.offset(0) == world.offset(1) == 4


def test_a_rewind_between_look_and_plan_delivers_nothing_of_the_old_place(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    drained(world, query)
    world.publish(1, 1)
    rewind(world, 0, 2)
    drained(world, query)
    assert query.offsets(0) == [0, 1, 2, 3, 2, 3, 4]
    assert query.offsets(1) == [0, 1, 2, 3, 4]


def test_rewound_twice_and_while_it_was_stopped(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    drained(world, query)
    rewind(world, 0, 3)
    rewind(world, 0, 2)
    drained(world, query)
    assert query.offsets(0) == [0, 1, 2, 3, 2, 3]
    query.stop()
    rewind(world, 0, 1)
    drained(world, query.start())
    assert query.offsets(0) == [0, 1, 2, 3, 2, 3, 1, 2, 3]
    assert [row.redelivered for row in query.rows[8:]] == [True] * 5


def test_the_run_that_takes_what_was_rewound_has_it(world: World) -> None:
    (first,) = begun(world, solo(world, "first"))
    world.publish(4, 4)
    drained(world, first)
    rewind(world, 0, 0)
    (second,) = begun(world, solo(world, "second"))
    drained(world, second)
    with pytest.raises(Fenced, match="flow 'second'"):
        drained(world, first)
    world.publish(1, 1)
    drained(world, second)
    assert second.offsets(0) == [0, 1, 2, 3, 4]


def test_the_run_that_takes_it_between_look_and_fence_has_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = begun(world, solo(world, "first"))
    world.publish(4, 4)
    drained(world, first)
    rewind(world, 0, 0)
    listed = world.objects.list
    second = solo(world, "second")

    def list_slowly(prefix: str) -> Iterator[ObjectInfo]:
        found = list(listed(prefix))
        if not second.ends:
            begun(world, second)
            second.trigger()
        return iter(found)

    monkeypatch.setattr(world.objects, "list", list_slowly)
    with pytest.raises(Fenced, match="flow 'second'"):
        drained(world, first)
    drained(world, second)
    assert second.failure is None
    assert second.offsets(0) == [0, 1, 2, 3]


def test_the_answer_to_taking_it_again_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    drained(world, query)
    rewind(world, 0, 1)
    swap, load = world.objects.swap, world.objects.load
    lost: list[str] = []

    def swap_unheard(name: str, document: bytes | Mapping[str, str], *, expected: str | None) -> str:
        etag = swap(name, document, expected=expected)
        if name.endswith("checkpoint/0") and not lost:
            lost.append(name)
            raise Unavailable("the answer was lost (test)")
        return etag

    def load_once_more(name: str, *, known: str | None = None) -> Document | Unchanged | None:
        if len(lost) == 1:
            lost.append(name)
            raise Unavailable("no answer either (test)")
        return load(name, known=known)

    monkeypatch.setattr(world.objects, "swap", swap_unheard)
    monkeypatch.setattr(world.objects, "load", load_once_more)
    drained(world, query)
    assert len(lost) == 2
    assert query.offsets(0) == [0, 1, 2, 3, 1, 2, 3]
    assert query.epochs[0] == 3


def test_an_acknowledgement_that_fails_makes_it_look_at_once(world: World) -> None:
    """Elsewhere than on a disk both are due every 10 s, and not together."""
    (query,) = begun(world, solo(world, checkpointInterval="10s"))
    query.drain()
    world.sleep(6.0)
    world.publish(4, 0)
    query.during = lambda: rewind(world, 0, 0)
    query.trigger()
    query.during = lambda: None
    world.sleep(5.0)
    query.drain()
    world.sleep(0.5)
    query.drain()
    assert query.offsets(0) == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.conformance("HAN-03")
def test_who_took_over_and_left_again_leaves_the_marks_of_who_was_before(world: World) -> None:
    (first,) = begun(world, solo(world, "first"))
    world.publish(4, 4)
    first.plan()
    first.deliver()
    (second,) = begun(world, solo(world, "second", maxMessagesPerTrigger="1"))
    second.plan()
    second.stop()
    assert [world.checkpoints().list_checkpoints()[p].redelivered_below for p in (0, 1)] == [4, 4]


def test_a_checkpoint_that_is_deleted_ends_a_query_that_has_nothing_to_write(world: World) -> None:
    (query,) = begun(world, solo(world))
    query.drain()
    world.objects.delete(world.checkpoints().name_of(0))
    world.sleep(5.0)
    with pytest.raises(Fenced, match=r"checkpoint/0 of flow .* was deleted while it was in use"):
        query.trigger()


def test_a_partition_that_was_removed_is_kept_until_its_last_batch_is_complete(world: World) -> None:
    (query,) = begun(world, solo(world))
    world.publish(4, 4)
    query.plan()
    query.deliver()
    admin.alter_queue(world.open_queue(), partitions=1)
    for _ in range(3):
        world.sleep(5.0)
        query.consumer.look_while_busy()
    query.committed += 1
    query.drain()
    assert delivered(query) == expected(world)
    world.sleep(5.0)
    query.trigger()
    assert world.offset(1) == 4
    assert 1 not in query.partitions


def test_what_another_queue_of_this_name_has_is_not_taken_for_a_rewind(world: World) -> None:
    (query,) = begun(world, solo(world))
    query.drain()
    world.checkpoints("another-queue").fence(0, to=None, epoch=9, start=0, delivered=None)
    world.sleep(5.0)
    with pytest.raises(Fenced):
        query.consumer.look_while_busy()
    left = world.checkpoints("another-queue").read(0)
    assert left is not None
    assert (left.epoch, left.owner) == (9, None)


def test_a_last_acknowledgement_that_comes_too_late_is_no_good_end(world: World) -> None:
    """Of a run with AvailableNow, which ends when there is nothing more to read."""
    (first,) = begun(world, solo(world, "first", checkpointInterval="1h"))
    world.publish(4, 4)
    first.kill().start(available_now=True)
    assert first.trigger()
    (second,) = begun(world, solo(world, "second"))
    second.plan()
    with pytest.raises(Fenced, match="'second'"):
        first.trigger()
