"""What a query counts on is another one by now. A queue's log was put back from an older copy and has grown past it:
what its queries count as read is not there any more, and other messages are at those offsets. Or a group was removed,
and made again under its name: whoever belongs to the former one ends and says so, and nothing of it is taken for the
new one's. Nothing is skipped without a word.
"""

from __future__ import annotations

import logging
import re

import pytest

import partq
from tests.scenarios.stage import GROUP, OWNERSHIPS, Query, Stage, begun, delivered, new

HEAD = "default/orders/_head.json"
"""Blobs never change, so a copy of the head is one of the log."""

LOST = "was the store restored from an older copy"


def made(stage: Stage, options: dict[str, str], *counts: int) -> Query:
    """A query that has read everything, and has written down that it has."""
    query = stage.query("left", **options).begun(*counts)
    return query.drain()


def advised(stage: Stage, error: object, **options: str) -> partq.Rewind:
    """What the message says to do."""
    found = re.search(r"`partq checkpoints rewind orders --group billing --to-timestamp (\S+) .*--yes`", str(error))
    assert found is not None, error
    return stage.rewind(to_timestamp=found[1], **options)


@pytest.mark.parametrize("options", [{}, {"ownership": "none"}, {"ownership": "none", "checkpoints": "none"}])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("regrown", [5, 100])
def test_what_was_published_in_the_place_of_what_was_read_is_not_skipped(
    stage: Stage, options: dict[str, str], restarted: bool, regrown: int
) -> None:
    """Also where the entries of the log have moved into chunks since."""
    query = made(stage, options, 5, 5)
    put_back = stage.copy(HEAD)
    stage.sleep(1.0)
    stage.publish(5, 0)
    stage.publish(5, 5)
    query.drain()
    if restarted:
        query.stop()
    put_back()
    for _ in range(regrown):
        stage.publish(4, 2)
    if restarted:
        query.start()
    with pytest.raises(partq.PartqError, match=LOST) as caught:
        stage.until(lambda: query.trigger() or len(query.rows) > 30)
    assert "queue 'orders'" in str(caught.value)
    if options.get("checkpoints") == "none":
        assert "startingTimestamp=" in str(caught.value)
        return
    query.stop()
    rewind = advised(stage, caught.value, ownership=query.options["ownership"])
    assert [(each.from_, each.to) for each in rewind.partitions] == [(15, 5), (10, 5)]
    read = len(query.rows)
    query.start()
    stage.until(lambda: query.trigger() or len(query.rows) == read + 6 * regrown)
    places = [*((0, offset) for offset in range(5, 5 + 4 * regrown)), *((1, at) for at in range(5, 5 + 2 * regrown))]
    assert sorted(row[:2] for row in query.rows[read:]) == places


def test_a_partition_that_lost_nothing_needs_no_message_twice(alone: Stage) -> None:
    """Its position is the same before and after the rewind, which all the same has to be said of it."""
    query = made(alone, {"ownership": "none"}, 5, 4)
    alone.publish(0, 1)
    put_back = alone.copy(HEAD)
    alone.sleep(1.0)
    alone.publish(5)
    query.drain().stop()
    put_back()
    alone.publish(7)
    with pytest.raises(partq.PartqError) as caught:
        query.start().trigger()
    rewind = advised(alone, caught.value, ownership="none")
    assert [(each.from_, each.to, each.rewound) for each in rewind.partitions] == [(10, 5, True), (5, 5, True)]
    read = len(query.rows)
    query.stop().start().drain()
    assert [row[:2] for row in query.rows[read:]] == [(0, offset) for offset in range(5, 12)]


@OWNERSHIPS
def test_a_checkpoint_newer_than_the_log_is_refused_for_whoever_begins_at_it(stage: Stage, ownership: str) -> None:
    query = made(stage, {"ownership": ownership}, 5, 5)
    put_back = stage.copy(HEAD)
    stage.publish(5, 5)
    query.drain().stop()
    put_back()
    stage.publish(9, 9)
    stage.sleep(20.0)
    other = stage.query("right", ownership=ownership).start()
    with pytest.raises(partq.PartqError, match="group 'billing' has read publish"):
        stage.until(lambda: not other.trigger() and bool(other.rows))
    assert other.rows == []


