"""Partition numbers that go and come back, and the access type (RES)."""

from __future__ import annotations

import pytest

from coordinator.core.events import QueueAltered
from coordinator.core.machine import decide
from partq_spark.group.model import AccessType, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, Group, balanced


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
