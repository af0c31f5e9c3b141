"""Alterations of the queue (REB-08, RES), what comes during a rebalance (REB-14), handoffs side by side (REB-16)."""

from __future__ import annotations

import pytest

from coordinator.core.events import QueueAltered
from coordinator.core.machine import decide
from tests.coordinator.core.context import Group, histories, run

TOLD = """
REB-08: a changed partition count rebalances at once
  group 2, 2 flows
  resize 0 1 2 3: status Rebalancing; fence 2 nobody@0 for a1@1; fence 3 nobody@0 for b1@1 = counts a:2 b:2
  resize 0 2: fence 1 b1@1 for nobody@2; fence 3 b1@1 for nobody@2; status Rebalancing; tell b1 inactive
    ; pause 2 a1 for b1
  settle = numbers 0 2; owners a b

REB-08: a changed partition count ends holddown
  group 2, 2 flows
  expire b = Holddown
  resize 0 1 2: status Rebalancing; fence 1 b1@1 for a1@2; fence 2 nobody@0 for a1@1 = Ready

REB-08: from exclusive to non-exclusive rebalances at once
  group 4, 1 flow, exclusive
  bind b, bind c, share non-exclusive: status Rebalancing; pause 3 a1 for b1; pause 2 a1 for c1
  settle = counts a:2 b:1 c:1

REB-08: from exclusive to non-exclusive in holddown, with nothing to pause
  group 4, 1 flow, exclusive
  expire a, bind d = Holddown
  share non-exclusive = Ready; counts d:4

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

REB-14: a loss during a rebalance is handled when it has ended
  group 6, 2 flows
  bind c, sleep 5, expire a: fence 2 a1@1 for c1@2; tell c1 active
  drain = Holddown; partitions Unbound Unbound Ready Ready Ready Ready
  settle = counts b:3 c:3

REB-14: an alteration during a rebalance is handled when it has ended
  group 4, 1 flow
  bind b, sleep 5, resize 0 1 2 3 4 5: nothing = Rebalancing
  drain 3
  all: fence 3 a1@1 for b1@2; tell b1 active; assign 3 to b1@2
  drain 2
  all: fence 2 a1@1 for b1@2; assign 2 to b1@2; status Rebalancing; fence 4 nobody@0 for a1@1
    ; fence 5 nobody@0 for b1@1; assign 4 to a1@1; assign 5 to b1@1; status Ready

REB-08, REB-14: an access type that changes during a rebalance takes effect without the delay
  group 4, 2 flows
  share exclusive = Rebalancing
  share non-exclusive = Rebalancing; remembers trigger altered
  drain
  # and not Holddown
  = Rebalancing; remembers
  drain = Ready; counts a:2 b:2

REB-08, REB-14: partitions that go during a rebalance are made up for without the delay
  group 6, 1 flow
  bind b, sleep 5
  # what b was to get goes
  resize 0 1 2, drain = Ready; counts a:2 b:1

REB-14: other settings during a rebalance are no reason to go without the delay
  group 4, 1 flow
  bind b, sleep 5, timers 100 50, bind c, drain = Holddown

REB-14, REB-04: a flow that waits for its share does not take over at the end of a rebalance
  group 6, 2 flows
  bind c, sleep 5, bind d, expire a, drain = Holddown; partitions Unbound Unbound Ready Ready Ready Ready

REB-01, REB-14: what was left uneven by a rebalance is evened out after the delay
  group 6, 2 flows
  bind c, sleep 5, drain 2, bind c back: resume 5 b1; fence 2 c1@2 for c2@2 = counts a:2 b:3 c:1; Holddown
  settle = counts a:2 b:2 c:2

: what is being fenced for one flow goes to another without a pause, for nobody has delivered anything since
  group 2, 1 flow, exclusive, fences wait
  bind b, bind c, expire a
  share non-exclusive: status Rebalancing; fence 1 a1@1 for c1@3; tell c1 active

: a rebalance that has nothing to move ends at once
  group 2, 1 flow
  share exclusive: status Rebalancing; status Ready

RES-04: a number that comes back continues its epochs, and where it was left it lost no reports
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
  resize 0 1 1@7: status Rebalancing; fence 1 nobody@7 for b1@8 (reports lost); tell b1 active

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

: all partitions may go
  group 2, 2 flows
  resize = numbers; Ready; retired 0@2 1@2
  bind c: nothing
  resize 0 1 2 = counts a:1 b:1 c:1

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
  all: fence 3 b1@1 for a1@2; assign 3 to a1@2; fence 4 b1@1 for a1@2; tell b1 inactive
    ; assign 4 to a1@2; status Ready
  = counts a:5 b:0 c:0

RES-06: exclusive without a standby waits for its flow
  group 3, 1 flow, exclusive
  expire a = Holddown
  bind b, sleep 4
  bind a back: fence 0 a1@1 for a2@1; fence 1 a1@1 for a2@1; fence 2 a1@1 for a2@1; status Ready
  = counts a:3 b:0

RES-06: exclusive never ends up with two flows, though only part of a mapping is up to date
  group 3, 1 flow, exclusive
  bind b, bind a with 0@1 1@0, settle = counts a:3 b:0

RES-06: the access type changes during a rebalance
  group 4, 1 flow
  bind b, sleep 5, share exclusive: nothing
  drain = phases owned owned paused paused
  settle = counts a:4 b:0

REB-16: handoffs run side by side, also where nobody acknowledges anything
  group 100, 1 flow
  bind b, sleep 5 = Rebalancing
  sleep 3 = Ready; counts a:50 b:50; handoffs 50
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)


def test_partitions_of_a_group_are_given_once_each_from_0() -> None:
    group = Group(2)
    for numbers in ((0, 0), (-1, 0)):
        with pytest.raises(ValueError, match="each number from 0 once"):
            decide(group.state, QueueAltered(settings=group.settings, partitions=numbers), 0.0)
