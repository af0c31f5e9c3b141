"""When a group is rebalanced, and how (REB), with no way to balance that takes fewer handoffs (REB-11); alterations of
the queue (RES); what flows and people see (FLO), and the outcomes of losing a consumer (LOS).
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events import QueueAltered
from coordinator.core.machine import decide
from coordinator.core.rebalance import planned_assignment
from partq_spark.group.model import Owner
from tests.coordinator.core.context import Group, histories, run

TOLD = """
REB-02, FLO-02: a bind where others own some starts holddown
  group 3, 2 flows
  = Ready
  bind c: status Holddown = Holddown; due 5
  sleep 4.999: nothing
  sleep 0.001: status Rebalancing; pause 1 a1 for c1 = Rebalancing
  drain = Ready

REB-03, LOS-04: partitions of who never returns are unbound until the delay ends and go to those who remain
  group 6, 3 flows
  unbind c: status Holddown
  sleep 4.999: nothing = partitions Ready Ready Ready Ready Unbound Unbound
  sleep 0.001: status Rebalancing; fence 4 c1@1 for a1@2; fence 5 c1@1 for b1@2
  = Ready; counts a:3 b:3; handoffs 0; known a b

REB-04, FLO-05: one standby takes over from one lost flow and is told once
  group 2, 2 flows
  bind s, bind t, expire b: fence 1 b1@1 for s1@2; tell s1 active
  expire a: fence 0 a1@1 for t1@2; tell t1 active
  sleep 100: nothing = owners t s; updates s:1 t:1
  # none is left
  expire s: status Holddown

REB-05, FLO-04: a flow beyond the number of partitions is a standby, and its unbind changes nothing
  group 2, 2 flows
  bind s: nothing = Ready; active a b; counts a:1 b:1 s:0
  sleep 100: nothing
  unbind s: nothing
  bind s: nothing
  expire s: nothing = Ready; known a b; owners a b; epochs 1 1

REB-06: back to ready when the newcomer leaves again
  group 4, 2 flows
  bind c, unbind c: status Ready
  sleep 100: nothing

REB-06: a newcomer in place of the lost flow gets its partitions at the end of the delay
  group 4, 2 flows
  expire b, sleep 2, bind c: nothing
  sleep 3: status Rebalancing; fence 2 b1@1 for c1@2; fence 3 b1@1 for c1@2; tell c1 active
  = owners a a c c; handoffs 0

REB-07: binds and unbinds in holddown do not restart the timer
  group 6, 2 flows
  bind c, sleep 1, bind d: nothing
  expire b: nothing
  sleep 1 = due 3
  bind e: nothing
  expire d: nothing
  bind f: nothing = due 3
  settle = counts a:2 c:2 e:1 f:1

REB-09: the steps come in their order
  group 9, 3 flows
  expire c, bind d
  # 6 to 8 are lost, 3 to 5 are deleted, 9 is new: to those with fewest, the oldest first
  resize 0 1 2 6 7 8 9
  all: fence 3 b1@1 for nobody@2; fence 4 b1@1 for nobody@2; fence 5 b1@1 for nobody@2; status Rebalancing
    ; fence 6 c1@1 for b1@2; fence 7 c1@1 for d1@2; fence 8 c1@1 for b1@2; fence 9 nobody@0 for d1@1; tell d1 active
    ; assign 3 to nobody@2; assign 4 to nobody@2; assign 5 to nobody@2
    ; assign 6 to b1@2; assign 7 to d1@2; assign 8 to b1@2; assign 9 to d1@1; status Ready

REB-10: seven partitions on three flows and a new one
  group 7, 3 flows
  = counts a:3 b:2 c:2
  bind d, settle = counts a:2 b:2 c:2 d:1; handoffs 1

REB-13: max-handoff-time 0 moves at once
  group 2, 1 flow, delay 0, handoff 0
  bind b
  all: status Rebalancing; fence 1 a1@1 for b1@2; assign 1 to b1@2; status Ready = Ready; owners a b

FLO-01: a partition is unassigned, ready, paused or unbound
  group 2, 0 flows, fences wait
  = partitions Unassigned Unassigned
  bind a
  # assigned, the fence is not in place yet
  = partitions Paused Paused
  fence = partitions Ready Ready
  bind b, sleep 5 = partitions Ready Paused
  settle, expire a = partitions Unbound Ready

FLO-03: the state after a bind has the flow's partitions
  group 4, 2 flows, fences wait
  expire b, bind b back = receivers - - b2 b2; active a b

FLO-05: a flow is told once when it loses its last partition
  group 3, 3 flows
  resize 0 1: fence 2 c1@1 for nobody@2; status Rebalancing; tell c1 inactive
  sleep 100: nothing = updates a:0 b:0 c:1

LOS-01: a flow that comes back before it was missed has its partitions again
  group 4, 2 flows
  bind b back: fence 2 b1@1 for b2@1; fence 3 b1@1 for b2@1
  = Ready; instances a1 a1 b2 b2; epochs 1 1 1 1; handoffs 0
  sleep 100: nothing

