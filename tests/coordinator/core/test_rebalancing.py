"""When a group is rebalanced, and how (REB). The least number of handoffs is proven in test_assignment."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from coordinator.core.events import Event
from coordinator.core.machine import next_deadline
from partq_spark.group.model import (
    AccessType,
    Flow,
    GroupSettings,
    GroupState,
    Partition,
    PartitionStatus,
    RebalanceStatus,
)
from tests.coordinator.core.context import DELAY_S, Group, balanced

READY, HOLDDOWN, REBALANCING = RebalanceStatus.READY, RebalanceStatus.HOLDDOWN, RebalanceStatus.REBALANCING


@pytest.mark.conformance("REB-01")
@pytest.mark.parametrize("flows", range(1, 7))
@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_counts_differ_by_at_most_one_when_ready(partitions: int, flows: int) -> None:
    group = Group(partitions)
    for index in range(flows):
        group.bind(chr(ord("a") + index))
    group.settle()
    counts = group.counts()
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == partitions
    group.expire("a")
    group.settle()
    counts = group.counts()
    assert flows == 1 or max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.conformance("REB-02")
def test_a_bind_where_others_own_some_starts_holddown() -> None:
    group = balanced(3, 2)
    assert group.bind("c") == ["status Holddown"]
    assert group.status is HOLDDOWN
    assert next_deadline(group.state) == group.now_s + DELAY_S
    assert group.sleep(DELAY_S - 0.001) == []
    assert group.sleep(0.001) == ["status Rebalancing", "pause 1 a1 for c1"]


@pytest.mark.conformance("REB-03")
def test_an_unbind_without_a_standby_leaves_its_partitions_unbound_until_the_delay_ends() -> None:
    group = balanced(4, 2)
    assert group.unbind("b") == ["status Holddown"]
    assert group.sleep(DELAY_S - 0.001) == []
    assert group.statuses() == {
        0: PartitionStatus.READY,
        1: PartitionStatus.READY,
        2: PartitionStatus.UNBOUND,
        3: PartitionStatus.UNBOUND,
    }
    assert group.sleep(0.001) == ["status Rebalancing", "fence 2 b1@1 for a1@2", "fence 3 b1@1 for a1@2"]
    assert group.status is READY
    assert set(group.owners().values()) == {"a"}
    assert "b" not in group.state.flows


@pytest.mark.conformance("REB-04")
def test_a_standby_takes_over_the_whole_set_at_once() -> None:
    group = balanced(3, 1, access=AccessType.EXCLUSIVE)
    group.bind("s")
    group.bind("t")
    assert group.expire("a") == [
        "fence 0 a1@1 for s1@2",
        "fence 1 a1@1 for s1@2",
        "fence 2 a1@1 for s1@2",
        "tell s1 active",
    ]
    assert group.status is READY
    assert group.owners() == {0: "s", 1: "s", 2: "s"}
    assert group.sleep(100) == []


@pytest.mark.conformance("REB-04")
def test_one_standby_takes_over_from_one_lost_flow() -> None:
    group = balanced(2, 2)
    for name in "st":
        group.bind(name)
    group.expire("b")
    group.expire("a")
    assert group.owners() == {0: "t", 1: "s"}
    assert not any(entry.startswith("status") for entry in group.log)
    assert group.expire("s") == ["status Holddown"]  # none is left


@pytest.mark.conformance("REB-04")
def test_the_standby_that_takes_over_may_be_lost_before_the_fence_is_in_place() -> None:
    group = balanced(2, 2, land_fences=False)
    group.bind("s")
    group.bind("t")
    assert group.expire("b") == ["fence 1 b1@1 for s1@2", "tell s1 active"]
    assert group.expire("s") == ["fence 1 b1@1 for t1@3", "tell t1 active"]
    group.fence()
    assert group.owners() == {0: "a", 1: "t"}


@pytest.mark.conformance("REB-05")
@pytest.mark.parametrize("how", ["unbind", "expire"])
def test_the_unbind_of_a_standby_changes_nothing(how: str) -> None:
    group = balanced(2, 2)
    before = group.state
    group.bind("s")
    assert getattr(group, how)("s") == []
    assert (group.state.partitions, group.state.flows, group.status) == (before.partitions, before.flows, READY)


@pytest.mark.conformance("REB-06")
def test_back_to_ready_when_every_partitions_flow_is_bound_again() -> None:
    group = balanced(4, 2)
    group.expire("b")
    group.sleep(DELAY_S - 1)
    assert group.bind("b", group.mapping("b")) == [
        "fence 2 b1@1 for b2@1",
        "fence 3 b1@1 for b2@1",
        "status Ready",
    ]
    assert group.sleep(100) == []
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.mark.conformance("REB-06")
def test_back_to_ready_when_the_newcomer_leaves_again() -> None:
    group = balanced(4, 2)
    group.bind("c")
    assert group.unbind("c") == ["status Ready"]
    assert group.sleep(100) == []


@pytest.mark.conformance("REB-06")
def test_the_timer_runs_on_while_somebody_waits_for_a_share() -> None:
    group = balanced(4, 2)
    group.expire("b")
    group.bind("c")
    group.bind("b", group.mapping("b"))
    assert group.status is HOLDDOWN
    group.unbind("c")
    assert group.status is READY


@pytest.mark.conformance("REB-06")
def test_a_newcomer_in_place_of_the_lost_flow_gets_its_partitions_at_the_end_of_the_delay() -> None:
    group = balanced(4, 2)
    group.expire("b")
    group.sleep(2)
    assert group.bind("c") == []
    assert group.sleep(DELAY_S - 2) == [
        "status Rebalancing",
        "fence 2 b1@1 for c1@2",
        "fence 3 b1@1 for c1@2",
        "tell c1 active",
    ]
    assert group.owners() == {0: "a", 1: "a", 2: "c", 3: "c"}
    assert group.handoffs() == 0


@pytest.mark.conformance("REB-07")
def test_binds_and_unbinds_in_holddown_do_not_restart_the_timer() -> None:
    group = balanced(6, 2)
    group.bind("c")
    due_s = next_deadline(group.state)
    for change in ("bind d", "expire b", "bind e", "expire d", "bind f"):
        group.sleep(0.9)
        verb, name = change.split()
        assert getattr(group, verb)(name) == []
        assert next_deadline(group.state) == due_s
    group.settle()
    assert group.counts() == {"a": 2, "c": 2, "e": 1, "f": 1}


@pytest.mark.conformance("REB-07")
def test_a_loss_in_holddown_is_absorbed_although_a_flow_without_partitions_is_there() -> None:
    group = balanced(3, 2)
    for name in "cd":
        group.bind(name)
    assert group.status is HOLDDOWN
    assert group.expire("b") == []
    assert group.statuses()[2] is PartitionStatus.UNBOUND
    group.settle()
    assert group.counts() == {"a": 1, "c": 1, "d": 1}


@pytest.mark.conformance("REB-09")
def test_the_steps_come_in_their_order() -> None:
    group = balanced(9, 3)  # a: 0-2, b: 3-5, c: 6-8
    group.expire("c")
    group.bind("d")
    # 6 to 8 are lost, 3 to 5 are deleted, 9 is new
    assert group.alter([0, 1, 2, 6, 7, 8, 9]) == [
        "fence 3 b1@1 for nobody@2",  # step 1
        "fence 4 b1@1 for nobody@2",
        "fence 5 b1@1 for nobody@2",
        "status Rebalancing",
        "fence 6 c1@1 for b1@2",  # step 2: to those with fewest, the oldest first
        "fence 7 c1@1 for d1@2",
        "fence 8 c1@1 for b1@2",
        "fence 9 nobody@0 for d1@1",
        "tell d1 active",  # step 3; steps 4 to 6: balanced
    ]
    group = balanced(6, 3)
    assert group.alter([0, 1, 2]) == [
        "fence 3 b1@1 for nobody@2",
        "fence 4 c1@1 for nobody@2",
        "fence 5 c1@1 for nobody@2",
        "status Rebalancing",
        "tell c1 inactive",  # step 3 comes before step 5
        "pause 1 a1 for c1",
    ]


@pytest.mark.conformance("REB-10")
def test_seven_partitions_on_three_flows_and_a_new_one() -> None:
    group = balanced(7, 3)
    assert sorted(group.counts().values()) == [2, 2, 3]
    group.bind("d")
    group.settle()
    assert group.counts() == {"a": 2, "b": 2, "c": 2, "d": 1}
    assert group.handoffs() == 1


@pytest.mark.conformance("REB-13")
def test_delay_0_rebalances_at_once() -> None:
    group = balanced(2, 1, delay_s=0)
    assert group.bind("b") == ["status Rebalancing", "pause 1 a1 for b1"]
    group.drain()
    assert group.status is READY
    assert group.expire("b") == ["status Rebalancing", "fence 1 b1@2 for a1@3"]


@pytest.mark.conformance("REB-13")
def test_max_handoff_time_0_moves_at_once() -> None:
    group = balanced(2, 1, delay_s=0, handoff_s=0)
    assert group.bind("b") == ["status Rebalancing", "fence 1 a1@1 for b1@2"]
    assert group.status is READY
    assert group.owners() == {0: "a", 1: "b"}
    assert not any("Holddown" in entry for entry in group.log)


@pytest.mark.conformance("REB-12")
def test_the_outcome_depends_on_numbers_of_partitions_alone() -> None:
    """Nothing that `decide` is given speaks of load: the names of its inputs are all there are."""
    kinds = [Flow, GroupSettings, GroupState, Partition, *get_args(Event)]
    names = {field.name for kind in kinds for field in fields(kind)}
    assert names == {
        *("flow", "instance", "mapping", "partition", "epoch", "owner", "incarnation", "settings", "partitions"),
        *("epochs", "phase", "to", "to_epoch", "deadline_s", "reports_lost", "removed", "name", "bound", "since"),
        *("active", "updates", "rebalance_delay_s", "max_handoff_time_s", "access_type", "queue_id", "flows"),
        *("retired", "status", "holddown_until_s", "trigger", "altered", "binds"),
        *("stuck", "reason"),  # words about a checkpoint that cannot be rewritten
    }
