"""One checkpoint that cannot be rewritten: the partition waits, and nobody else does (REB-15, HAN-04)."""

from __future__ import annotations

import pytest

from coordinator.core.events import FenceStuck
from partq_spark.group.model import Owner, PartitionStatus, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, balanced

READY, REBALANCING = RebalanceStatus.READY, RebalanceStatus.REBALANCING


def one_is_stuck() -> Group:
    """Of two flows with two partitions each `a` is lost, and the checkpoint of its partition 0 is damaged."""
    group = balanced(4, 2, land_fences=False)
    group.expire("a")
    group.sleep(DELAY_S)
    group.fence(1)
    assert group.status is REBALANCING
    group.stuck(0)
    return group


@pytest.mark.conformance("REB-15")
def test_a_lost_flows_healthy_partitions_are_given_away() -> None:
    group = one_is_stuck()
    assert group.status is READY
    assert group.owners() == {0: "a", 1: "b", 2: "b", 3: "b"}
    assert group.statuses()[0] is PartitionStatus.PAUSED
    assert group.partition(0).stuck == "it is damaged"
    assert group.sleep(1000) == []


@pytest.mark.conformance("HAN-04")
@pytest.mark.conformance("REB-15")
def test_a_new_flow_gets_its_share_of_the_others() -> None:
    group = one_is_stuck()
    group.bind("c")
    group.sleep(DELAY_S)
    assert group.status is REBALANCING
    assert group.partition(0).phase is Phase.FENCING
    group.drain()
    group.fence(1, 2, 3)
    assert group.status is READY
    assert group.counts() == {"b": 1, "c": 2}, "partition 0 is counted as b's"


@pytest.mark.conformance("REB-15")
def test_a_handoff_that_gets_stuck_ends_the_rebalance_of_the_others() -> None:
    """What was only remembered while it ran is looked at (REB-14)."""
    group = balanced(6, 2, land_fences=False)
    group.bind("c")
    group.sleep(DELAY_S + HANDOFF_S)
    moving = [n for n, p in group.state.partitions.items() if p.phase is Phase.FENCING]
    assert len(moving) == 2
    group.bind("d")
    group.fence(moving[1])
    group.stuck(moving[0])
    assert group.status is RebalanceStatus.HOLDDOWN, "for d, which came meanwhile"
    group.land_fences = True
    group.sleep(DELAY_S + HANDOFF_S)
    assert group.counts()["d"] >= 1


def test_who_was_to_get_it_may_be_lost_too() -> None:
    group = one_is_stuck()
    group.bind("c")
    group.sleep(DELAY_S + HANDOFF_S)
    group.fence(1, 2, 3)
    assert group.partition(0).to == Owner("b", "b1")
    epoch = group.partition(0).to_epoch
    group.expire("b")
    group.sleep(DELAY_S)
    group.fence(1, 2, 3)
    assert group.status is READY
    stuck = group.partition(0)
    assert (stuck.to, stuck.stuck) == (Owner("c", "c1"), "it is damaged"), "nobody waits for it again"
    assert stuck.to_epoch > epoch
    group.expire("c")
    group.sleep(DELAY_S)
    group.fence(1, 2, 3)
    assert group.status is READY
    assert group.statuses() == dict.fromkeys(range(4), PartitionStatus.UNASSIGNED)
    group.bind("d")
    group.fence()
    assert group.counts() == {"d": 4}


def test_it_heals_when_the_fence_lands() -> None:
    group = one_is_stuck()
    assert group.fence(0) == ["assign 0 to b1@2"]
    assert group.status is READY
    assert group.counts() == {"b": 4}
    assert group.partition(0).stuck == ""


def test_a_checkpoint_that_is_ahead_once_it_can_be_read() -> None:
    group = one_is_stuck()
    assert group.ahead(0, 7) == ["fence 0 a1@1 for b1@8 (reports lost)"]
    assert group.fence(0) == ["assign 0 to b1@8"]


def test_a_late_word_of_a_fence_that_is_not_waited_for_any_more_changes_nothing() -> None:
    group = one_is_stuck()
    before = group.state
    group.stuck(0, "another reason")
    assert group.state is before
    group.stuck(1)
    assert group.state is before, "it is owned"


def test_a_word_of_an_earlier_fence_makes_nobody_stuck() -> None:
    group = balanced(4, 2, land_fences=False)
    group.expire("a")
    group.sleep(DELAY_S)
    assert group.event(FenceStuck(partition=0, epoch=group.partition(0).to_epoch - 1, reason="an old one")) == []
    assert group.partition(0).stuck == ""
    assert group.status is REBALANCING
