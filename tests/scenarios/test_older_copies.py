"""A queue whose log was put back from an older copy and has grown past it: what its queries count as read is not there
any more, and other messages are at those offsets. Nothing of them is skipped without a word.
"""

from __future__ import annotations

import logging
import re

import pytest

import partq
from tests.scenarios.stage import OWNERSHIPS, Query, Stage, begun, new

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
def test_a_checkpoint_that_is_newer_than_the_log_is_refused_for_whoever_begins_at_it(
    stage: Stage, ownership: str
) -> None:
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


def test_where_a_publish_cannot_be_told_any_more_it_says_so_once(
    alone: Stage, caplog: pytest.LogCaptureFixture
) -> None:
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