LOS-01: a fence for an instance that was replaced is superseded by one for the new instance, one epoch higher
  group 2, 2 flows, fences wait
  bind s, expire b, bind s: fence 1 b1@1 for s2@3
  bind s: fence 1 b1@1 for s3@4
  fence = instances a1 s3
  bind s back: fence 1 s3@4 for s4@4
  bind s back: fence 1 s3@4 for s5@5

LOS-01: part of a mapping may be out of date
  group 4, 2 flows
  expire b, bind b with 2@1 3@0: fence 2 b1@1 for b2@1 = Holddown; partitions Ready Ready Ready Unbound
  settle = counts a:2 b:2; handoffs 0

LOS-02: a flow that lost its mapping before it was missed waits for the end of the delay
  group 4, 2 flows
  bind b: status Holddown = partitions Ready Ready Unbound Unbound
  sleep 5: status Rebalancing; fence 2 b1@1 for b2@2; fence 3 b1@1 for b2@2; tell b2 active
  = owners a a b b; handoffs 0

LOS-03: a mapping from before the delay ended is ignored
  group 4, 2 flows
  expire b, settle, bind b back: status Holddown = owners a a a a
  settle = counts a:2 b:2; handoffs 2

LOS-05: all flows gone and the first that comes
  group 3, 2 flows
  expire a, expire b = partitions Unbound Unbound Unbound
  sleep 5: status Rebalancing; fence 0 a1@1 for nobody@2; fence 1 a1@1 for nobody@2; fence 2 b1@1 for nobody@2
  = Ready; partitions Unassigned Unassigned Unassigned; known
  bind c: fence 0 nobody@2 for c1@3; fence 1 nobody@2 for c1@3; fence 2 nobody@2 for c1@3
  = Ready; counts c:3

LOS-05: a flow that comes while partitions are given up gets them as soon as they are
  group 2, 1 flow, fences wait
  expire a, sleep 5, bind b: nothing
  bind c: nothing
  fence 0
  fence 1
  all: assign 1 to nobody@2; fence 0 nobody@2 for b1@3; fence 1 nobody@2 for c1@3; status Ready
    ; tell b1 active; tell c1 active

REB-08: a changed partition count rebalances at once
  group 2, 2 flows
  resize 0 1 2 3: status Rebalancing; fence 2 nobody@0 for a1@1; fence 3 nobody@0 for b1@1 = counts a:2 b:2
  resize 0 2: fence 1 b1@1 for nobody@2; fence 3 b1@1 for nobody@2; status Rebalancing; tell b1 inactive
    ; pause 2 a1 for b1
  settle = numbers 0 2; owners a b

: other settings count from then on and trigger nothing
  group 4, 2 flows
  bind c, timers 100 50: nothing = due 5
  sleep 5 = due 50

REB-08, LOS-05: an alteration while no flow is bound takes nothing from who may come back
  group 3, 1 flow
  expire a, resize 0 1 3: fence 2 a1@1 for nobody@2 = Holddown
  bind a with 0@1 1@1 2@1, settle = numbers 0 1 3; instances a2 a2 a2; epochs 1 1 1

REB-14: a bind during a rebalance is handled when it has ended
  group 4, 1 flow
  bind b, sleep 5, bind c: nothing = Rebalancing; remembers trigger
  drain = Holddown; remembers
  settle
  # of two with as many, the oldest gives
  = counts a:1 b:2 c:1

REB-08, REB-14: an access type that changes during a rebalance takes effect without the delay
  group 4, 2 flows
  share exclusive = Rebalancing
  share non-exclusive = Rebalancing; remembers trigger altered
  drain
  # and not Holddown
  = Rebalancing; remembers
  drain = Ready; counts a:2 b:2

REB-14: other settings during a rebalance are no reason to go without the delay
  group 4, 1 flow
  bind b, sleep 5, timers 100 50, bind c, drain = Holddown

REB-01, REB-14: what was left uneven by a rebalance is evened out after the delay
  group 6, 2 flows
  bind c, sleep 5, drain 2, bind c back: resume 5 b1; fence 2 c1@2 for c2@2 = counts a:2 b:3 c:1; Holddown
  settle = counts a:2 b:2 c:2

RES-04: a number that comes back continues its epochs
  group 2, 2 flows
  resize 0 = retired 1@2
  settle, resize 0 1 1@2: status Rebalancing; fence 1 nobody@2 for b1@3; tell b1 active
  = retired; epochs 1 3
  settle
  # each change is told to the same instance
  = active a b; updates a:0 b:2

RES-04: a number that comes back continues above its checkpoint
  group 2, 2 flows
  resize 0, settle
  # Above what the state remembers: a flow had it meanwhile of which the state knows nothing, nor what it delivered.
  resize 0 1 1@7: status Rebalancing; fence 1 nobody@7 for b1@8; tell b1 active

