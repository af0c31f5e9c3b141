"""When a group is rebalanced, and how (REB), with no way to balance that takes fewer handoffs (REB-11)."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import product
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.core.assignment import planned_assignment
from coordinator.core.events import Event
from coordinator.core.machine import next_deadline
from partq_spark.group.model import (
    AccessType,
    Flow,
    GroupSettings,
    GroupState,
    Owner,
    Partition,
    PartitionStatus,
    RebalanceStatus,
)
from tests.coordinator.core.context import DELAY_S, Group, balanced
from tests.support.properties import examples

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


def owners(count: int) -> list[Owner]:
    return [Owner(f"f{index}", "1") for index in range(count)]


def least_moves(start: tuple[int | None, ...], flows: int) -> int:
    """Brute force over all balanced targets: partitions that a bound flow has to give to another one."""
    return min(
        sum(was is not None and was != now for was, now in zip(start, target, strict=True))
        for target in product(range(flows), repeat=len(start))
        if max(counts := [target.count(flow) for flow in range(flows)]) - min(counts) <= 1
    )


def check(start: tuple[int | None, ...], flows: int) -> int:
    live = owners(flows)
    held = {owner: [n for n, flow in enumerate(start) if flow == index] for index, owner in enumerate(live)}
    unheld = [n for n, flow in enumerate(start) if flow is None]
    made = planned_assignment(
        live=live, held={owner: numbers for owner, numbers in held.items() if numbers}, unheld=unheld
    )
    assert [number for number, _ in made.given] == unheld
    result = {n: live[flow] for n, flow in enumerate(start) if flow is not None} | dict(made.given)
    for move in made.moves:
        assert result[move.partition] == move.giver != move.receiver
        assert move.partition not in unheld, "what was just given is moved"
        result[move.partition] = move.receiver
    counts = Counter(dict.fromkeys(live, 0))
    counts.update(result.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len({move.partition for move in made.moves}) == len(made.moves), "a partition is moved twice"
    return len(made.moves)


@pytest.mark.conformance("REB-11")
@given(data=st.data(), flows=st.integers(1, 4))
@examples(150)
@example(data=None, flows=3)
def test_the_number_of_handoffs_is_the_least_that_reaches_balance(data: st.DataObject | None, flows: int) -> None:
    most = {1: 6, 2: 8, 3: 6, 4: 5}[flows]
    if data is None:
        start: tuple[int | None, ...] = (0, 0, 0, 0, 1, None)
    else:
        start = tuple(data.draw(st.lists(st.none() | st.integers(0, flows - 1), max_size=most)))
    assert check(start, flows) == least_moves(start, flows)


@pytest.mark.conformance("REB-11")
@pytest.mark.parametrize("flows", [1, 2, 3])
def test_every_small_start(flows: int) -> None:
    """All starts with up to 4 partitions, each with any flow or none."""
    for size in range(5):
        for start in product([None, *range(flows)], repeat=size):
            assert check(start, flows) == least_moves(start, flows)


def by_surplus(counts: list[int], unheld: int) -> int:
    """The least number of handoffs by arithmetic, beyond brute force: what is above the highest fair share."""
    total, flows = sum(counts) + unheld, len(counts)
    low, extra = divmod(total, flows)
    fair = [low + 1] * extra + [low] * (flows - extra)
    return sum(max(has - share, 0) for has, share in zip(sorted(counts, reverse=True), fair, strict=True))


@pytest.mark.conformance("REB-11")
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=30), unheld=st.integers(0, 60))
def test_large_starts_against_arithmetic(counts: list[int], unheld: int) -> None:
    start: list[int | None] = [flow for flow, count in enumerate(counts) for _ in range(count)]
    assert check((*start, *[None] * unheld), len(counts)) == by_surplus(counts, unheld)


@given(start=st.lists(st.none() | st.integers(0, 2), max_size=6))
def test_the_arithmetic_agrees_with_the_brute_force(start: list[int | None]) -> None:
    counts = [start.count(flow) for flow in range(3)]
    assert by_surplus(counts, start.count(None)) == least_moves(tuple(start), 3)


def test_ties_go_to_the_oldest_and_reluctant_partitions_stay() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0, 1, 2, 3]}, unheld=[4, 5], reluctant={3})
    assert made.given == [(4, b), (5, c)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(2, b), (1, c)]


def test_exclusive_gives_everything_to_who_has_most() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0], b: [1, 2]}, unheld=[3], exclusive=True)
    assert made.given == [(3, b)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(0, b)]
