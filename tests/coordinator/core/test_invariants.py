"""Every predicate notices what it is there for. Events that come late, twice, or speak of another instance or epoch
change nothing, and nothing follows. And after whatever happens, in any order, silence leads to rest (REB-15).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.differences import CheckpointMark, differences
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
from coordinator.core.invariants import PREDICATES, broken_by_change, violations
from coordinator.core.machine import decide, next_deadline, pending
from partq_spark.group.model import Flow, GroupState, Owner, Partition, PartitionStatus, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, tell
from tests.support.properties import examples

A, B, C = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")


def good() -> GroupState:
    return Group(4, 2).state


def paused() -> GroupState:
    group = Group(4, 2)
    group.bind("c")
    group.sleep(DELAY_S)
    return group.state


def with_partition(state: GroupState, partition: Partition) -> GroupState:
    return replace(state, partitions={**state.partitions, partition.partition: partition})


def with_flow(state: GroupState, flow: Flow) -> GroupState:
    return replace(state, flows={**state.flows, flow.name: flow})


def one(**fields: object) -> Partition:
    return replace(Partition(partition=1), **fields)  # type: ignore[arg-type] # any field


FIELDS = "a partition's fields fit its phase"
ORDER = "partitions are in order, and retired ones are others"
KNOWN = "flows are known as long as they are named or bound"
SHOWN = "the status is what the state shows"
TIMERS = "timers belong to a status"
AGES = "bound flows have an order"
ACTIVE = "active is who is bound and holds something"
THERE = "who is waited for is there"
BROKEN: list[tuple[str, GroupState]] = [
    (FIELDS, with_partition(good(), one(phase=Phase.OWNED, epoch=0, owner=A))),
    (FIELDS, with_partition(good(), one(phase=Phase.OWNED, epoch=1, owner=A, to=B))),
    (FIELDS, with_partition(good(), one(phase=Phase.OWNED, epoch=1, owner=A, removed=True))),
    (FIELDS, with_partition(paused(), replace(paused().partitions[1], deadline_s=None))),
    (FIELDS, with_partition(paused(), replace(paused().partitions[1], to=Owner("a", "a9")))),
    (FIELDS, with_partition(good(), one(phase=Phase.FENCING, epoch=3, owner=A, to=B, to_epoch=3))),
    (FIELDS, with_partition(good(), one(phase=Phase.FENCING, epoch=3, owner=A, to=A, to_epoch=3))),
    (FIELDS, with_partition(good(), one(phase=Phase.FENCING, epoch=3, owner=A, to=B, to_epoch=4, deadline_s=1.0))),
    (FIELDS, with_partition(good(), one(phase=Phase.FENCING, epoch=3, owner=A, to=B, to_epoch=4, removed=True))),
    (FIELDS, replace(good(), partitions={**good().partitions, 9: Partition(partition=8)})),
    (FIELDS, with_partition(good(), one(phase=Phase.OWNED, epoch=1, owner=A, stuck="it is damaged"))),
    (ORDER, replace(good(), partitions=dict(sorted(good().partitions.items(), reverse=True)))),
    (ORDER, replace(good(), retired={1: 1})),
    (KNOWN, replace(good(), flows={"a": good().flows["a"]})),
    (KNOWN, with_flow(good(), Flow(name="z", instance="z1", bound=False, since=1))),
    (AGES, with_flow(good(), replace(good().flows["b"], since=1))),
    (AGES, with_flow(good(), replace(good().flows["b"], since=99))),
    (ACTIVE, with_flow(good(), replace(good().flows["b"], active=False))),
    (THERE, with_flow(paused(), replace(paused().flows["c"], bound=False))),
    (THERE, replace(paused(), status=RebalanceStatus.READY)),
    (TIMERS, replace(good(), holddown_until_s=1.0)),
    (TIMERS, replace(good(), status=RebalanceStatus.HOLDDOWN)),
    (TIMERS, replace(good(), trigger=True)),
    (TIMERS, replace(good(), altered=True)),
    (SHOWN, with_flow(good(), replace(good().flows["b"], bound=False))),
    (SHOWN, replace(good(), status=RebalanceStatus.HOLDDOWN, holddown_until_s=1.0)),
    (SHOWN, replace(good(), status=RebalanceStatus.REBALANCING)),
]


@pytest.mark.parametrize(("name", "state"), BROKEN, ids=[f"{index} {name}" for index, (name, _) in enumerate(BROKEN)])
def test_noticed(name: str, state: GroupState) -> None:
    assert any(sentence.startswith(f"{name}: ") for sentence in violations(state)), violations(state)


def test_every_predicate_is_shown_to_notice_something() -> None:
    assert {name for name, _ in BROKEN} == set(PREDICATES)
    assert violations(good()) == ()
    assert violations(paused()) == ()


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (good(), with_partition(good(), one(phase=Phase.OWNED, epoch=0, owner=A)), "went back from epoch 1 to 0"),
        (good(), with_partition(good(), one(phase=Phase.OWNED, epoch=1, owner=B)), "changed its owner within epoch 1"),
        (good(), replace(good(), partitions={}, retired={0: 1, 1: 0, 2: 1, 3: 1}), "1 was retired below its epoch"),
        (good(), replace(good(), binds=0), "binds went back"),
        (replace(good(), retired={7: 5}), with_partition(good(), Partition(partition=7, epoch=4)), "7"),
        (replace(good(), retired={7: 5}), with_partition(good(), Partition(partition=7, epoch=5)), None),
    ],
)
def test_a_change_that_must_not_be(before: GroupState, after: GroupState, sentence: str | None) -> None:
    broken = broken_by_change(before, after)
    assert any(sentence in each for each in broken) if sentence is not None else broken == ()


def every_phase() -> Group:
    """0 and 1 owned by a, 2 paused from b for c, 3 owned by b, 4 fenced for nobody, 5 fenced for c."""
    group = Group(6, 2, land_fences=False)
    tell(group, "bind c, sleep 5, drain 5, resize 0 1 2 3 5 = phases owned owned paused owned fencing fencing", 0)
    return group


LATE: list[Event] = [
    FlowBound(flow="a", instance="a1"),
    FlowBound(flow="a", instance="a1", mapping={0: 1, 2: 1}),
    FlowUnbound(flow="a", instance="a0"),
    FlowExpired(flow="b", instance="b2"),
    FlowExpired(flow="nobody", instance="n1"),
    PartitionDrained(partition=0, epoch=1),  # not paused
    PartitionDrained(partition=2, epoch=2),
    PartitionDrained(partition=4, epoch=1),
    PartitionDrained(partition=5, epoch=1),  # again: it is being fenced already
    PartitionFenced(partition=0, epoch=1, owner=A),  # again
    PartitionFenced(partition=2, epoch=2, owner=C),  # not asked for yet
    PartitionFenced(partition=4, epoch=2, owner=B),
    PartitionFenced(partition=5, epoch=1, owner=C),
    PartitionFenced(partition=5, epoch=3, owner=C),
    PartitionFenced(partition=5, epoch=2, owner=Owner("c", "c2")),
    CheckpointAhead(partition=2, epoch=0),
    CheckpointAhead(partition=5, epoch=1),  # a fence above that is on its way
    CheckpointAhead(partition=99, epoch=9),
    ReportsLost(incarnation="1"),
    Tick(),
]


@pytest.mark.parametrize("event", LATE, ids=repr)
def test_nothing_changes_while_it_runs_nor_after_the_end(event: Event) -> None:
    group = every_phase()
    assert decide(group.state, event, group.now_s) == (group.state, ())
    group.settle()
    if not isinstance(event, CheckpointAhead | FlowBound):  # of these a later state may know more
        assert decide(group.state, event, group.now_s) == (group.state, ())


# --- whatever happens -------------------------------------------------------------------------------------------------

FLOWS, NUMBERS = st.sampled_from("abcde"), st.integers(0, 6)
STEPS = st.one_of(
    st.builds("{} {}".format, st.sampled_from(["bind", "bind", "unbind", "expire"]), FLOWS),
    st.builds("bind {} back".format, FLOWS),
    st.builds("{} {}".format, st.sampled_from(["drain", "fence", "stuck"]), NUMBERS),
    st.builds("ahead {} {}".format, NUMBERS, st.integers(0, 12)),
    st.builds("timers {} {}".format, st.sampled_from([0, 5]), st.sampled_from([0, 3])),
    st.sets(NUMBERS, max_size=6).map(lambda numbers: " ".join(["resize", *map(str, sorted(numbers))])),
    st.sampled_from(
        ["sleep 1", "sleep 5", "sleep 20", "fence", "lose-reports", "share exclusive", "share non-exclusive"]
    ),
)


@pytest.mark.slow
@pytest.mark.conformance("REB-15")
@given(partitions=st.integers(1, 6), steps=st.lists(STEPS, max_size=40))
@examples(300)
def test_whatever_happens_invariants_hold_and_silence_leads_to_rest(partitions: int, steps: list[str]) -> None:
    group = Group(partitions, land_fences=False)
    for step in steps:
        waited_for = {f"stuck {fence.partition}" for fence in pending(group.state)}
        if step in waited_for or not step.startswith("stuck"):
            tell(group, step, 0)
        state = group.state
        marks = {n: CheckpointMark(epoch=p.epoch, owner=p.owner) for n, p in state.partitions.items()}
        assert differences(state, marks) == (), "a new leader sees none"
        assert state.status is RebalanceStatus.READY or next_deadline(state) is not None or pending(state)
    # No flow says anything any more. Fences land, being the coordinator's own work.
    for flow in [flow.name for flow in group.state.flows.values() if flow.bound]:
        group.expire(flow)
    group.land_fences = True
    group.fence()
    group.sleep(DELAY_S + HANDOFF_S + DELAY_S)
    assert group.status is RebalanceStatus.READY
    assert set(group.statuses().values()) <= {PartitionStatus.UNASSIGNED}
    assert group.state.flows == {}
