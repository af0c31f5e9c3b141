"""Alterations of the queue (REB-08, RES), what comes during a rebalance (REB-14), handoffs side by side (REB-16)."""

from __future__ import annotations

import pytest

from coordinator.core.events import QueueAltered
from coordinator.core.machine import decide, next_deadline
from partq_spark.group.model import AccessType, PartitionStatus, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, balanced

READY, HOLDDOWN, REBALANCING = RebalanceStatus.READY, RebalanceStatus.HOLDDOWN, RebalanceStatus.REBALANCING


@pytest.mark.conformance("REB-08")
def test_a_changed_partition_count_rebalances_at_once() -> None:
    group = balanced(2, 2)
    assert group.alter(range(4)) == [
        "status Rebalancing",
        "fence 2 nobody@0 for a1@1",
        "fence 3 nobody@0 for b1@1",
    ]
    assert group.counts() == {"a": 2, "b": 2}
    assert group.alter([0, 2]) == [
        "fence 1 b1@1 for nobody@2",
        "fence 3 b1@1 for nobody@2",
        "status Rebalancing",
        "tell b1 inactive",
        "pause 2 a1 for b1",
    ]
    group.settle()
    assert group.owners() == {0: "a", 2: "b"}


@pytest.mark.conformance("REB-08")
def test_a_changed_partition_count_ends_holddown() -> None:
    group = balanced(2, 2)
    group.expire("b")
    assert group.status is HOLDDOWN
    assert group.alter(range(3)) == ["status Rebalancing", "fence 1 b1@1 for a1@2", "fence 2 nobody@0 for a1@1"]
    assert group.status is READY


@pytest.mark.conformance("REB-08")
@pytest.mark.parametrize("in_holddown", [False, True])
def test_from_exclusive_to_non_exclusive_rebalances_at_once(in_holddown: bool) -> None:
    group = balanced(4, 1, access=AccessType.EXCLUSIVE)
    group.bind("b")
    group.bind("c")
    if in_holddown:
        group.expire("b")
        group.expire("a")
        group.expire("c")
        assert group.status is HOLDDOWN
        group.bind("d")
        group.alter(access=AccessType.NON_EXCLUSIVE)
        assert group.status is READY  # everything was lost, so nothing had to be paused
        assert group.counts() == {"d": 4}
        return
    assert group.alter(access=AccessType.NON_EXCLUSIVE) == [
        "status Rebalancing",
        "pause 3 a1 for b1",
        "pause 2 a1 for c1",
    ]
    group.settle()
    assert group.counts() == {"a": 2, "b": 1, "c": 1}


def test_other_settings_count_from_then_on_and_trigger_nothing() -> None:
    group = balanced(4, 2)
    group.bind("c")
    due_s = next_deadline(group.state)
    group.settings = type(group.settings)(rebalance_delay_s=100.0, max_handoff_time_s=50.0)
    assert group.alter() == []
    assert next_deadline(group.state) == due_s
    group.sleep(DELAY_S)
    assert next_deadline(group.state) == group.now_s + 50.0


@pytest.mark.conformance("REB-08")
@pytest.mark.conformance("LOS-05")
def test_an_alteration_while_no_flow_is_bound_takes_nothing_from_who_may_come_back() -> None:
    group = balanced(3, 1)
    group.expire("a")
    assert group.alter([0, 1, 3]) == ["fence 2 a1@1 for nobody@2"]
    assert group.status is HOLDDOWN
    group.bind("a", {0: 1, 1: 1, 2: 1})
    group.settle()
    assert {number: (p.owner, p.epoch) for number, p in group.state.partitions.items()} == {
        0: (("a", "a2"), 1),
        1: (("a", "a2"), 1),
        3: (("a", "a2"), 1),
    }


@pytest.mark.conformance("REB-14")
def test_a_bind_during_a_rebalance_is_handled_when_it_has_ended() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.bind("c") == []
    seen = [(group.status, group.state.trigger)]
    group.drain()
    assert [*seen, (group.status, group.state.trigger)] == [(REBALANCING, True), (HOLDDOWN, False)]
    group.settle()
    assert group.counts() == {"a": 1, "b": 2, "c": 1}  # of two with as many, the oldest gives


@pytest.mark.conformance("REB-14")
def test_a_loss_during_a_rebalance_is_handled_when_it_has_ended() -> None:
    group = balanced(6, 2)
    group.bind("c")
    group.sleep(DELAY_S)
    assert group.status is REBALANCING
    assert group.expire("a") == ["fence 2 a1@1 for c1@2", "tell c1 active"]
    group.drain()
    assert group.status is HOLDDOWN
    assert group.statuses()[0] is PartitionStatus.UNBOUND
    group.settle()
    assert group.counts() == {"b": 3, "c": 3}


