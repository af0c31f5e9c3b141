"""Every predicate notices what it is there for. Events that come late, twice, or speak of another instance or epoch
change nothing, and nothing follows. What a new leader does where state and checkpoints differ, or there is no state
(OWN). And after whatever happens, in any order, silence leads to rest (REB-15). The core has no I/O, clock, chance,
logging or threads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events import (
    CheckpointAhead,
    CheckpointMark,
    Event,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    PartitionDrained,
    PartitionFenced,
    Tick,
    differences,
)
from coordinator.core.invariants import PREDICATES, violations
from coordinator.core.machine import decide
from partq_spark.group.model import Flow, GroupState, Owner, Partition, PartitionStatus, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, histories, partition, run, tell
from tests.coordinator.modelcheck.world import broken_by_change
from tests.support.properties import examples

A, B, C = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")


def having(state: GroupState, *changed: Partition | Flow, **fields: object) -> GroupState:
    """This state with another partition, another flow, other fields."""
    partitions = {each.partition: each for each in changed if isinstance(each, Partition)}
    flows = {each.name: each for each in changed if isinstance(each, Flow)}
    after = replace(state, partitions={**state.partitions, **partitions}, flows={**state.flows, **flows})
    return replace(after, **fields)  # type: ignore[arg-type] # any field


def told(lines: str) -> GroupState:
    group = Group(4, 2)
    tell(group, lines, 0)
    return group.state


GOOD, PAUSED = told(""), told("bind c, sleep 5")
OF_B, OF_C, PAUSE = GOOD.flows["b"], PAUSED.flows["c"], PAUSED.partitions[1]
FIELDS = "a partition's fields fit its phase"
ORDER = "partitions are in order, and retired ones are others"
KNOWN = "flows are known as long as they are named or bound"
SHOWN = "the status is what the state shows"
TIMERS = "timers belong to a status"
AGES = "bound flows have an order"
ACTIVE = "active is who is bound and holds something"
THERE = "who is waited for is there"
BROKEN: list[tuple[str, GroupState]] = [
    *(
        (FIELDS, having(GOOD, partition(words, 1)))
        for words in (
            "owned a1@0",
            "owned a1@1 b1",
            "owned a1@1 - removed",
            "owned a1@1 - stuck",
            "owned a1@1 - drained",
            "fencing a1@3 b1@3",
            "fencing a1@3 a1@3",
            "fencing a1@3 b1@4 removed",
        )
    ),
    (FIELDS, having(PAUSED, replace(PAUSE, deadline_s=None))),
    (FIELDS, having(PAUSED, replace(PAUSE, to=Owner("a", "a9")))),
    (FIELDS, having(GOOD, replace(partition("fencing a1@3 b1@4", 1), deadline_s=1.0))),
    (FIELDS, having(GOOD, replace(partition("fencing a1@3 b1@4 drained", 1), deadline_s=None))),
    (FIELDS, replace(GOOD, partitions={**GOOD.partitions, 9: Partition(partition=8)})),
    (ORDER, replace(GOOD, partitions=dict(sorted(GOOD.partitions.items(), reverse=True)))),
    (ORDER, having(GOOD, retired={1: 1})),
    (KNOWN, having(GOOD, flows={"a": GOOD.flows["a"]})),
    (KNOWN, having(GOOD, Flow(name="z", instance="z1", bound=False, since=1))),
    (AGES, having(GOOD, OF_B._replace(since=1))),
    (AGES, having(GOOD, OF_B._replace(since=99))),
    (ACTIVE, having(GOOD, OF_B._replace(active=False))),
    (THERE, having(PAUSED, OF_C._replace(bound=False))),
    (THERE, having(PAUSED, status=RebalanceStatus.READY)),
    (TIMERS, having(GOOD, holddown_until_s=1.0)),
    (TIMERS, having(GOOD, status=RebalanceStatus.HOLDDOWN)),
    (TIMERS, having(GOOD, trigger=True)),
    (TIMERS, having(GOOD, altered=True)),
    (SHOWN, having(GOOD, OF_B._replace(bound=False))),
    (SHOWN, having(GOOD, status=RebalanceStatus.HOLDDOWN, holddown_until_s=1.0)),
    (SHOWN, having(GOOD, status=RebalanceStatus.REBALANCING)),
]


@pytest.mark.parametrize(("name", "state"), BROKEN, ids=[f"{index} {name}" for index, (name, _) in enumerate(BROKEN)])
def test_noticed(name: str, state: GroupState) -> None:
    assert any(sentence.startswith(f"{name}: ") for sentence in violations(state)), violations(state)


def test_every_predicate_is_shown_to_notice_something() -> None:
    assert {name for name, _ in BROKEN} == set(PREDICATES)
    assert violations(GOOD) == violations(PAUSED) == ()


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (GOOD, having(GOOD, partition("owned a1@0", 1)), "went back from epoch 1 to 0"),
        (GOOD, having(GOOD, partition("owned b1@1", 1)), "changed its owner within epoch 1"),
        (GOOD, having(GOOD, partitions={}, retired={0: 1, 1: 0, 2: 1, 3: 1}), "1 was retired below its epoch"),
        (GOOD, having(GOOD, binds=0), "binds went back"),
        (having(GOOD, retired={7: 5}), having(GOOD, partition("free -@4", 7)), "7"),
        (having(GOOD, retired={7: 5}), having(GOOD, partition("free -@5", 7)), None),
    ],
)
def test_a_change_that_must_not_be(before: GroupState, after: GroupState, sentence: str | None) -> None:
    broken = list(broken_by_change(before, after))
    assert any(sentence in each for each in broken) if sentence is not None else broken == []


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
    Tick(),
]


@pytest.mark.parametrize("event", LATE, ids=repr)
def test_nothing_changes_while_it_runs_nor_after_the_end(event: Event) -> None:
    group = every_phase()
    assert decide(group.state, event, group.now_s) == (group.state, ())
    group.settle()
    if not isinstance(event, CheckpointAhead | FlowBound):  # of these a later state may know more
        assert decide(group.state, event, group.now_s) == (group.state, ())


# --- what a new leader finds ------------------------------------------------------------------------------------------

A2, BS = Owner("a", "a2"), PartitionFenced(partition=0, epoch=6, owner=B)


@pytest.mark.conformance("OWN-04")
@pytest.mark.parametrize(
    ("held", "mark", "expected"),
    [
        ("free -@4", CheckpointMark(epoch=4, owner=None), None),
        ("free -@4", None, None),
        ("free -@4", CheckpointMark(epoch=3, owner=None), None),
        ("free -@4", CheckpointMark(epoch=5, owner=None), CheckpointAhead(partition=0, epoch=5)),
        ("free -@4", CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", CheckpointMark(epoch=4, owner=A), None),
        ("owned a1@4", CheckpointMark(epoch=4, owner=A2), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", CheckpointMark(epoch=6, owner=A), CheckpointAhead(partition=0, epoch=6)),
        ("owned a1@4", CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", None, CheckpointAhead(partition=0, epoch=4)),
        ("paused a1@4 b1", CheckpointMark(epoch=4, owner=A), None),
        ("paused a1@4 b1", CheckpointMark(epoch=5, owner=B), CheckpointAhead(partition=0, epoch=5)),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=4, owner=A), None),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=5, owner=C), None),  # a fence that was given up has landed
        ("fencing a1@4 b1@6", CheckpointMark(epoch=6, owner=B), BS),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=6, owner=C), CheckpointAhead(partition=0, epoch=6)),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=8, owner=None), CheckpointAhead(partition=0, epoch=8)),
        ("fencing a1@4 -@6", CheckpointMark(epoch=6, owner=None), PartitionFenced(partition=0, epoch=6, owner=None)),
        ("fencing a1@4 a2@4", CheckpointMark(epoch=4, owner=A), None),
        ("fencing a1@4 a2@4", CheckpointMark(epoch=4, owner=A2), PartitionFenced(partition=0, epoch=4, owner=A2)),
        ("fencing a1@4 a2@4", CheckpointMark(epoch=4, owner=C), CheckpointAhead(partition=0, epoch=4)),
        ("fencing a1@4 a2@4", CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
    ],
)
def test_difference(held: str, mark: CheckpointMark | None, expected: Event | None) -> None:
    state = replace(Group(1).state, partitions={0: partition(held)})
    assert differences(state, {0: mark} if mark else {}) == ((expected,) if expected else ())


TOLD = """
RES-04: a group that nobody has had is ready
  group 3, 0 flows, fences wait
  find none -@7 none none none -@3 = Ready; due never; epochs 0 7 0; retired 5@3