RES-04: a number may come back before it is gone
  group 2, 2 flows, fences wait
  resize 0
  # Rebalancing until the fence for nobody is in place
  resize 0 1: nothing
  fence: assign 1 to nobody@2; status Rebalancing; fence 1 nobody@2 for b1@3; tell b1 active
  settle = owners a b

: an unassigned queue is altered without any fence
  group 2, 0 flows
  resize 0 1 2 3: nothing
  resize 1 3: nothing = numbers 1 3; retired 0@0 2@0
  resize 0 1 2 3: nothing = numbers 0 1 2 3; Ready

RES-06: exclusive has one active flow with every partition
  group 3, 0 flows, exclusive
  bind a: fence 0 nobody@0 for a1@1; fence 1 nobody@0 for a1@1; fence 2 nobody@0 for a1@1
  bind b: nothing
  bind c: nothing = Ready; counts a:3 b:0 c:0; active a
  expire a = counts b:3 c:0
  resize 0 1 2 3 4: status Rebalancing; fence 3 nobody@0 for b1@1; fence 4 nobody@0 for b1@1

RES-06: from non-exclusive to exclusive everything goes to who has most
  group 5, 2 flows
  bind c = Holddown
  share exclusive: status Rebalancing; pause 3 b1 for a1; pause 4 b1 for a1
  drain
  all: fence 3 b1@1 for a1@2 drained; assign 3 to a1@2; fence 4 b1@1 for a1@2 drained; tell b1 inactive
    ; assign 4 to a1@2; status Ready
  = counts a:5 b:0 c:0

RES-06: exclusive never ends up with two flows, though only part of a mapping is up to date
  group 3, 1 flow, exclusive
  bind b, bind a with 0@1 1@0, settle = counts a:3 b:0

REB-16: handoffs run side by side, also where nobody acknowledges anything
  group 100, 1 flow
  bind b, sleep 5 = Rebalancing
  sleep 3 = Ready; counts a:50 b:50; handoffs 50

: what is being fenced for one flow goes to another without a pause, for nobody has delivered anything since
  group 2, 1 flow, exclusive, fences wait
  bind b, bind c, expire a
  share non-exclusive: status Rebalancing; fence 1 a1@1 for c1@3; tell c1 active

RES-06: the access type changes during a rebalance
  group 4, 1 flow
  bind b, sleep 5, share exclusive: nothing
  drain = phases owned owned paused paused
  settle = counts a:4 b:0

: a rebalance that has nothing to move ends at once
  group 2, 1 flow
  share exclusive: status Rebalancing; status Ready
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)


@pytest.mark.conformance("FLO-06")
@histories(TOLD)
def test_an_unbind_and_a_disconnect_have_the_same_effect(lines: list[str]) -> None:
    """All of this is so, too, where those who fell silent say that they go, and the other way round."""
    other = {"unbind": "expire", "expire": "unbind"}
    run([re.sub(r"\b(unbind|expire)\b", lambda found: other[found[0]], line) for line in lines])


def test_partitions_of_a_group_are_given_once_each_from_0() -> None:
    group = Group(2)
    for numbers in ((0, 0), (-1, 0)):
        with pytest.raises(ValueError, match="each number from 0 once"):
            decide(group.state, QueueAltered(settings=group.settings, partitions=numbers), 0.0)


def owners(count: int) -> list[Owner]:
    return [Owner(f"f{index}", "1") for index in range(count)]


@pytest.mark.conformance("REB-01", "REB-11", "REB-12")
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=30), unheld=st.integers(0, 60))
def test_a_plan_makes_even_with_the_least_number_of_handoffs(counts: list[int], unheld: int) -> None:
    """By numbers of partitions alone: the least is what flows have above their fair shares, if those who have most get
    the larger ones.
    """
    live = owners(len(counts))
    had = [owner for owner, count in zip(live, counts, strict=True) for _ in range(count)]
    held = {owner: [n for n, each in enumerate(had) if each == owner] for owner in had}
    free = [len(had) + n for n in range(unheld)]
    made = planned_assignment(live=live, held=held, unheld=free)
    assert [number for number, _ in made.given] == free
    result = {**dict(enumerate(had)), **dict(made.given)}
    for move in made.moves:
        assert had[move.partition] == move.giver != move.receiver, "what was just given is not moved"
        result[move.partition] = move.receiver
    assert len({move.partition for move in made.moves}) == len(made.moves), "a partition is moved twice"
    low, extra = divmod(len(result), len(live))
    fair = [low + 1] * extra + [low] * (len(live) - extra)
    now = Counter(result.values())
    assert sorted((now[owner] for owner in live), reverse=True) == fair
    most = sorted(counts, reverse=True)
    assert len(made.moves) == sum(max(has - share, 0) for has, share in zip(most, fair, strict=True))


def test_ties_go_to_the_oldest_and_reluctant_partitions_stay() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0, 1, 2, 3]}, unheld=[4, 5], reluctant={3})
    assert made.given == [(4, b), (5, c)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(2, b), (1, c)]