@pytest.mark.conformance("REB-14")
def test_an_alteration_during_a_rebalance_is_handled_when_it_has_ended() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.alter(range(6)) == []
    assert group.status is REBALANCING
    group.drain(3)
    assert group.log[-1] == "assign 3 to b1@2"
    group.log.clear()
    group.drain(2)
    assert group.log == [
        "fence 2 a1@1 for b1@2",
        "assign 2 to b1@2",
        "status Rebalancing",
        "fence 4 nobody@0 for a1@1",
        "fence 5 nobody@0 for b1@1",
        "assign 4 to a1@1",
        "assign 5 to b1@1",
        "status Ready",
    ]


@pytest.mark.conformance("REB-08", "REB-14")
def test_an_access_type_that_changes_during_a_rebalance_takes_effect_without_the_delay() -> None:
    group = balanced(4, 2)
    group.alter(access=AccessType.EXCLUSIVE)
    assert group.status is REBALANCING
    group.alter(access=AccessType.NON_EXCLUSIVE)
    assert (group.status, group.state.trigger, group.state.altered) == (REBALANCING, True, True)
    group.drain()
    assert group.status is REBALANCING, "and not Holddown"
    assert not group.state.altered
    group.drain()
    assert group.status is READY
    assert group.counts() == {"a": 2, "b": 2}


