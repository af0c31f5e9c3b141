"""What flows and people see: statuses, standbys, updates (FLO); and the outcomes of losing a consumer (LOS)."""

from __future__ import annotations

import re

import pytest

from tests.coordinator.core.context import histories, run

TOLD = """
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

FLO-05: who keeps some is told nothing, who gets its first is
  group 6, 2 flows
  bind c, settle = updates a:0 b:0 c:1

FLO-05: who gets partitions within its bind is active without an update
  group 2, 0 flows
  bind a, expire a, bind a back = active a; updates a:0

LOS-01: a flow that comes back before it was missed has its partitions again
  group 4, 2 flows
  bind b back: fence 2 b1@1 for b2@1; fence 3 b1@1 for b2@1
  = Ready; instances a1 a1 b2 b2; epochs 1 1 1 1; handoffs 0
  sleep 100: nothing

LOS-01, REB-06: a flow that comes back in holddown has its partitions again
  group 4, 2 flows
  expire b, sleep 4, bind b back: fence 2 b1@1 for b2@1; fence 3 b1@1 for b2@1; status Ready
  = Ready; instances a1 a1 b2 b2; epochs 1 1 1 1; handoffs 0
  sleep 100: nothing

LOS-01: a rolling restart within the delay moves nothing
  group 6, 3 flows
  unbind a, sleep 4, bind a back, unbind b, sleep 4, bind b back, unbind c, sleep 4, bind c back
  = Ready; instances a2 a2 b2 b2 c2 c2; epochs 1 1 1 1 1 1; handoffs 0

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

LOS-02: it may lose its mapping and its life again
  group 4, 2 flows
  expire b, bind b: nothing
  expire b
  # two partitions still name it
  = known a b; partitions Ready Ready Unbound Unbound
  settle = counts a:4; known a

LOS-03: a mapping from before the delay ended is ignored
  group 4, 2 flows
  expire b, settle, bind b back: status Holddown = owners a a a a
  settle = counts a:2 b:2; handoffs 2

LOS-03: a mapping is ignored when a standby has taken over
  group 2, 2 flows, fences wait
  bind s, expire b
  # the fence for the standby is not even in place
  bind b back: nothing
  fence = counts a:1 b:0 s:1

LOS-05: all flows gone and the first that comes
  group 3, 2 flows
  expire a, expire b = partitions Unbound Unbound Unbound
  sleep 5: status Rebalancing; fence 0 a1@1 for nobody@2; fence 1 a1@1 for nobody@2; fence 2 b1@1 for nobody@2
  = Ready; partitions Unassigned Unassigned Unassigned; known
  bind c: fence 0 nobody@2 for c1@3; fence 1 nobody@2 for c1@3; fence 2 nobody@2 for c1@3
  = Ready; counts c:3

LOS-05: the first flow of an unassigned queue gets everything without holddown
  group 2, 0 flows
  bind a: fence 0 nobody@0 for a1@1; fence 1 nobody@0 for a1@1 = Ready
  sleep 100: nothing

LOS-05: a flow that comes while partitions are given up gets them as soon as they are
  group 2, 1 flow, fences wait
  expire a, sleep 5, bind b: nothing
  bind c: nothing
  fence 0
  fence 1
  all: assign 1 to nobody@2; fence 0 nobody@2 for b1@3; fence 1 nobody@2 for c1@3; status Ready
    ; tell b1 active; tell c1 active

REB-15, LOS-05: all flows fall silent in the middle of a rebalance
  group 4, 1 flow
  bind b, sleep 5, expire b, expire a, sleep 8
  = Ready; partitions Unassigned Unassigned Unassigned Unassigned
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