OWN-03: owners in the checkpoints count as unbound for a session timeout and the delay
  group 3, 0 flows, fences wait
  find a1@4 b1@2 -@9 = Holddown; due 15; phases owned owned free; epochs 4 2 9; instances a1 b1 -
  = known a b; partitions Unbound Unbound Unassigned

OWN-03: flows that still live go on with what they have
  group 3, 0 flows, fences wait
  find a1@1 b1@1 b1@1
  bind a with 0@1: fence 0 a1@1 for a2@1 = Holddown
  bind b with 1@1 2@1, fence = Ready; instances a2 b2 b2; epochs 1 1 1; handoffs 0

OWN-03: partitions of flows that do not come back go to who does
  group 3, 0 flows, fences wait
  find a1@4 b1@2 none
  bind a with 0@4: fence 0 a1@4 for a2@4
  fence, sleep 15: status Rebalancing; fence 1 b1@2 for a2@3; fence 2 nobody@0 for a2@1
  fence = Ready

OWN-04: a state from an old copy is brought above the checkpoints
  # Redis has jumped back to when a had both; since then b got partition 1, at epoch 2.
  group 2, 1 flow
  ahead 1 2: fence 1 a1@1 for a1@3 = Ready; instances a1 a1; epochs 1 3

OWN-04: a partition that leaves goes also where its checkpoint is ahead of its fence
  group 2, 2 flows, fences wait
  resize 0, ahead 1 5: fence 1 b1@1 for nobody@6
  fence = numbers 0

