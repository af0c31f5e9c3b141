"""Queries that come back: batches that are repeated, or were announced and never read, or whose partitions moved on;
with an older Spark checkpoint, or without checkpoints. Nothing is left out, and what comes again is marked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import partq
from tests.scenarios.stage import OWNERSHIPS, Stage, begun, delivered

# --- what was announced -----------------------------------------------------------------------------------------------


def test_what_was_announced_and_never_became_a_batch_is_read_all_the_same(stage: Stage) -> None:
    """In full, whatever a trigger allows."""
    query = stage.query(maxMessagesPerTrigger="2").begun(5, 5)
    query.announce(limited=False)
    stage.publish(3, 0)
    query.drain()
    assert [len(batch) for batch in query.batches[:2]] == [0, 10]
    assert delivered(query) == stage.everything


@pytest.mark.conformance("HAN-03")
def test_what_was_announced_and_never_written_down_is_marked(stage: Stage) -> None:
    """Killed between `latestOffset` and the offset log, or restarted on an older Spark checkpoint: nobody can tell."""
    query = stage.query().begun(2, 2)
    query.trigger()
    stage.publish(3, 3)
    query.announce()
    query.kill().start().drain()
    assert delivered(query) == stage.everything
    assert [row.offset for row in query.rows if row.marked] == [2, 3, 4, 2, 3, 4]


# --- repeated batches -------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.conformance("HAN-10")
def test_a_replayed_batch_delivers_nothing_of_a_partition_that_moved_on(stage: Stage, ownership: str) -> None:
    first = stage.query(ownership=ownership).begun(4, 4).plan()
    first.kill()  # its batch is in the offset log, and nothing of it was delivered
    second = stage.query(ownership=ownership).begun().run()
    stage.until(lambda: delivered(second) == stage.everything and stage.offset(0) == stage.offset(1) == 4)
    if ownership == "none":
        second.stop()
    assert first.start().deliver() == []
    first.commit()
    stage.publish(1, 1)
    first.run()
    stage.until(lambda: delivered(first, second) == stage.everything and bool(first.partitions))


def test_a_replay_in_doubt_waits_and_then_fails(alone: Stage) -> None:
    """Without a coordinator nobody says whose the partitions are."""
    coordinator = alone.coordinated()
    query = alone.query().begun(4, 4).plan().kill()
    coordinator.kill()
    query.start()
    begun_s = alone.now_s
    with pytest.raises(partq.Unavailable, match=r"partitions \[0, 1\] are still its own: is a coordinator running\?"):
        query.deliver()
    assert 20.0 < alone.now_s - begun_s < 45.0
    coordinator.start()
    assert len(query.deliver()) == 8


# --- what moved on between planning and reading -----------------------------------------------------------------------


@pytest.mark.conformance("HAN-05")
def test_what_moved_on_while_its_batch_was_planned_is_not_read(stage: Stage) -> None:
    """The process stood still between its look at the group and its answer: the lease is the last thing looked at."""
    first, second = stage.query("left"), stage.query("right")
    first.begun()
    stage.publish(4, 4)
    first.plan()
    held = stage.hold("load", "ownership/state", by="left", after=True)
    going = first.asking(lambda: first._read(first.log[-1]))
    stage.until(lambda: held.is_waiting)
    first.freeze()
    held.release()
    second.begun().run()
    stage.until(lambda: len(second.rows) == 8)
    first.thaw()
    assert going.result() == []
    first.commit().run()
    stage.publish(1, 1)
    stage.until(lambda: delivered(first, second) == stage.everything)


@pytest.mark.conformance("HAN-02", "HAN-05")
@pytest.mark.parametrize(("before", "is_lost"), [((), False), ((3, 3), True)])
def test_a_pause_that_comes_while_a_batch_is_announced_keeps_its_messages_back(
    staged: Callable[..., Stage], before: tuple[int, ...], is_lost: bool
) -> None:
    """The state changes between look and announcement: the announcement fails, and the batch is planned again. Of one
    whose answer is lost nobody heard, and the checkpoint may say more than was delivered: its owner closes it as soon
    as it sees the pause, so it holds no handoff up.
    """
    stage = staged(max_handoff_time_s=60.0)
    first = stage.query("left", checkpointInterval="0s").begun(*before).drain()
    stage.publish(6, 6)
    held = stage.hold("swap", "checkpoint/", by="left", after=is_lost, lost=is_lost)
    going = first.asking(first._trigger)
    stage.until(lambda: held.is_waiting)
    second = stage.query("right").begun().run()
    stage.sleep(2.0)
    held.release()
    going.result()
    assert is_lost or len({row.partition for row in first.rows}) == 1
    first.run()
    stage.until(lambda: delivered(first, second) == stage.everything, 20.0)
    assert {row.marked for row in second.rows} == {False}, "what was refused counts as nobody's"


@pytest.mark.conformance("HAN-05")
@pytest.mark.parametrize("replaced", [False, True])
def test_alone_what_another_took_while_its_batch_was_planned_is_not_read(alone: Stage, replaced: bool) -> None:
    """Without a lease the time since the last look counts; also where the reader is a new one that repeats a batch."""
    first, second = alone.query("left", ownership="none"), alone.query("right", ownership="none")
    first.begun()
    alone.publish(4, 4)
    first.plan()
    if replaced:
        first.kill().start()
    held = alone.hold("list", "checkpoint/", by="left", after=True)
    going = first.asking(lambda: first._read(first.log[-1]))
    alone.until(lambda: held.is_waiting)
    second.begun()
    second.drain()
    alone.sleep(6.0)
    held.release()
    with pytest.raises(partq.Fenced, match="'right'"):
        going.result()
    assert len(second.rows) == 8


# --- checkpoints=none -------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.parametrize("restarts", [1, 2])
def test_without_checkpoints_an_unfinished_batch_is_not_skipped(stage: Stage, ownership: str, restarts: int) -> None:
    """Its partitions have moved on when it is repeated; and perhaps the repetition is killed as soon as it is done."""
    query = stage.query("left", checkpoints="none", ownership=ownership)
    query.begun()
    stage.publish(3, 3)
    query.drain()
    stage.publish(4, 4)
    query.plan()
    query.deliver()
    query.kill()
    if ownership == "none":
        begun(stage.query("right", checkpoints="none", ownership=ownership))[0].plan()
    else:
        stage.until(lambda: stage.owner(0)[0] is None and stage.owner(1)[0] is None)
    seen = len(query.rows)
    query.start()
    assert query.deliver() == []
    query.commit()
    for _ in range(restarts - 1):
        query.kill().start()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or len(query.rows) == seen + 10)
    assert sorted(row[:2] for row in query.rows[seen:]) == [(p, offset) for p in (0, 1) for offset in range(3, 8)]
    assert {row.marked for row in query.rows[seen:] if row.offset < 7} == {True}


@pytest.mark.parametrize("dies", [False, True])
def test_what_checkpoints_said_counts_for_a_query_that_keeps_none_from_now_on(alone: Stage, dies: bool) -> None:
    """A batch that it had in hand was taken back, so its repetition left it out; and perhaps the first one without
    checkpoints is not in Spark's log yet when its process is killed.
    """
    kept = alone.query("left", ownership="none").begun(5, 5).drain()
    alone.publish(5, 5)
    kept.plan()
    kept.kill()
    alone.rewind(by=3, ownership="none")
    kept.start().trigger()
    query = alone.query("left", ownership="none", checkpoints="none").goes_on_from(kept.stop()).start()
    if dies:
        query.plan()
        query.kill().forget(len(kept.log)).start()
    alone.until(lambda: query.trigger() or len(query.rows) == 16)
    assert sorted(row[:2] for row in query.rows) == [(p, offset) for p in (0, 1) for offset in range(2, 10)]
    assert {row.marked for row in query.rows} == {True}


# --- older copies of Spark's checkpoint -------------------------------------------------------------------------------


def test_alone_a_clean_end_leaves_exact_marks(single: Stage) -> None:
    """And one that was killed leaves the reserve: a quarter more than what it announced between two writes."""
    query = single.query("left", ownership="none").begun(5).drain().stop()
    single.publish(4)
    query.start().drain()
    single.publish(4)
    query.drain()
    assert {row.marked for row in query.rows} == {False}
    query.kill()
    single.publish(20)
    query.start().drain()
    assert [row.offset for row in query.rows if row.marked] == [13, 14, 15, 16, 17]
