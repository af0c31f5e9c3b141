"""When a group is rebalanced, and how (REB), with no way to balance that takes fewer handoffs (REB-11)."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.assignment import planned_assignment
from coordinator.core.events import Event
from partq_spark.group.model import Flow, GroupSettings, GroupState, Owner, Partition
from tests.coordinator.core.context import histories, run

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

REB-04: the standby that takes over may be lost before the fence is in place
  group 2, 2 flows, fences wait
  bind s, bind t, expire b: fence 1 b1@1 for s1@2; tell s1 active
  expire s: fence 1 b1@1 for t1@3; tell t1 active
  fence = owners a t

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

REB-06: the timer runs on while somebody waits for a share
  group 4, 2 flows
  expire b, bind c, bind b back = Holddown
  unbind c = Ready

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

REB-07, FLO-04: a loss in holddown is absorbed although a flow without partitions is there
  group 3, 2 flows
  bind c, bind d = Holddown
  expire b: nothing = partitions Ready Ready Unbound
  settle = counts a:1 c:1 d:1

REB-09: the steps come in their order
  group 9, 3 flows
  expire c, bind d
  # 6 to 8 are lost, 3 to 5 are deleted, 9 is new: to those with fewest, the oldest first
  resize 0 1 2 6 7 8 9
  all: fence 3 b1@1 for nobody@2; fence 4 b1@1 for nobody@2; fence 5 b1@1 for nobody@2; status Rebalancing
    ; fence 6 c1@1 for b1@2; fence 7 c1@1 for d1@2; fence 8 c1@1 for b1@2; fence 9 nobody@0 for d1@1; tell d1 active
    ; assign 3 to nobody@2; assign 4 to nobody@2; assign 5 to nobody@2
    ; assign 6 to b1@2; assign 7 to d1@2; assign 8 to b1@2; assign 9 to d1@1; status Ready

REB-09: emptied flows are told before partitions are handed to them
  group 6, 3 flows
  resize 0 1 2: fence 3 b1@1 for nobody@2; fence 4 c1@1 for nobody@2; fence 5 c1@1 for nobody@2
    ; status Rebalancing; tell c1 inactive; pause 1 a1 for c1

REB-10: seven partitions on three flows and a new one
  group 7, 3 flows
  = counts a:3 b:2 c:2
  bind d, settle = counts a:2 b:2 c:2 d:1; handoffs 1

REB-13: delay 0 rebalances at once
  group 2, 1 flow, delay 0
  bind b: status Rebalancing; pause 1 a1 for b1
  drain = Ready
  expire b: status Rebalancing; fence 1 b1@2 for a1@3

REB-13: max-handoff-time 0 moves at once
  group 2, 1 flow, delay 0, handoff 0
  bind b
  all: status Rebalancing; fence 1 a1@1 for b1@2; assign 1 to b1@2; status Ready = Ready; owners a b
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)


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


@pytest.mark.conformance("REB-01", "REB-11")
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=30), unheld=st.integers(0, 60))
def test_a_plan_makes_even_with_the_least_number_of_handoffs(counts: list[int], unheld: int) -> None:
    """The least is what flows have above their fair shares, if those who have most get the larger ones."""
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


def test_exclusive_gives_everything_to_who_has_most() -> None:
    a, b, c = owners(3)
    made = planned_assignment(live=[a, b, c], held={a: [0], b: [1, 2]}, unheld=[3], exclusive=True)
    assert made.given == [(3, b)]
    assert [(move.partition, move.receiver) for move in made.moves] == [(0, b)]