def test_a_batch_that_spark_repeats_is_not_made_of_other_messages(alone: Stage) -> None:
    query = made(alone, {"ownership": "none"}, 5)
    put_back = alone.copy(HEAD)
    alone.publish(5)
    query.plan().kill()
    put_back()
    alone.publish(9)
    with pytest.raises(partq.PartqError, match="older copy"):
        query.start().deliver()


def test_a_query_without_a_group_is_told_too_and_may_go_on(alone: Stage, caplog: pytest.LogCaptureFixture) -> None:
    alone.publish(4)
    put_back = alone.copy(HEAD)
    alone.publish(4)
    strict, careless = alone.ungrouped().start().drain(), alone.ungrouped(failOnDataLoss="false").start().drain()
    put_back()
    for _ in range(2):
        alone.publish(4)
    strict.kill().start(), careless.kill().start()
    with pytest.raises(
        partq.PartqError, match=r"the query has read publish .*startingTimestamp=.*failOnDataLoss=false"
    ):
        strict.trigger()
    assert careless.trigger()
    assert careless.batches[-1] == new(8, 12)
    assert not careless.trigger()
    assert caplog.text.count("skipped (failOnDataLoss=false)") == 1


# --- what is no loss --------------------------------------------------------------------------------------------------


def test_where_a_publish_cannot_be_told_it_says_so_once(alone: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    query = made(alone, {"ownership": "none"}, 1)
    alone.publish(2)
    query.drain().stop()
    for _ in range(20):
        alone.publish(2)
    alone.sleep(600.0)
    alone.do(lambda queue: queue.compact())
    query.start().drain()
    alone.publish(1)
    query.drain()
    assert query.offsets(0) == list(range(44))
    assert caplog.text.count("cannot be told") == 1


def test_what_others_get_changes_no_offset_and_what_lies_far_back_costs_no_read(stage: Stage) -> None:
    """An offset that changed whenever somebody publishes would make empty batches for ever (spark-traps.md 6)."""
    one, other = begun(stage.query("one"), stage.query("other"))
    other.run()
    stage.until(lambda: one.trigger() or len(one.partitions) == 1)
    stage.publish(1, 1)
    stage.until(lambda: one.trigger() or len(one.rows) == 1)
    (mine,) = one.partitions
    stage.line.calls.clear()
    for _ in range(80):
        stage.publish(*(0 if p == mine else 1 for p in (0, 1)))
        assert not one.trigger()
    stage.publish(1, 1)
    assert one.trigger()
    assert one.batches[-1] == new(1, 2, mine)
    assert stage.line.asked("read", "_log/", by="one") == 0


GONE = r"group default/orders/billing was removed"


def one(stage: Stage, flow: str | None = None, **options: str) -> Query:
    return stage.query(flow, **{"ownership": "none", "startingOffsets": "latest", **options})


def groups(stage: Stage) -> list[str]:
    return [each.group for each in stage.do(lambda queue: queue.groups())]


def night(stage: Stage, **options: str) -> Query:
    """A job that has read the first (4, 4) messages and ended; (2, 2) more came since, and its group was removed."""
    query = one(stage, "nightly", **options).begun(4, 4).drain().stop()
    stage.remove_group()
    stage.publish(2, 2)
    return query


# --- a group that is gone: who starts again ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("options", [{}, {"checkpoints": "none"}, {"ackMode": "manual"}])
def test_a_job_of_a_removed_group_skips_nothing(alone: Stage, options: dict[str, str], is_cut_off: bool) -> None:
    """A batch that was not complete counts for nothing. By hand nobody knows what is dealt with: no place is named."""
    query = night(alone, **options)
    if is_cut_off:
        query.forget(len(query.log), commits=query.committed - 1)
    with pytest.raises(partq.Invalid, match=GONE) as refused:
        query.start(available_now=True).trigger()
    starting = '{"0":0,"1":0}' if is_cut_off else '{"0":4,"1":4}'
    for part in ("flow 'nightly'", "new checkpoint location"):
        assert part in str(refused.value)
    assert (f"startingOffsets={starting}" in str(refused.value)) == ("ackMode" not in options)
    assert groups(alone) == [], "it was not made anew"
    if "ackMode" not in options and not is_cut_off:
        again = one(alone, startingOffsets=starting, **options).begun().drain()
        assert delivered(query, again) == alone.everything


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_query_that_has_nothing_but_its_name_is_refused_too(alone: Stage, is_stopped: bool) -> None:
    """Where it was to begin was resolved when the group was made. Also if it has not bound when the group goes."""
    query = one(alone).begun()
    if is_stopped:
        query.stop()
    alone.remove_group()
    alone.publish(3, 3)
    with pytest.raises(partq.Invalid, match=GONE):
        (query.start() if is_stopped else query).trigger()
    assert groups(alone) == []


@pytest.mark.parametrize("options", [{}, {"checkpoints": "none"}, {"ackMode": "manual"}])
def test_a_group_that_somebody_made_again_is_not_the_one_that_it_was(alone: Stage, options: dict[str, str]) -> None:
    """The other's group begins at the end, and what came before it was never read by anybody."""
    query = night(alone, **options)
    begun(one(alone, "other", **options))[0].drain().stop()
    with pytest.raises(partq.Invalid, match=GONE):
        query.start().trigger()
    assert not any(row.offset >= 4 for row in query.rows)


def test_several_flows_that_start_again_are_all_refused(stage: Stage) -> None:
    """Each knows a part of the places; the first one must not make the group for the others."""
    queries = begun(stage.query("a"), stage.query("b"))
    for query in queries:
        query.run()
    stage.until(lambda: sorted(len(query.partitions) for query in queries) == [1, 1])
    stage.publish(4, 4)
    stage.until(lambda: delivered(*queries) == stage.everything)
    for query in queries:
        query.stop()
    stage.remove_group()
    stage.publish(2, 2)
    for query in queries:
        with pytest.raises(partq.Invalid, match=GONE) as refused:
            query.start().trigger()
        assert '":4}' in str(refused.value), "what it knows of its own partition"
        assert "startingOffsets={" not in str(refused.value), "it does not know the other's"
    assert groups(stage) == []


# --- who lives --------------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.parametrize("for_s", [0.0, 15.0])
def test_a_query_whose_group_is_removed_ends_and_says_so(stage: Stage, ownership: str, for_s: float) -> None:
    """Also if its instance has ended when it goes on: nobody would ever answer the next one."""
    query = stage.query("a", ownership=ownership).begun().run()
    stage.publish(4, 4)
    stage.until(lambda: stage.offset(0) == 4)
    stage.remove_group(query, for_s=for_s)
    stage.until(lambda: query.failure is not None, 10.0)
    assert isinstance(query.failure, partq.Invalid)
    assert "group default/orders/billing was removed" in str(query.failure)
    assert not [name for name in stage.world.store._objects if "/ownership/beats/" in name], "it did not bind again"


@pytest.mark.parametrize("again", [True, False])
def test_who_takes_partitions_of_a_group_removed_meanwhile_says_nothing_in_the_next(alone: Stage, again: bool) -> None:
    """A query alone has looked at the head, and takes its partitions when the group is another one, or none."""
    query = one(alone, "left", startingOffsets="earliest").begun(4, 4)
    held = alone.hold("swap", "checkpoint/0", by="left")
    going = query.asking(query._trigger)
    alone.until(lambda: held.is_waiting)
    alone.remove_group()
    if again:
        alone.do(lambda queue: queue.create_group(GROUP, starting="latest"))
    held.release()
    with pytest.raises((partq.Invalid, partq.Fenced), match="was removed"):
        going.result() and query.drain()
    assert query.rows == []
    query.kill()
    other = one(alone, "other").begun(1, 1).drain()
    assert (other.offsets(0), other.offsets(1)) == ([4], [4])


# --- the next one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_group_made_again_begins_where_it_is_told_to_whatever_its_flows_remember(alone: Stage, starting: str) -> None:
    """What a flow knows at the same epoch counts as exact, so no epoch of the former group comes again."""
    query = one(alone, "a", startingOffsets="earliest").begun(4, 4).drain()
    assert query.epochs == {0: 1, 1: 1}
    query.stop()
    alone.publish(2, 2)
    alone.remove_group()
    again = one(alone, "a", startingOffsets=starting).begun(1, 1).drain()
    assert again.offsets(0) == ([*range(7)] if starting == "earliest" else [6])
    assert again.epochs == {0: 3, 1: 3}
    assert {row.marked for row in again.rows} == {False}
