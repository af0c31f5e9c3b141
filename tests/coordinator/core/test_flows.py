"""What flows and people see: statuses, standbys, updates (FLO)."""

from __future__ import annotations

import pytest

from coordinator.core.actions import NotifyFlow
from coordinator.core.events import FlowBound, Tick
from coordinator.core.machine import decide
from partq_spark.group.model import Owner, PartitionStatus, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, balanced


@pytest.mark.conformance("FLO-01")
def test_a_partition_is_unassigned_ready_paused_or_unbound() -> None:
    group = Group(2, land_fences=False)
    assert set(group.statuses().values()) == {PartitionStatus.UNASSIGNED}
    group.bind("a")
    assert set(group.statuses().values()) == {PartitionStatus.PAUSED}  # assigned, the fence is not in place yet
    group.fence()
    assert set(group.statuses().values()) == {PartitionStatus.READY}
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.statuses() == {0: PartitionStatus.READY, 1: PartitionStatus.PAUSED}
    group.settle()
    group.expire("a")
    assert group.statuses() == {0: PartitionStatus.UNBOUND, 1: PartitionStatus.READY}


@pytest.mark.conformance("FLO-02")
def test_the_rebalancing_status_is_ready_holddown_or_rebalancing() -> None:
    group = balanced(2, 1)
    seen = [group.status]
    group.bind("b")
    seen.append(group.status)
    group.sleep(DELAY_S)
    seen.append(group.status)
    group.drain()
    seen.append(group.status)
    assert seen == [
        RebalanceStatus.READY,
        RebalanceStatus.HOLDDOWN,
        RebalanceStatus.REBALANCING,
        RebalanceStatus.READY,
    ]
    assert list(RebalanceStatus) == seen[:3]


@pytest.mark.conformance("FLO-03")
def test_the_state_after_a_bind_has_the_flows_partitions() -> None:
    group = balanced(4, 2, land_fences=False)
    group.expire("b")
    group.bind("b", group.mapping("b"))
    assert [n for n, p in group.state.partitions.items() if p.to == Owner("b", "b2")] == [2, 3]
    assert group.state.flows["b"].active


@pytest.mark.conformance("FLO-04")
def test_a_flow_beyond_the_number_of_partitions_is_a_standby() -> None:
    group = balanced(2, 2)
    assert group.bind("c") == []
    assert group.status is RebalanceStatus.READY
    assert not group.state.flows["c"].active
    assert group.counts() == {"a": 1, "b": 1, "c": 0}
    assert group.sleep(100) == []


@pytest.mark.conformance("FLO-04")
def test_a_newcomer_that_waits_for_its_share_is_no_standby() -> None:
    group = balanced(4, 2)
    group.bind("c")
    group.sleep(1)
    group.expire("b")  # REB-04 would give its whole set to a standby at once
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}
    group.settle()
    assert group.counts() == {"a": 2, "c": 2}


@pytest.mark.conformance("FLO-05")
def test_a_flow_is_told_once_when_it_loses_its_last_partition_and_not_before() -> None:
    group = balanced(3, 3)
    assert group.alter([0, 1]) == [
        "fence 2 c1@1 for nobody@2",
        "status Rebalancing",
        "tell c1 inactive",
    ]
    assert group.log.count("tell c1 inactive") == 1
    assert [flow.updates for flow in group.state.flows.values()] == [0, 0, 1]
    wide = balanced(6, 2)
    wide.bind("c")
    wide.settle()
    assert [entry for entry in wide.log if entry.startswith("tell")] == ["tell c1 active"]  # a and b keep some


@pytest.mark.conformance("FLO-05")
def test_a_standby_is_told_once_when_it_gets_its_first_partition() -> None:
    group = balanced(2, 2)
    group.bind("c")
    assert group.expire("b") == ["fence 1 b1@1 for c1@2", "tell c1 active"]
    assert group.state.flows["c"].updates == 1
    group.sleep(100)
    assert group.state.flows["c"].updates == 1


@pytest.mark.conformance("FLO-05")
def test_who_gets_partitions_within_its_bind_is_active_without_an_update() -> None:
    group = Group(2)
    group.bind("a")
    group.expire("a")
    group.bind("a", group.mapping("a"))
    assert group.state.flows["a"].active
    assert group.state.flows["a"].updates == 0
    assert not any(entry.startswith("tell") for entry in group.log)


@pytest.mark.conformance("FLO-05")
def test_updates_count_every_change_of_one_instance() -> None:
    group = balanced(2, 2)
    group.alter([0])
    group.settle()
    group.alter([0, 1])
    group.settle()
    assert group.state.flows["b"].active
    assert group.state.flows["b"].updates == 2


@pytest.mark.conformance("FLO-06")
@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_an_unbind_and_a_disconnect_have_the_same_effect(partitions: int, standby: bool) -> None:
    left, silent = balanced(partitions, 1), balanced(partitions, 1)
    for group in (left, silent):
        for name in "bc" if standby else "":
            group.bind(name)
            group.settle()
    assert left.unbind("a") == silent.expire("a")
    assert left.state == silent.state
    assert left.sleep(DELAY_S) == silent.sleep(DELAY_S)
    assert left.sleep(HANDOFF_S) == silent.sleep(HANDOFF_S)
    assert left.state == silent.state


def test_a_bind_that_was_seen_before_changes_nothing() -> None:
    group = balanced(2, 1)
    event = FlowBound(flow="a", instance="a1", mapping={0: 1})
    assert decide(group.state, event, group.now_s) == (group.state, ())
    group.expire("a")
    # an instance that was given up never comes back: it binds as a new one
    assert decide(group.state, event, group.now_s) == (group.state, ())


def test_nothing_happens_without_a_reason() -> None:
    group = balanced(2, 2)
    after, actions = decide(group.state, Tick(), group.now_s)
    assert after is group.state
    assert actions == ()
    group.bind("c")
    _, actions = decide(group.state, FlowBound(flow="d", instance="d1"), group.now_s)
    assert not any(isinstance(action, NotifyFlow) for action in actions)