OWN-04: a checkpoint that is ahead during a handoff ends the pause
  group 2, 1 flow, fences wait
  bind b, sleep 5, ahead 1 5: fence 1 a1@1 for b1@6; tell b1 active
  # found again before the fence has landed
  ahead 1 5: nothing
  ahead 1 6: fence 1 a1@1 for b1@7
  fence = owners a b; Ready
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)


# --- whatever happens -------------------------------------------------------------------------------------------------

FLOWS, NUMBERS = st.sampled_from("abcde"), st.integers(0, 6)
STEPS = st.one_of(
    st.builds("{} {}".format, st.sampled_from(["bind", "bind", "unbind", "expire"]), FLOWS),
    st.builds("bind {} back".format, FLOWS),
    st.builds("{} {}".format, st.sampled_from(["drain", "fence", "stuck"]), NUMBERS),
    st.builds("ahead {} {}".format, NUMBERS, st.integers(0, 12)),
    st.builds("timers {} {}".format, st.sampled_from([0, 5]), st.sampled_from([0, 3])),
    st.sets(NUMBERS, max_size=6).map(lambda numbers: " ".join(["resize", *map(str, sorted(numbers))])),
    st.sampled_from(["sleep 1", "sleep 5", "sleep 20", "fence", "share exclusive", "share non-exclusive"]),
)


@pytest.mark.slow
@pytest.mark.conformance("REB-15")
@given(partitions=st.integers(1, 6), steps=st.lists(STEPS, max_size=40))
@examples(300)
def test_whatever_happens_invariants_hold_and_silence_leads_to_rest(partitions: int, steps: list[str]) -> None:
    group = Group(partitions, land_fences=False)
    for step in steps:
        waited_for = {f"stuck {fence.partition}" for fence in group.state.pending}
        if step in waited_for or not step.startswith("stuck"):
            tell(group, step, 0)
        state = group.state
        marks = {n: CheckpointMark(epoch=p.epoch, owner=p.owner) for n, p in state.partitions.items()}
        assert differences(state, marks) == (), "a new leader sees none"
        assert state.status is RebalanceStatus.READY or state.next_deadline_s is not None or state.pending
    # No flow says anything any more. Fences land, being the coordinator's own work.
    for flow in [flow.name for flow in group.state.flows.values() if flow.bound]:
        group.expire(flow)
    group.land_fences = True
    group.fence()
    group.sleep(DELAY_S + HANDOFF_S + DELAY_S)
    assert group.status is RebalanceStatus.READY
    assert set(group.statuses().values()) <= {PartitionStatus.UNASSIGNED}
    assert group.state.flows == {}


# --- purity -----------------------------------------------------------------------------------------------------------


CORE = Path(__file__).parents[3] / "coordinator/core"
ALLOWED = {
    *("__future__", "collections", "collections.abc", "dataclasses", "enum", "typing", "heapq"),
    "partq_spark.group.model",
}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("file", sorted(CORE.glob("*.py")), ids=lambda file: file.name)
def test_imports(file: Path) -> None:
    names = {*imported(file.read_text(encoding="utf-8"))}
    assert {name for name in names if not f"{name}.".startswith("coordinator.core.")} <= ALLOWED