@pytest.mark.conformance("REB-08", "REB-14")
def test_partitions_that_go_during_a_rebalance_are_made_up_for_without_the_delay() -> None:
    group = balanced(6, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.status is REBALANCING
    group.alter([0, 1, 2])  # what b was to get goes
    group.drain()
    assert group.status in (REBALANCING, READY), "and not Holddown"
    group.settle()
    assert sorted(group.counts().values()) == [1, 2]


@pytest.mark.conformance("REB-14")
def test_other_settings_during_a_rebalance_are_no_reason_to_go_without_the_delay() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    group.settings = type(group.settings)(rebalance_delay_s=100.0, max_handoff_time_s=50.0)
    group.alter()
    group.bind("c")
    group.drain()
    assert group.status is HOLDDOWN


@pytest.mark.conformance("REB-14")
@pytest.mark.conformance("REB-04")
def test_a_flow_that_waits_for_its_share_does_not_take_over_at_the_end_of_a_rebalance() -> None:
    group = balanced(6, 2)
    group.bind("c")
    group.sleep(DELAY_S)
    group.bind("d")
    group.expire("a")
    group.drain()
    assert group.status is HOLDDOWN
    assert group.statuses()[0] is PartitionStatus.UNBOUND


@pytest.mark.conformance("REB-01")
@pytest.mark.conformance("REB-14")
def test_what_was_left_uneven_by_a_rebalance_is_evened_out_after_the_delay() -> None:
    group = balanced(6, 2)
    group.bind("c")
    group.sleep(DELAY_S)
    group.drain(2)
    assert group.bind("c", group.mapping("c")) == ["resume 5 b1", "fence 2 c1@2 for c2@2"]
    assert group.counts() == {"a": 2, "b": 3, "c": 1}
    assert group.status is HOLDDOWN
    group.settle()
    assert group.counts() == {"a": 2, "b": 2, "c": 2}


def test_what_is_being_fenced_for_one_flow_goes_to_another_without_a_pause() -> None:
    """Nobody has delivered anything since, so there is nothing to wait for."""
    group = balanced(2, 1, access=AccessType.EXCLUSIVE, land_fences=False)
    group.bind("b")
    group.bind("c")
    group.expire("a")
    assert group.alter(access=AccessType.NON_EXCLUSIVE) == [
        "status Rebalancing",
        "fence 1 a1@1 for c1@3",
        "tell c1 active",
    ]


def test_a_rebalance_that_has_nothing_to_move_ends_at_once() -> None:
    group = balanced(2, 1)
    assert group.alter(access=AccessType.EXCLUSIVE) == ["status Rebalancing", "status Ready"]


@pytest.mark.conformance("REB-16")
@pytest.mark.parametrize("partitions", [2, 100])
def test_handoffs_run_side_by_side(partitions: int) -> None:
    group = balanced(partitions, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    started_s = group.now_s
    assert sum(p.phase is Phase.PAUSED for p in group.state.partitions.values()) == partitions // 2
    group.sleep(HANDOFF_S)  # nobody acknowledges anything
    assert group.status is READY
    assert group.now_s == started_s + HANDOFF_S
    assert group.counts() == {"a": partitions // 2, "b": partitions // 2}


@pytest.mark.conformance("RES-04")
def test_a_number_that_comes_back_continues_its_epochs() -> None:
    group = balanced(2, 2)
    group.alter([0])
    assert group.state.retired == {1: 2}
    group.settle()
    assert group.alter([0, 1]) == ["status Rebalancing", "fence 1 nobody@2 for b1@3", "tell b1 active"]
    assert group.state.retired == {}
    assert group.partition(1).epoch == 3


@pytest.mark.conformance("RES-04")
def test_a_number_that_comes_back_continues_above_its_checkpoint() -> None:
    group = balanced(2, 2)
    group.alter([0])
    group.settle()
    # Above what the state remembers: a flow had it meanwhile of which the state knows nothing, nor what it delivered.
    assert "fence 1 nobody@7 for b1@8 (reports lost)" in group.alter([0, 1], epochs={1: 7})


def test_a_number_that_comes_back_where_it_was_left_lost_no_reports() -> None:
    group = balanced(2, 2)
    group.alter([0])
    group.settle()
    assert "fence 1 nobody@2 for b1@3" in group.alter([0, 1], epochs={1: 2})


@pytest.mark.conformance("RES-04")
def test_a_number_may_come_back_before_it_is_gone() -> None:
    group = balanced(2, 2, land_fences=False)
    group.alter([0])
    assert group.partition(1).removed
    assert group.alter([0, 1]) == []  # Rebalancing until the fence for nobody is in place
    assert group.fence() == [
        "assign 1 to nobody@2",
        "status Rebalancing",
        "fence 1 nobody@2 for b1@3",
        "tell b1 active",
    ]
    group.settle()
    assert group.owners() == {0: "a", 1: "b"}


def test_an_unassigned_queue_is_altered_without_any_fence() -> None:
    group = Group(2)
    assert group.alter([0, 1, 2, 3]) == []
    assert group.alter([1, 3]) == []
    assert list(group.state.partitions) == [1, 3]
    assert group.state.retired == {0: 0, 2: 0}
    assert group.alter([0, 1, 2, 3]) == []
    assert list(group.state.partitions) == [0, 1, 2, 3]
    assert group.status is RebalanceStatus.READY


def test_all_partitions_may_go() -> None:
    group = balanced(2, 2)
    group.alter([])
    assert group.state.partitions == {}
    assert group.status is RebalanceStatus.READY
    assert group.state.retired == {0: 2, 1: 2}
    assert group.bind("c") == []
    group.alter([0, 1, 2])
    assert group.counts() == {"a": 1, "b": 1, "c": 1}


def test_partitions_of_a_group_are_given_once_each_from_0() -> None:
    group = Group(2)
    for numbers in ((0, 0), (-1, 0)):
        with pytest.raises(ValueError, match="each number from 0 once"):
            decide(group.state, QueueAltered(settings=group.settings, partitions=numbers), 0.0)


@pytest.mark.conformance("RES-06")
def test_exclusive_has_one_active_flow_with_every_partition() -> None:
    group = Group(3, access=AccessType.EXCLUSIVE)
    group.bind("a")
    assert group.bind("b") == []
    assert group.bind("c") == []
    assert group.status is RebalanceStatus.READY
    assert group.counts() == {"a": 3, "b": 0, "c": 0}
    assert [flow.active for flow in group.state.flows.values()] == [True, False, False]
    group.expire("a")
    assert group.counts() == {"b": 3, "c": 0}
    assert group.alter(range(5)) == ["status Rebalancing", "fence 3 nobody@0 for b1@1", "fence 4 nobody@0 for b1@1"]


@pytest.mark.conformance("RES-06")
def test_from_non_exclusive_to_exclusive_everything_goes_to_who_has_most() -> None:
    group = balanced(5, 2)  # a: 3, b: 2
    group.bind("c")
    assert group.status is RebalanceStatus.HOLDDOWN
    assert group.alter(access=AccessType.EXCLUSIVE) == [
        "status Rebalancing",
        "pause 3 b1 for a1",
        "pause 4 b1 for a1",
    ]
    group.settle()
    assert group.counts() == {"a": 5, "b": 0, "c": 0}
    assert group.log[-2:] == ["assign 4 to a1@2", "status Ready"]
    assert group.log.count("tell b1 inactive") == 1


@pytest.mark.conformance("RES-06")
def test_exclusive_without_a_standby_waits_for_its_flow() -> None:
    group = balanced(3, 1, access=AccessType.EXCLUSIVE)
    mapping = group.mapping("a")
    group.expire("a")
    assert group.status is RebalanceStatus.HOLDDOWN
    group.bind("b")
    group.sleep(DELAY_S - 1)
    assert group.bind("a", mapping)[-1] == "status Ready"
    assert group.counts() == {"a": 3, "b": 0}


@pytest.mark.conformance("RES-06")
def test_exclusive_never_ends_up_with_two_flows() -> None:
    """Only part of the mapping is up to date: the rest goes to the same flow, not to a standby."""
    group = balanced(3, 1, access=AccessType.EXCLUSIVE)
    group.bind("b")
    group.bind("a", {0: 1, 1: 0})
    group.settle()
    assert group.counts() == {"a": 3, "b": 0}


@pytest.mark.conformance("RES-06")
def test_the_access_type_changes_during_a_rebalance() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.alter(access=AccessType.EXCLUSIVE) == []
    group.drain()
    assert [p.phase for p in group.state.partitions.values()].count(Phase.PAUSED) == 2
    group.settle()
    assert group.counts() == {"a": 4, "b": 0}
