"""Queries of a group while the queue's partition count changes: who waits for whom, and for how long (RES)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.log import admin
from tests.group.session.world import KEY
from tests.query.resizing import Resizing
from tests.query.test_by_hand import acknowledge, by_hand
from tests.query.test_solo import solo
from tests.query.world import Query, begun, delivered, expected

SLOW = "1000s"  # a checkpoint interval that never comes


@pytest.fixture
def world() -> Resizing:
    made = Resizing()
    made.coordinated()
    return made


def triggers(*queries: Query, times: int = 4) -> None:
    for _ in range(times):
        for query in queries:
            query.trigger()


def until(world: Resizing, queries: Sequence[Query], look: Callable[[], bool]) -> None:
    """Trigger these until what must happen has happened."""

    def again() -> bool:
        triggers(*queries, times=1)
        return look()

    world.until(again)


def two(world: Resizing, **options: str) -> tuple[Query, Query]:
    """Flows with one of two partitions each."""
    left, right = begun(world, world.query("left", **options), world.query("right", **options))
    until(world, [left, right], lambda: (len(left.partitions), len(right.partitions)) == (1, 1))
    return world.watched(left), world.watched(right)


@pytest.mark.conformance("RES-01", "RES-03")
def test_what_came_after_the_change_waits_for_the_older_messages_of_its_keys_and_for_no_others(
    world: Resizing,
) -> None:
    left, right = two(world)
    assert (left.partitions, right.partitions) == ((0,), (1,))
    world.publish(5, 5)
    world.alter(4)
    world.publish(1, 2, 3, 4)
    until(world, [left], lambda: set(left.partitions) == {0, 2})
    triggers(left)
    assert left.offsets(0) == [*range(6)], "a partition does not wait for itself"
    assert left.offsets(2) == [0, 1, 2], "everything that shares its keys is acknowledged"
    assert not right.rows, "the other flow has not been asked since"
    triggers(right)
    assert (len(right.offsets(1)), len(right.offsets(3))) == (7, 4)


@pytest.mark.conformance("RES-03")
def test_what_another_flow_has_not_acknowledged_is_waited_for(world: Resizing) -> None:
    left, right = two(world)
    world.publish(5, 5)
    world.alter(3)  # shares keys with both
    world.publish_keys([f"key-{n}" for n in range(40)])
    until(world, [left], lambda: len(left.partitions) == 2)
    triggers(left)
    assert left.offsets(2) == []
    assert len(left.offsets(0)) == 5, "and so does the rest of its own partition"
    right.plan()
    right.deliver()
    triggers(left)
    assert left.offsets(2) == [], "delivered is not acknowledged"
    right.committed += 1
    right.trigger()
    triggers(left, right)
    assert world.all_delivered(left, right)


@pytest.mark.conformance("RES-03")
def test_what_others_wait_for_is_written_down_at_once(world: Resizing) -> None:
    left, right = two(world, checkpointInterval=SLOW)
    world.publish(5, 5)
    triggers(left, right)
    assert [world.offset(p) for p in (0, 1)] == [0, 0], "it is not time yet"
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(40)])
    before_s = world.now_s
    triggers(left, right)
    assert [world.offset(p) for p in (0, 1)] == [5, 5]
    assert world.now_s - before_s < 2.0
    until(world, [left, right], lambda: world.all_delivered(left, right))
    world.publish_keys(["key"] * 10)
    triggers(left, right)
    assert not world.all_acknowledged(), "nobody waits for this"


@pytest.mark.conformance("RES-03", "CHK-03")
def test_checkpoints_are_listed_only_while_somebody_waits_and_not_often(
    world: Resizing, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = two(world)
    listings: list[float] = []
    real = CheckpointStore.list_readable

    def counted(store: CheckpointStore) -> Any:
        listings.append(world.now_s)
        return real(store)

    world.tickers = [each for each in world.tickers if each.run.__name__ != "look"]  # coordinators have their own look
    monkeypatch.setattr(CheckpointStore, "list_readable", counted)
    world.publish(5, 5)
    triggers(left, right)
    assert listings == []
    coordinated = world.coordinated()
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(40)])
    until(world, [left], lambda: len(left.partitions) == 2)
    coordinated.frozen = True
    listings.clear()
    began_s = world.now_s
    triggers(left, times=20)
    assert 2 <= len(listings) <= (world.now_s - began_s) / 0.1 + 1
    triggers(right)
    triggers(left)
    listings.clear()
    world.publish_keys(["key"] * 10)
    triggers(left, right)
    assert listings == [], "what is finished is finished"


@pytest.mark.conformance("RES-03")
def test_who_waits_makes_no_empty_batches_and_does_not_spin(world: Resizing, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = two(world)
    world.publish(0, 5)
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(40)])
    until(world, [left], lambda: len(left.partitions) == 2)
    triggers(left)
    waits: list[float] = []

    def counted(wait_s: float) -> None:
        waits.append(wait_s)
        world.sleep(wait_s)

    monkeypatch.setattr(left.consumer, "_wait_for", counted)
    batches, before_s = len(left.ends), world.now_s
    assert [left.trigger() for _ in range(10)] == [False] * 10
    assert len(left.ends) == batches
    assert world.now_s - before_s >= 0.9, "each question waits for the poll interval"
    assert len(waits) <= 10 * 12
    right.drain()
    before_s = world.now_s
    while not left.trigger():
        assert world.now_s - before_s < 0.3, "a quiet flow looks again at once while something is barred"
    assert left.offsets(2)


@pytest.mark.conformance("RES-02", "RES-04")
def test_a_removed_partition_is_delivered_to_its_end_and_its_number_goes_on_where_it_was(world: Resizing) -> None:
    left, right = two(world)
    world.publish(5, 5)
    world.alter(1)
    world.publish(3)
    triggers(left)
    assert left.offsets(0) == [*range(5)], "the other partition is not finished"
    assert right.partitions == (1,)
    triggers(right)
    triggers(left)
    assert left.offsets(0) == [*range(8)]
    until(world, [left, right], lambda: right.partitions == ())
    state = world.state()
    assert state is not None
    assert list(state.partitions) == [0]
    assert world.owner(1) == (None, 3)
    assert world.offset(1) == 5
    world.alter(2)
    world.publish(2, 2)
    until(world, [left, right], lambda: world.all_delivered(left, right))
    assert delivered(left, right) == expected(world)
    assert world.owner(1)[1] == 4
    assert not any(row.redelivered for query in (left, right) for row in query.rows)


@pytest.mark.conformance("RES-02")
def test_a_removed_partition_whose_flow_dies_is_delivered_by_another(world: Resizing) -> None:
    left, right = two(world)
    world.publish(5, 5)
    world.alter(1)
    world.publish(3)
    right.kill()
    until(world, [left], lambda: world.all_delivered(left))
    assert left.offsets(1) == [*range(5)]


@pytest.mark.conformance("RES-03")
def test_several_changes_in_a_row_are_all_waited_for(world: Resizing) -> None:
    left, right = two(world)
    keys = [f"key-{n}" for n in range(30)]
    for count in (3, 8, 2, 5):
        world.publish_keys(keys)
        world.alter(count)
    world.publish_keys(keys)
    triggers(left)
    until(world, [left, right], lambda: world.all_delivered(left, right))
    assert delivered(left, right) == expected(world)
    until(world, [left, right], lambda: len(left.partitions) + len(right.partitions) == 5)


@pytest.mark.conformance("RES-03", "SEQ-01")
def test_with_manual_acknowledgements_the_applications_word_lets_others_go_on(world: Resizing) -> None:
    query, other = begun(world, by_hand(world, checkpointInterval=SLOW), world.query("other"))
    until(world, [query, other], lambda: query.partitions == (0,) and other.partitions == (1,))
    world.publish(5, 0)
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(30)])
    until(world, [query, other], lambda: len(query.partitions) == 2)
    triggers(query, other)
    assert query.offsets(2) == []
    assert other.rows == []
    acknowledge(query, (0, 5))
    triggers(other)
    assert other.rows
    triggers(query)
    assert query.offsets(2)


@pytest.mark.conformance("RES-03")
def test_a_query_alone_keeps_the_order_too(world: Resizing) -> None:
    (query,) = begun(world, solo(world))
    world.watched(query)
    keys = [f"key-{n}" for n in range(30)]
    for count in (4, 1, 3):
        world.publish_keys(keys)
        world.alter(count)
    world.publish_keys(keys)
    until(world, [query], lambda: world.all_delivered(query))
    assert delivered(query) == expected(world)
    until(world, [query], lambda: query.partitions == (0, 1, 2))


@pytest.mark.conformance("RES-03")
def test_a_query_alone_writes_down_at_once_what_it_waits_for_itself(world: Resizing) -> None:
    (query,) = begun(world, solo(world, checkpointInterval=SLOW))
    world.watched(query)
    world.publish(5, 5)
    query.trigger()
    world.alter(1)
    world.publish(3)
    before_s = world.now_s
    until(world, [query], lambda: world.all_delivered(query))
    assert world.now_s - before_s < 2.0
    assert world.acknowledged(1) == 5


@pytest.mark.conformance("RES-02", "RES-04")
def test_a_query_alone_takes_what_is_there_and_what_is_not_finished(world: Resizing) -> None:
    (query,) = begun(world, solo(world, checkpointInterval="0s"))
    world.watched(query)
    world.publish(5, 5)
    query.drain()
    world.alter(1)
    world.publish(3)
    until(world, [query], lambda: query.partitions == (0,))
    assert world.owner(1) == (None, 2)
    assert world.offset(1) == 5
    query.kill()
    query.start()
    query.drain()
    assert query.partitions == (0,)
    (other,) = begun(world, solo(world, "other"))
    other.trigger()
    assert other.partitions == (0,), "not all numbers that there ever were"
    world.alter(2)
    world.publish(2, 2)
    until(world, [other], lambda: delivered(query, other) == expected(world))
    assert {row.redelivered for row in other.rows if row.partition == 1} == {False}
    assert world.owner(1)[1] == 3


def test_a_batch_that_is_repeated_after_its_partition_was_let_go_is_left_out(world: Resizing) -> None:
    (query,) = begun(world, solo(world, checkpointInterval="0s"))
    world.publish(5, 5)
    query.trigger()
    world.alter(1)
    until(world, [query], lambda: query.partitions == (0,))
    query.kill()
    query.committed -= 1  # the last entry of the commit log is lost
    query.start()
    query.batches.clear()
    query.trigger()
    assert {row.partition for row in query.rows} <= {0}


@pytest.mark.conformance("RES-03")
def test_a_run_up_to_now_waits_for_others_within_its_bound(world: Resizing, caplog: pytest.LogCaptureFixture) -> None:
    left, right = two(world)
    world.publish(5, 5)
    world.alter(3)
    world.publish_keys([f"key-{n}" for n in range(30)])
    until(world, [left], lambda: len(left.partitions) == 2)
    left.kill()
    left.start(available_now=True)
    with caplog.at_level(logging.WARNING):
        left.drain()
    assert left.offsets(2) == []
    assert "messages are left" in caplog.text
    left.kill()
    left.start(available_now=True)
    right.run()
    left.drain()
    world.until(lambda: world.all_delivered(left, right))


@pytest.mark.conformance("RES-03")
def test_a_rewind_makes_what_was_finished_be_waited_for_again(world: Resizing) -> None:
    left, right = two(world, checkpointInterval="0s")
    world.publish(5, 5)
    world.alter(3)
    keys = [f"key-{n}" for n in range(30)]
    world.publish_keys(keys)
    until(world, [left, right], world.all_acknowledged)
    queue = world.open_queue()
    checkpoints = world.checkpoints()
    for partition in range(3):
        checkpoints.rewind(partition, 0, fence=True, delivered=queue.refresh().next[partition])
    admin.count_rewind(queue, KEY.group)
    rows = len(left.rows)
    until(world, [left], lambda: len(left.rows) > rows)
    triggers(left)
    assert not any(row.partition == 2 for row in left.rows[rows:]), "the other flow has not delivered again"
    until(world, [left, right], world.all_acknowledged)


@pytest.mark.conformance("RES-02")
def test_a_removed_partition_that_is_rewound_comes_back_to_be_delivered(world: Resizing) -> None:
    left, right = two(world, checkpointInterval="0s")
    world.publish(5, 5)
    world.alter(1)
    until(world, [left, right], lambda: world.owner(1)[0] is None)
    queue = world.open_queue()
    world.checkpoints().rewind(1, 2, fence=True, delivered=5)
    admin.count_rewind(queue, KEY.group)
    world.group_facts()
    rows = len(left.rows) + len(right.rows)
    until(world, [left, right], lambda: world.offset(1) == 5)
    assert len(left.rows) + len(right.rows) == rows + 3
    world.until(lambda: world.owner(1)[0] is None)
