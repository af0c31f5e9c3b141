"""What flows and people see: statuses, standbys, updates (FLO); and the outcomes of losing a consumer (LOS)."""

from __future__ import annotations

import pytest

from coordinator.core.actions import NotifyFlow
from coordinator.core.events import FlowBound, Tick
from coordinator.core.machine import decide
from partq_spark.group.model import AccessType, Owner, PartitionStatus, RebalanceStatus
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


def test_nothing_happens_without_a_reason() -> None:
    group = balanced(2, 2)
    after, actions = decide(group.state, Tick(), group.now_s)
    assert after is group.state
    assert actions == ()
    group.bind("c")
    _, actions = decide(group.state, FlowBound(flow="d", instance="d1"), group.now_s)
    assert not any(isinstance(action, NotifyFlow) for action in actions)


READY, HOLDDOWN = RebalanceStatus.READY, RebalanceStatus.HOLDDOWN


@pytest.mark.conformance("LOS-01")
@pytest.mark.parametrize("noticed", [False, True], ids=["before it was missed", "in holddown"])
def test_a_flow_that_comes_back_with_its_mapping_has_its_partitions_again(noticed: bool) -> None:
    group = balanced(4, 2)
    if noticed:
        group.expire("b")
        group.sleep(DELAY_S / 2)
    assert group.bind("b", group.mapping("b")) == [
        "fence 2 b1@1 for b2@1",
        "fence 3 b1@1 for b2@1",
        *(["status Ready"] if noticed else []),
    ]
    assert group.status is READY
    assert {n: (p.owner, p.epoch) for n, p in group.state.partitions.items()} == {
        0: (("a", "a1"), 1),
        1: (("a", "a1"), 1),
        2: (("b", "b2"), 1),
        3: (("b", "b2"), 1),
    }
    assert group.sleep(100) == []
    assert group.handoffs() == 0


@pytest.mark.conformance("LOS-01")
def test_a_rolling_restart_within_the_delay_moves_nothing() -> None:
    group = balanced(12, 4)
    before = group.owners()
    for flow in "abcd":
        mapping = group.mapping(flow)
        group.unbind(flow)
        group.sleep(DELAY_S - 1)
        group.bind(flow, mapping)
    assert group.owners() == before
    assert group.handoffs() == 0
    assert {p.epoch for p in group.state.partitions.values()} == {1}


@pytest.mark.conformance("LOS-01")
def test_the_former_instance_of_a_flow_that_came_back_may_be_on_its_way_still() -> None:
    """A fence for an instance that was replaced is superseded by one for the new instance, one epoch higher."""
    group = balanced(2, 2, land_fences=False)
    group.bind("s")
    group.expire("b")
    assert group.bind("s") == ["fence 1 b1@1 for s2@3"]
    assert group.bind("s") == ["fence 1 b1@1 for s3@4"]
    group.fence()
    assert group.partition(1).owner == ("s", "s3")
    mapping = group.mapping("s")
    assert group.bind("s", mapping) == ["fence 1 s3@4 for s4@4"]
    assert group.bind("s", mapping) == ["fence 1 s3@4 for s5@5"]


@pytest.mark.conformance("LOS-01")
def test_part_of_a_mapping_may_be_out_of_date() -> None:
    group = balanced(4, 2)
    group.expire("b")
    assert group.bind("b", {2: 1, 3: 0}) == ["fence 2 b1@1 for b2@1"]
    assert group.status is HOLDDOWN
    assert group.statuses()[3] is PartitionStatus.UNBOUND
    group.settle()
    assert group.counts() == {"a": 2, "b": 2}
    assert group.handoffs() == 0


@pytest.mark.conformance("LOS-02")
@pytest.mark.parametrize("noticed", [False, True], ids=["before it was missed", "in holddown"])
def test_a_flow_that_lost_its_mapping_waits_for_the_end_of_the_delay(noticed: bool) -> None:
    group = balanced(4, 2)
    if noticed:
        group.expire("b")
    assert group.bind("b") == ([] if noticed else ["status Holddown"])
    assert group.statuses() == {
        0: PartitionStatus.READY,
        1: PartitionStatus.READY,
        2: PartitionStatus.UNBOUND,
        3: PartitionStatus.UNBOUND,
    }
    assert group.sleep(DELAY_S) == [
        "status Rebalancing",
        "fence 2 b1@1 for b2@2",
        "fence 3 b1@1 for b2@2",
        "tell b2 active",
    ]
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert group.handoffs() == 0


