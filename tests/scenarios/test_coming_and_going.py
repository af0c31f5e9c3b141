"""Flows and coordinators come and go, are killed and freeze, and the store does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenarios.words import CALM, given, owners, played
from tests.world.plan import URL, Event
from tests.world.results import origin


@pytest.mark.parametrize("seed", range(3))
def test_flows_that_come_and_go_in_good_order_mark_nothing_and_repeat_nothing(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(6.0, "stop", "one", 4.0), Event(14.0, "stop", "two", 4.0))
    rows = given(world)
    assert len(rows) == len({(row.partition, row.offset) for row in rows}) == 60
    assert not any(row.marked for row in rows)
    assert given(world, "two", since_s=7.0, until_s=10.0)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_killed_flow_had_in_hand_comes_to_the_other_one_marked(seed: int) -> None:
    busy = replace(CALM, seed=seed, handles_s=4.0, max_handoff_time_s=6.0, pause_s=0.3)
    world = played(busy, Event(8.0, "kill", "one", 60.0))
    again = {(row.partition, row.offset) for row in given(world, "one")} & {
        (row.partition, row.offset) for row in given(world, "two") if row.marked
    }
    assert again


@pytest.mark.parametrize("seed", range(3))
def test_flows_go_on_with_what_they_have_while_no_coordinator_runs(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(6.0, "kill", "coordinator", 15.0))
    assert not any(row.marked for row in given(world))
    for flow in CALM.flows:
        assert given(world, flow, since_s=8.0, until_s=20.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_flow_that_froze_for_longer_than_its_session_may_not_go_on_where_it_was(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(6.0, "freeze", "one", 20.0))
    assert not given(world, "one", since_s=6.1, until_s=26.0)
    assert {row.partition for row in given(world, "two", since_s=16.0, until_s=26.0)} == {0, 1}


@pytest.mark.parametrize("seed", range(3))
def test_publishers_and_flows_outlive_a_store_that_does_not_answer(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(6.0, "outage", "", 5.0))
    assert len({row.value for row in given(world)}) == 60
    longer = replace(CALM, seed=seed, messages=200)  # than anybody waits
    world = played(longer, Event(6.0, "outage", "", 25.0))
    assert any(given(world, flow, since_s=31.0) for flow in CALM.flows)


@pytest.mark.parametrize("seed", range(3))
def test_a_query_that_is_killed_again_and_again_writes_each_result_once(seed: int) -> None:
    alone = replace(CALM, seed=seed, flows=(), queries=("query",), readers=("reader",))
    kills = [Event(at_s, "kill", "query", 1.0) for at_s in (3.0, 7.5, 12.0, 16.5)]
    world = played(alone, *kills)
    results = [origin(row.value) for row in given(world, "reader")]
    assert sorted(results) == sorted({row.value for row in given(world, "query")})
    assert len(results) == 60


@pytest.mark.parametrize("seed", range(3))
def test_a_group_that_is_taken_back_gets_what_it_had_again_marked(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(15.0, "rewind", number=5))
    assert world.counts["rewound"] > 0
    assert any(row.marked for row in given(world, since_s=15.0))


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_partition_count_repeats_nothing(seed: int) -> None:
    world = played(replace(CALM, seed=seed), Event(8.0, "alter", number=5), Event(16.0, "alter", number=1))
    rows = given(world)
    assert len(rows) == len({(row.partition, row.offset) for row in rows}) == 60
    assert {row.partition for row in rows} > {0, 1}


@pytest.mark.conformance("LOS-01", "REB-06")
def test_a_rolling_restart_of_queries_within_the_delay_moves_nothing() -> None:
    """Their Spark checkpoints know the mapping."""
    queries = replace(
        CALM, messages=150, flows=(), queries=("query", "second-query"), partitions=4, rebalance_delay_s=20.0
    )
    restarts = [Event(25.0, "stop", "query", 2.0), Event(32.0, "stop", "second-query", 2.0)]
    world = played(queries, *restarts)
    assert owners(world, since_s=24.0) == owners(world, since_s=24.0, until_s=25.0)
    assert given(world, "query", since_s=28.0)


@pytest.mark.conformance("LOS-02")
def test_who_comes_back_without_a_mapping_waits_until_the_delay_is_over_and_the_others_keep_theirs() -> None:
    patient = replace(CALM, messages=150, rebalance_delay_s=12.0, ownership=URL)
    world = played(patient, Event(20.0, "kill", "two", 6.0))
    before, after = owners(world, until_s=20.0, since_s=19.0), owners(world, since_s=26.0, until_s=31.0)
    theirs = {partition for partition, flow, _ in before if flow == "one"}
    assert theirs
    assert {each for each in after if each[0] in theirs} == {each for each in before if each[0] in theirs}
    assert {row.partition for row in given(world, since_s=20.1, until_s=31.0)} == theirs
    assert given(world, since_s=40.0)


@pytest.mark.conformance("API-03")
def test_a_body_that_is_slower_than_its_session_keeps_its_partitions() -> None:
    world = played(replace(CALM, flows=("one",), handles_s=20.0, messages=30))
    assert not any(row.marked for row in given(world))
