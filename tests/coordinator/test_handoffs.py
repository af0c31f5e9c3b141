"""What is counted of handoffs: each outcome, once, with the time in which nothing flowed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coordinator.handoffs import PAUSE, Begun, Ended, Handoffs, Outcome, follow
from partq_spark.group.model import Flow, GroupSettings, GroupState, Owner, Partition, Phase
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import SESSION_S, World, two_flows

A, B, C = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")
AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=3.0)


def counted(handoffs: Handoffs) -> dict[str, int]:
    """Outcomes that there were."""
    return {str(outcome): count for outcome, count in handoffs.ended.items() if count}


# --- a real coordinator and flows -------------------------------------------------------------------------------------


def test_a_handoff_that_drains_is_counted_with_its_pause() -> None:
    world = World(partitions=2, config=AT_ONCE)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
        a.acknowledge(number, 99)
    world.flow("b")
    coordinator.step()
    assert counted(coordinator.runtime.handoffs) == {}, "it has not ended"
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    world.now_s += 1.5
    a.acknowledge(paused, 100)
    world.settle()
    assert counted(coordinator.runtime.handoffs) == {"drained": 1}
    distribution = coordinator.runtime.handoffs.pause()
    assert distribution.sum == pytest.approx(1.5)
    assert sum(distribution.counts) == 1
    assert distribution.counts[PAUSE.bounds.index(2.5)] == 1
    assert coordinator.runtime.handoffs.redelivered == 0


def test_a_forced_handoff_is_counted_with_what_comes_again() -> None:
    world = World(partitions=2, config=AT_ONCE)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
        a.acknowledge(number, 40)
    world.flow("b")
    world.run(4)
    assert counted(coordinator.runtime.handoffs) == {"forced": 1}
    assert coordinator.runtime.handoffs.redelivered == 60
    assert coordinator.runtime.handoffs.pause().sum == pytest.approx(3, abs=0.5)


def test_partitions_of_a_lost_flow_are_handoffs_without_a_pause_to_speak_of() -> None:
    """From the moment that they are given to somebody: nobody had them before."""
    world = World(config=QueueConfig(rebalance_delay_s=1.0))
    a, _ = two_flows(world, 1.0)
    (coordinator,) = world.coordinators
    assert counted(coordinator.runtime.handoffs) == {"drained": 2}
    for number in a.mapping():
        assert a.deliver(number, 100)
    a.die()
    world.run(SESSION_S + 3)
    assert counted(coordinator.runtime.handoffs) == {"drained": 2, "lost": 2}
    assert coordinator.runtime.handoffs.redelivered == 200


def test_a_flow_that_comes_back_and_one_that_is_first_are_no_handoffs() -> None:
    world = World(config=AT_ONCE)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    a.bind(a.mapping())
    world.settle()
    assert world.counts() == {"a": 4}
    assert counted(coordinator.runtime.handoffs) == {}


def test_a_new_leader_counts_what_it_sees_the_end_of() -> None:
    """When the handoff began it does not know."""
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=30.0))
    first = world.coordinator("c1")
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
    world.flow("b")
    first.step()
    first.stopped = True
    second = world.coordinator("c2")
    world.run(8)
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    a.acknowledge(paused, 100)
    world.settle()
    assert counted(first.runtime.handoffs) == {}
    assert counted(second.runtime.handoffs) == {"drained": 1}
    assert sum(second.runtime.handoffs.pause().counts) == 0


# --- state by state ---------------------------------------------------------------------------------------------------


def state(partition: Partition, *bound: Owner) -> GroupState:
    flows = {owner.flow: Flow(name=owner.flow, instance=owner.instance, bound=True, since=0) for owner in bound}
    return GroupState(queue_id="q", incarnation="i", settings=GroupSettings(), partitions={0: partition}, flows=flows)


OWNED = Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=A)
PAUSED = Partition(partition=0, phase=Phase.PAUSED, epoch=1, owner=A, to=B, deadline_s=13.0)
FENCING = Partition(partition=0, phase=Phase.FENCING, epoch=1, owner=A, to=B, to_epoch=2)
THEIRS = Partition(partition=0, phase=Phase.OWNED, epoch=2, owner=B)
FREED = Partition(partition=0, phase=Phase.FENCING, epoch=1, owner=A, to=None, to_epoch=2)
FREE = Partition(partition=0, phase=Phase.FREE, epoch=2)
ANEW = Partition(partition=0, phase=Phase.FENCING, epoch=1, owner=A, to=Owner("a", "a2"), to_epoch=1)


def ended(*steps: tuple[float, Partition], drained: float = 0.0, bound: tuple[Owner, ...] = (A, B)) -> list[Ended]:
    """What a walk through these partitions, at these times, counts; `drained` told of it at that time."""
    begun: dict[int, Begun] = {}
    found: list[Ended] = []
    for (_, before), (now_s, after) in pairwise(steps):
        told = {0} if now_s == drained else set()
        found += follow(begun, state(before, *bound), state(after, *bound), told, now_s)
    assert begun == {} or steps[-1][1].phase is not Phase.OWNED
    return found


def test_each_way_through_the_table_has_its_outcome() -> None:
    begin = (0.0, OWNED)
    paused, fenced, done = (10.0, PAUSED), (12.0, FENCING), (12.5, THEIRS)
    assert ended(begin, paused, fenced, done, drained=12.0) == [
        Ended(partition=0, outcome=Outcome.DRAINED, pause_s=2.5)
    ]
    late = (13.0, FENCING), (13.5, THEIRS)
    assert ended(begin, paused, *late) == [Ended(partition=0, outcome=Outcome.FORCED, pause_s=3.5)]
    assert ended(begin, paused, fenced, done, bound=(B,)) == [Ended(partition=0, outcome=Outcome.LOST, pause_s=2.5)]
    assert ended(begin, paused, fenced, done) == [Ended(partition=0, outcome=Outcome.OTHER, pause_s=2.5)]
    assert ended(begin, paused, (11.0, OWNED)) == [Ended(partition=0, outcome=Outcome.KEPT, pause_s=1.0)]
    assert ended(begin, fenced, done) == [Ended(partition=0, outcome=Outcome.FORCED, pause_s=0.5)]
    assert ended(begin, fenced, done, bound=(B,)) == [Ended(partition=0, outcome=Outcome.LOST, pause_s=0.5)]


def test_what_is_no_handoff_is_not_counted() -> None:
    given = Partition(partition=0, phase=Phase.FENCING, epoch=2, to=B, to_epoch=3)
    assert ended((0.0, OWNED), (1.0, FREED), (2.0, FREE), (3.0, given), (4.0, THEIRS)) == []
    assert ended((0.0, OWNED), (1.0, ANEW), (2.0, OWNED)) == []


def test_a_third_flow_gets_it_after_the_first_pause_began() -> None:
    third = Partition(partition=0, phase=Phase.FENCING, epoch=1, owner=A, to=C, to_epoch=3)
    theirs = Partition(partition=0, phase=Phase.OWNED, epoch=3, owner=C)
    steps = (0.0, OWNED), (10.0, PAUSED), (11.0, FENCING), (12.0, third), (14.0, theirs)
    assert ended(*steps, drained=11.0) == [Ended(partition=0, outcome=Outcome.DRAINED, pause_s=4.0)]


def test_a_partition_that_was_removed_is_forgotten() -> None:
    begun: dict[int, Begun] = {}
    follow(begun, state(OWNED), state(PAUSED), (), 1.0)
    assert list(begun) == [0]
    gone = GroupState(queue_id="q", incarnation="i", settings=GroupSettings(), partitions={})
    assert follow(begun, state(PAUSED), gone, (), 2.0) == []
    assert begun == {}