@pytest.mark.conformance("LOS-02")
def test_it_may_lose_its_mapping_and_its_life_again() -> None:
    group = balanced(4, 2)
    group.expire("b")
    group.bind("b")
    group.expire("b")
    assert "b" in group.state.flows  # two partitions still name it
    group.settle()
    assert group.counts() == {"a": 4}
    assert "b" not in group.state.flows


@pytest.mark.conformance("LOS-03")
def test_a_mapping_from_before_the_delay_ended_is_ignored() -> None:
    group = balanced(4, 2)
    mapping = group.mapping("b")
    group.expire("b")
    group.settle()
    group.log.clear()
    assert group.bind("b", mapping) == ["status Holddown"]
    assert set(group.owners().values()) == {"a"}
    group.settle()
    assert group.counts() == {"a": 2, "b": 2}
    assert group.handoffs() == 2


@pytest.mark.conformance("LOS-03")
def test_a_mapping_is_ignored_when_a_standby_has_taken_over() -> None:
    group = balanced(2, 2, land_fences=False)
    group.bind("s")
    mapping = group.mapping("b")
    group.expire("b")
    assert group.bind("b", mapping) == []  # the fence for the standby is not even in place
    group.fence()
    assert group.counts() == {"a": 1, "s": 1, "b": 0}


@pytest.mark.conformance("LOS-04")
def test_the_partitions_of_who_never_returns_go_to_those_who_remain() -> None:
    group = balanced(6, 3)
    group.expire("c")
    assert group.sleep(DELAY_S) == ["status Rebalancing", "fence 4 c1@1 for a1@2", "fence 5 c1@1 for b1@2"]
    assert group.status is READY
    assert group.counts() == {"a": 3, "b": 3}
    assert group.handoffs() == 0


@pytest.mark.conformance("LOS-05")
def test_all_flows_gone_and_the_first_that_comes() -> None:
    group = balanced(3, 2)
    group.expire("a")
    group.expire("b")
    assert set(group.statuses().values()) == {PartitionStatus.UNBOUND}
    assert group.sleep(DELAY_S) == [
        "status Rebalancing",
        "fence 0 a1@1 for nobody@2",
        "fence 1 a1@1 for nobody@2",
        "fence 2 b1@1 for nobody@2",
    ]
    assert set(group.statuses().values()) == {PartitionStatus.UNASSIGNED}
    assert group.status is READY
    assert group.state.flows == {}
    assert group.bind("c") == [f"fence {number} nobody@2 for c1@3" for number in range(3)]
    assert group.status is READY
    assert group.counts() == {"c": 3}


@pytest.mark.conformance("LOS-05")
@pytest.mark.parametrize("access", AccessType)
def test_the_first_flow_of_an_unassigned_queue_gets_everything_without_holddown(access: AccessType) -> None:
    group = Group(3, access=access)
    assert group.bind("a") == [f"fence {number} nobody@0 for a1@1" for number in range(3)]
    assert group.status is READY
    assert group.sleep(100) == []


@pytest.mark.conformance("LOS-05")
def test_a_flow_that_comes_while_partitions_are_given_up_gets_them_as_soon_as_they_are() -> None:
    group = balanced(2, 1, land_fences=False)
    group.expire("a")
    group.sleep(DELAY_S)
    assert group.bind("b") == []
    assert group.bind("c") == []
    group.fence(0)
    assert group.fence(1) == [
        "assign 1 to nobody@2",
        "fence 0 nobody@2 for b1@3",
        "fence 1 nobody@2 for c1@3",
        "status Ready",
        "tell b1 active",
        "tell c1 active",
    ]


@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("LOS-05")
def test_all_flows_fall_silent_in_the_middle_of_a_rebalance() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    group.expire("b")
    group.expire("a")
    group.sleep(HANDOFF_S + DELAY_S)
    assert group.status is READY
    assert set(group.statuses().values()) == {PartitionStatus.UNASSIGNED}
