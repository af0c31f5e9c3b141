"""What one query reads and when it stops: up to now, limits, where a group begins, and what is gone."""

from __future__ import annotations

import logging

import pytest

from tests.scenarios.stage import OWNERSHIPS, Stage, Staged, delivered

# --- AvailableNow -----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-06")
def test_a_run_that_finds_nothing_new_acknowledges_the_one_before_also_after_a_late_answer(staged: Staged) -> None:
    stage = staged(rebalance_delay_s=3.0)
    coordinator = stage.coordinator
    query = stage.query(checkpointInterval="1h").begun(2, 2)
    query.trigger()
    query.kill()
    assert [stage.offset(p) for p in (0, 1)] == [0, 0]
    assert coordinator.process is not None
    coordinator.process.freeze(16_000_000)
    query.start(available_now=True).drain()
    assert [stage.offset(p) for p in (0, 1)] == [2, 2]


def test_available_now_waits_for_its_share_and_ends_as_a_standby(staged: Staged) -> None:
    stage = staged(rebalance_delay_s=4.0)
    first, second, third = (stage.query(name) for name in ("first", "second", "third"))
    first.begun().run()
    stage.until(lambda: len(first.partitions) == 2)
    stage.publish(2, 2)
    second.begun()
    second.fix_target()
    stage.publish(3, 3)  # beyond the target
    began_s = stage.now_s
    second.drain()
    assert 3.0 < stage.now_s - began_s < 9.0
    assert len(second.partitions) == 1
    third.begun()
    third.fix_target()
    began_s = stage.now_s
    third.drain()
    assert stage.now_s - began_s < 3.0
    assert third.partitions == ()


# --- limits and ends --------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
@OWNERSHIPS
def test_what_is_in_hand_is_bounded_whatever_the_trigger_allows(stage: Stage, ownership: str) -> None:
    stage.publish(10, 10)
    query = stage.query(ownership=ownership, maxDeliveredUnackedMsgsPerFlow="7").begun()
    query.log.append(query.announce(limited=False))
    query.deliver()
    query.commit().drain()
    assert [len(batch) for batch in query.batches] == [0, 7, 7, 6]


# --- where a group begins ---------------------------------------------------------------------------------------------


def test_the_group_begins_where_its_first_query_says_and_later_ones_are_warned(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.publish(3, 3)
    first = stage.query(startingOffsets="latest").begun(1, 1).drain()
    assert sorted(delivered(first)) == [(0, 3), (1, 3)]
    command = "partq checkpoints rewind orders --group billing"
    with caplog.at_level(logging.WARNING, "partq.flow"):
        stage.query(startingOffsets="latest").start().plan()
        assert "rewind" not in caplog.text
        for said, expected in {
            "earliest": "--to earliest",
            '{"0": 1, "1": 1}': "--to 1",
        }.items():
            stage.query(startingOffsets=said).start().plan()
            assert f"`{command} {expected} --store {stage.world.url}`" in caplog.text
        timed = stage.query()
        del timed.options["startingOffsets"]
        timed.options["startingTimestamp"] = "2022-11-20T09:30:00+01:00"
        timed.start().plan()
    assert f"`{command} --to-timestamp 2022-11-20T08:30:00.000000Z --store {stage.world.url}`" in caplog.text
