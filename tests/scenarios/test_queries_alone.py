"""`ownership=none`: one query has the whole group, and the one that came last is it."""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import FOLDER, GROUP, OWNERSHIPS, Query, Stage, again, delivered, new

CHECKPOINT_0 = f"{FOLDER}checkpoint/0"


def one(stage: Stage, flow: str | None = None, **options: str) -> Query:
    return stage.query(flow, **{"ownership": "none", **options})


def settled(query: Query) -> None:
    """All is delivered, and what is acknowledged is written down: that is due once a second, as a look is."""
    for _ in range(2):
        query.drain()
        query.stage.sleep(2.0)
    query.drain()


@pytest.mark.conformance("OWN-01", "CHK-04")
@OWNERSHIPS
def test_a_query_that_gives_up_checkpoints_leaves_no_offset_to_count_by(stage: Stage, ownership: str) -> None:
    kept = stage.query("left", ownership=ownership).begun(10, 10).drain().stop()
    assert [stage.offset(p) for p in (0, 1)] == [10, 10]
    query = stage.query("left", ownership=ownership, checkpoints="none").goes_on_from(kept).start()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or len(query.rows) == 2)
    asked = [name for by, _, name in stage.line.calls if by == "left" and "/ownership/" in name]
    assert bool(asked) == (ownership == "store"), "each of the two can be used without the other"
    assert {row[1:] for row in query.rows} == {(10, False)}, "it goes on by its Spark checkpoint, nothing is marked"
    stage.until(lambda: query.trigger() or [stage.offset(p) for p in (0, 1)] == [None, None])
    for goal in ({"by": 5}, {"to": "earliest"}):
        with pytest.raises(partq.Invalid, match=r"checkpoints=none.*new Spark checkpoint.*startingOffsets"):
            stage.rewind(**goal, ownership=ownership)
    held = stage.do(lambda queue: queue.describe()).held_back
    assert held is not None
    assert {(each.offset, each.messages, each.for_ever) for each in held} == {(0, 11, True)}
    assert stage.do(lambda queue: queue.checkpoints(GROUP)).lag == 22
    query.stop()
    stage.sleep(20.0)
    other = stage.query("right", ownership=ownership, checkpoints="none").begun().drain()
    assert delivered(other) == stage.everything, "a new Spark checkpoint begins where the group began"
    assert {row.marked for row in other.rows} == {True}


# --- who came last ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-05")
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_takeover_between_look_and_batch_delivers_nothing(alone: Stage, is_planned: bool) -> None:
    """The checkpoints are looked at after the log."""
    first = one(alone, "first").begun().drain()
    alone.publish(4, 4)
    if is_planned:
        first.plan()
    one(alone, "second").begun().drain()
    with pytest.raises(partq.Fenced, match="'second'"):
        first.trigger()
    assert first.rows == []


def test_a_takeover_while_a_consumer_reads_gives_it_nothing(alone: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the checkpoints beside that, but seldom where requests are paid for."""
    monkeypatch.setattr("partq_spark.group.membership.is_paid", lambda _: True)
    alone.publish(6)
    held = alone.hold("read", "segments")
    reading = alone.begin(lambda: alone.world.queue().consumer(GROUP, ownership="none", starting="earliest").poll(60.0))
    alone.until(lambda: held.is_waiting)
    one(alone, "second").begun().drain()
    alone.sleep(6.0)
    held.release()
    with pytest.raises(partq.Fenced, match="'second'"):
        reading.result()


def test_a_run_that_has_read_everything_leaves_exact_marks_before_it_is_stopped(alone: Stage) -> None:
    alone.publish(5, 5)
    query = one(alone, "left").start(available_now=True).drain()
    assert alone.offset(0) == 5
    query.kill()
    alone.publish(1, 1)
    query.start(available_now=True).drain()
    assert {row.marked for row in query.rows} == {False}


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_once_deleted_begins_at_the_groups_start_marked_at_a_higher_epoch(alone: Stage) -> None:
    """What `Corrupt` advises. An epoch that comes twice would make an older Spark checkpoint believe that it is still
    where it was; and what this query had delivered before, it must not deliver again without a mark.
    """
    one(alone, "first").begun().drain()
    second = one(alone, "second").begun(4, 4).drain().stop()
    alone.world.store.swap(f"{CHECKPOINT_0[:-1]}9", {"of": "nobody"}, expected=None)
    alone.edit(CHECKPOINT_0, lambda found: {**found.metadata, "offset": "3"})
    with pytest.raises(partq.Corrupt, match=f"checkpoint {CHECKPOINT_0} is damaged.*delete it"):
        second.start().trigger()
    alone.world.store.delete(CHECKPOINT_0)
    before = len(second.rows)
    alone.publish(1, 1)
    second.start().drain()
    assert sorted(second.rows[before:]) == [*again(0, 5), *new(4, 5, 1)]
    assert second.epochs == {0: 3, 1: 2}
    alone.publish(1, 1)
    second.drain()
    assert not any(row.marked for row in second.batches[-1])


# --- taken back by somebody -------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
def test_an_idle_query_goes_on_from_where_it_was_taken_back_to(alone: Stage) -> None:
    query = one(alone).begun().run()
    alone.publish(4, 3)
    alone.until(lambda: [alone.offset(p) for p in (0, 1)] == [4, 3])
    alone.rewind(to=1, partitions=[0])
    alone.until(lambda: alone.offset(0) == 4 and query.epochs == {0: 3, 1: 1}, 5.0)
    assert query.failure is None
    assert [row for row in query.rows if row.partition == 0] == [*new(0, 4), *again(1, 4)]
    assert query.offsets(1) == [0, 1, 2]
    alone.publish(1, 1)
    alone.until(lambda: [alone.offset(p) for p in (0, 1)] == [5, 4])
    assert [row.marked for row in query.batches[-1]] == [False, False]


def test_what_was_announced_beside_a_partition_that_is_taken_back_is_not_skipped(alone: Stage) -> None:
    """That is met while the batch is announced: then nothing of it is delivered, and all of it comes again."""
    query = one(alone, "left").begun(4, 4)
    settled(query)
    alone.publish(1, 1)
    alone.rewind(to=2, partitions=[0])
    settled(query)
    assert query.offsets(0) == [0, 1, 2, 3, 2, 3, 4]
    assert query.offsets(1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_late", [False, True])
def test_the_run_that_takes_what_was_taken_back_has_it(alone: Stage, is_late: bool) -> None:
    """Also one that takes it between the look and the fence of the former run."""
    first, second = one(alone, "first"), one(alone, "second")
    first.begun()
    alone.publish(4, 4)
    settled(first)
    alone.rewind(to=0, partitions=[0])
    held = alone.hold("list", "checkpoint/", by="first" if is_late else "nobody", after=True)
    alone.until(lambda: held.is_waiting or not is_late)
    second.begun()
    second.trigger()
    held.release()
    with pytest.raises(partq.Fenced, match="flow 'second'"):
        settled(first)
    alone.publish(1, 1)
    settled(second)
    assert second.offsets(0) == [0, 1, 2, 3, 4]


# --- partitions that come and go --------------------------------------------------------------------------------------


def test_a_partition_that_was_removed_is_kept_until_its_last_batch_is_complete(alone: Stage) -> None:
    query = one(alone).begun(4, 4).plan()
    query.deliver()
    alone.alter(1)
    alone.sleep(15.0)
    query.commit().drain()
    assert delivered(query) == alone.everything
    alone.sleep(5.0)
    query.trigger()
    assert alone.offset(1) == 4
    assert 1 not in query.partitions
