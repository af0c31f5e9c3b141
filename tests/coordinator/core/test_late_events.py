"""Events that come late, twice, or speak of another instance or epoch: nothing changes, nothing follows."""

from __future__ import annotations

import pytest

from coordinator.core.events import (
    CheckpointAhead,
    Event,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    PartitionDrained,
    PartitionFenced,
    ReportsLost,
    Tick,
)
from coordinator.core.machine import decide
from partq_spark.group.model import Owner, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, Group, balanced


def every_phase() -> Group:
    """0 and 1 owned by a, 2 paused from b for c, 3 owned by b, 4 fenced for nobody, 5 fenced for c."""
    group = balanced(6, 2, land_fences=False)
    group.bind("c")
    group.sleep(DELAY_S)
    group.drain(5)
    group.alter([0, 1, 2, 3, 5])
    assert [p.phase for p in group.state.partitions.values()] == [
        Phase.OWNED,
        Phase.OWNED,
        Phase.PAUSED,
        Phase.OWNED,
        Phase.FENCING,
        Phase.FENCING,
    ]
    assert group.status is RebalanceStatus.REBALANCING
    return group


A, B, C = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")
LATE: list[Event] = [
    FlowBound(flow="a", instance="a1"),
    FlowBound(flow="a", instance="a1", mapping={0: 1, 2: 1}),
    FlowUnbound(flow="a", instance="a0"),
    FlowUnbound(flow="nobody", instance="n1"),
    FlowExpired(flow="b", instance="b2"),
    FlowExpired(flow="nobody", instance="n1"),
    PartitionDrained(partition=0, epoch=1),  # not paused
    PartitionDrained(partition=2, epoch=0),
    PartitionDrained(partition=2, epoch=2),
    PartitionDrained(partition=4, epoch=1),
    PartitionDrained(partition=5, epoch=1),  # again: it is being fenced already
    PartitionDrained(partition=99, epoch=1),
    PartitionFenced(partition=0, epoch=1, owner=A),  # again
    PartitionFenced(partition=2, epoch=2, owner=C),  # not asked for yet
    PartitionFenced(partition=4, epoch=2, owner=B),
    PartitionFenced(partition=4, epoch=1, owner=None),
    PartitionFenced(partition=5, epoch=1, owner=C),
    PartitionFenced(partition=5, epoch=3, owner=C),
    PartitionFenced(partition=5, epoch=2, owner=Owner("c", "c2")),
    PartitionFenced(partition=5, epoch=2, owner=None),
    PartitionFenced(partition=99, epoch=2, owner=C),
    CheckpointAhead(partition=0, epoch=0),
    CheckpointAhead(partition=2, epoch=0),
    CheckpointAhead(partition=5, epoch=1),  # a fence above that is on its way
    CheckpointAhead(partition=99, epoch=9),
    ReportsLost(incarnation="1"),
    Tick(),
]


@pytest.mark.parametrize("event", LATE, ids=repr)
def test_nothing_changes(event: Event) -> None:
    group = every_phase()
    after, actions = decide(group.state, event, group.now_s)
    assert after is group.state
    assert actions == ()


@pytest.mark.parametrize("event", LATE, ids=repr)
def test_nothing_follows_when_it_comes_after_the_end_either(event: Event) -> None:
    group = every_phase()
    group.settle()
    if isinstance(event, CheckpointAhead | FlowBound):
        return  # of these a later state may know more
    after, actions = decide(group.state, event, group.now_s)
    assert after is group.state
    assert actions == ()


def test_a_timer_fires_when_it_is_due_and_not_before() -> None:
    group = balanced(2, 1)
    group.bind("b")
    due_s = group.now_s + DELAY_S
    assert decide(group.state, Tick(), due_s - 0.001) == (group.state, ())
    assert decide(group.state, Tick(), due_s)[0].status is RebalanceStatus.REBALANCING
