"""What a listener's word does: a batch that is complete is acknowledged before the next trigger."""

from __future__ import annotations

import logging

import pytest

from partq_spark.query import offsets
from partq_spark.query.acknowledgements import BatchTimes
from tests.query.world import World, begun


def test_a_batch_that_is_told_to_be_complete_is_acknowledged_without_another_trigger(world: World) -> None:
    world.publish(5, 4)
    (query,) = begun(world, world.query(checkpointInterval="0s"))
    query.trigger()
    query.consumer.complete("of another batch")
    assert [world.offset(p) for p in (0, 1)] == [0, 0]
    query.consumer.complete(offsets.digest(query.ends[-1]))
    assert [world.offset(p) for p in (0, 1)] == [5, 4]


@pytest.mark.conformance("HAN-02")
def test_a_handoff_does_not_wait_for_the_next_trigger_then() -> None:
    world = World(handoff_s=60.0)
    world.coordinated()
    (first,) = begun(world, world.query("left"))
    world.publish(5, 5)
    first.trigger()
    (second,) = begun(world, world.query("right"))
    second.run()
    world.sleep(1.0)
    first.consumer.look_while_busy()
    assert second.partitions == ()
    first.consumer.complete(offsets.digest(first.ends[-1]))
    first.consumer.look_while_busy()
    world.until(lambda: len(second.partitions) == 1, wait_s=1.0)


def test_by_hand_a_complete_batch_is_not_acknowledged(world: World) -> None:
    world.publish(5, 4)
    (query,) = begun(world, world.query("left", ackMode="manual", checkpointInterval="0s"))
    query.trigger()
    query.consumer.complete(offsets.digest(query.ends[-1]))
    query.stop()
    assert [world.offset(p) for p in (0, 1)] == [0, 0]


def test_equal_offsets_have_one_digest_however_they_were_written() -> None:
    assert offsets.digest({"a": 1, "b": [2]}) == offsets.digest({"b": [2], "a": 1})
    assert offsets.digest({"a": 1}) != offsets.digest({"a": 2})


def test_batches_that_take_longer_than_a_handoff_may_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World(handoff_s=3.0)
    world.coordinated()
    (query,) = begun(world, world.query())
    query.during = lambda: world.sleep(4.0)
    with caplog.at_level(logging.WARNING, "partq.flow"):
        for _ in range(10):
            world.publish(1, 1)
            query.trigger()
            query.trigger()
    said = [record.getMessage() for record in caplog.records if "max-handoff-time (3 s)" in record.getMessage()]
    assert len(said) == 1
    assert f"flow {query.name!r} of" in said[0]
    assert "partq queue alter orders --max-handoff-time" in said[0]
    assert "maxMessagesPerTrigger" in said[0]


def test_a_query_that_has_its_group_to_itself_is_not_told_of_slow_batches(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for its acknowledgements."""
    world = World(handoff_s=3.0)
    (query,) = begun(world, world.query(ownership="none"))
    query.during = lambda: world.sleep(4.0)
    world.publish(1, 1)
    with caplog.at_level(logging.WARNING, "partq.flow"):
        query.trigger()
        query.trigger()
    assert "max-handoff-time" not in caplog.text


def test_a_remark_lasts_as_long_as_batches_are_slow() -> None:
    times = BatchTimes("orders")
    assert times.acknowledged(1.0, 3.0) is None
    times.given(10.0)
    assert times.acknowledged(15.5, 3.0) is not None
    assert times.remark == "acknowledges after 5.5 s, max-handoff-time is 3 s"
    times.given(20.0)
    assert times.acknowledged(25.0, 3.0) is None  # it was said a moment ago
    assert times.remark
    times.given(100.0)
    assert times.acknowledged(104.0, 3.0) is not None
    times.given(110.0)
    assert times.acknowledged(113.0, 3.0) is None
    assert times.remark == ""
    times.given(120.0)
    assert times.acknowledged(160.0, 0.0) is None, "max-handoff-time 0: nobody waits for anybody"
