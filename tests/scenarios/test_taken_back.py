"""Somebody takes a group back to an earlier place, or alters the count, while one query has it for itself."""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import GROUP, Stage, again, delivered, new
from tests.scenarios.test_queries_alone import one, settled

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


@pytest.mark.conformance("HAN-03", "CHK-04")
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_batch_that_runs_while_it_is_taken_back_comes_again_marked(alone: Stage, is_killed: bool) -> None:
    """More was published and delivered since the person's command looked at the log's end, to which it marks."""
    query = one(alone, checkpointInterval="0s").begun(2, 2)
    settled(query)
    held = alone.hold("swap", "checkpoint/0", by="person")
    going = alone.begin(lambda: alone.world.queue().rewind(GROUP, to=0, partitions=[0]))
    alone.until(lambda: held.is_waiting)
    alone.publish(2, 2)
    query.plan()
    query.deliver()
    held.release()
    going.result()
    if is_killed:
        query.kill().start()
    else:
        query.commit()
    settled(query)
    first = [row for row in query.rows if row.partition == 0]
    assert first[:8] == [*new(0, 4), *again(0, 4)]
    assert [alone.offset(p) for p in (0, 1)] == [4, 4]


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


def test_an_acknowledgement_that_fails_makes_it_look_at_once(alone: Stage) -> None:
    """Elsewhere than on a disk both are due every 10 s, and not together."""
    query = one(alone, checkpointInterval="10s").begun(2, 0)
    query.trigger()
    alone.sleep(11.0)
    query.drain()
    assert alone.offset(0) == 2
    alone.sleep(6.0)
    alone.publish(4, 0)
    query.during = lambda: alone.rewind(to=0, partitions=[0])
    query.trigger()
    query.during = lambda: None
    alone.sleep(5.0)
    query.drain()
    alone.sleep(0.5)
    query.drain()
    assert query.offsets(0) == [*range(6), *range(6)]


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


@pytest.mark.conformance("RES-05")
def test_what_another_queue_of_this_name_has_is_not_taken_for_a_rewind(alone: Stage) -> None:
    query = one(alone).begun(4, 4).drain()
    alone.do(lambda queue: queue.delete())
    alone.create(partitions=2)
    alone.publish(9, 9)
    with pytest.raises(partq.Invalid, match="what was read so far is of a queue with id"):
        query.trigger()
    query.kill()
    with pytest.raises(partq.Invalid, match="what was read so far is of a queue with id"):
        query.start().trigger()
    assert len(query.rows) == 8
