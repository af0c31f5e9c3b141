"""One partition's way: every edge of the table once, handoffs whose flows change or die (HAN), and checkpoints that
cannot be rewritten: then the partition waits, and nobody else does (REB-15).
"""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.handoff import EDGES, TABLE, Edge, Step, action, advance
from partq_spark.group.model import Owner, Partition, Phase
from tests.coordinator.core.context import histories, line, run

A, A2, B, C = Owner("a", "a1"), Owner("a", "a2"), Owner("b", "b1"), Owner("c", "c1")
FREE, OWNED, PAUSED, FENCING = Phase.FREE, Phase.OWNED, Phase.PAUSED, Phase.FENCING

START = {
    FREE: Partition(partition=0, epoch=4),
    OWNED: Partition(partition=0, phase=OWNED, epoch=4, owner=A),
    PAUSED: Partition(partition=0, phase=PAUSED, epoch=4, owner=A, to=B, deadline_s=9.0),
    FENCING: Partition(partition=0, phase=FENCING, epoch=4, owner=A, to=B, to_epoch=5),
}


def fencing(to: Owner | None = None, *, to_epoch: int, **more: Any) -> Partition:
    """Taken from `A`, which has it at epoch 4."""
    return Partition(partition=0, phase=FENCING, epoch=4, owner=A, to=to, to_epoch=to_epoch, **more)


EXPECTED: dict[tuple[Phase, Step], tuple[Partition | None, str]] = {
    (FREE, Step.GIVE): (Partition(partition=0, phase=FENCING, epoch=4, to=C, to_epoch=5), "fence 0 nobody@4 for c1@5"),
    (FREE, Step.REMOVE): (None, ""),
    (FREE, Step.AHEAD): (
        Partition(partition=0, phase=FENCING, epoch=4, to_epoch=8, reports_lost=True),
        "fence 0 nobody@4 for nobody@8 (reports lost)",
    ),
    (OWNED, Step.MOVE): (
        Partition(partition=0, phase=PAUSED, epoch=4, owner=A, to=C, deadline_s=6.0),
        "pause 0 a1 for c1",
    ),
    (OWNED, Step.GIVE): (fencing(C, to_epoch=5), "fence 0 a1@4 for c1@5"),
    (OWNED, Step.RESTORE): (fencing(A2, to_epoch=4), "fence 0 a1@4 for a2@4"),
    (OWNED, Step.RELEASE): (fencing(to_epoch=5), "fence 0 a1@4 for nobody@5"),
    (OWNED, Step.REMOVE): (fencing(to_epoch=5, removed=True), "fence 0 a1@4 for nobody@5"),
    (OWNED, Step.AHEAD): (fencing(A, to_epoch=8, reports_lost=True), "fence 0 a1@4 for a1@8 (reports lost)"),
    (PAUSED, Step.DRAINED): (START[FENCING], "fence 0 a1@4 for b1@5"),
    (PAUSED, Step.DEADLINE): (START[FENCING], "fence 0 a1@4 for b1@5"),
    (PAUSED, Step.OWNER_LOST): (START[FENCING], "fence 0 a1@4 for b1@5"),
    (PAUSED, Step.KEEP): (START[OWNED], "resume 0 a1"),
    (PAUSED, Step.REMOVE): (fencing(to_epoch=5, removed=True), "fence 0 a1@4 for nobody@5"),
    (PAUSED, Step.AHEAD): (fencing(B, to_epoch=8, reports_lost=True), "fence 0 a1@4 for b1@8 (reports lost)"),
    (FENCING, Step.FENCED): (Partition(partition=0, phase=OWNED, epoch=5, owner=B), "assign 0 to b1@5"),
    (FENCING, Step.FREED): (Partition(partition=0, phase=FREE, epoch=5), "assign 0 to nobody@5"),
    (FENCING, Step.DROPPED): (None, "assign 0 to nobody@5"),
    (FENCING, Step.STUCK): (fencing(B, to_epoch=5, stuck="it is damaged"), ""),
    (FENCING, Step.GIVE): (fencing(C, to_epoch=6), "fence 0 a1@4 for c1@6"),
    (FENCING, Step.RESTORE): (fencing(C, to_epoch=6), "fence 0 a1@4 for c1@6"),
    (FENCING, Step.RELEASE): (fencing(to_epoch=6), "fence 0 a1@4 for nobody@6"),
    (FENCING, Step.REMOVE): (fencing(to_epoch=6, removed=True), "fence 0 a1@4 for nobody@6"),
    (FENCING, Step.AHEAD): (fencing(B, to_epoch=8, reports_lost=True), "fence 0 a1@4 for b1@8 (reports lost)"),
}
NOBODY = Partition(partition=0, phase=FENCING, epoch=4, owner=A, to_epoch=5)


def start_of(edge: Edge) -> Partition:
    if edge.step is Step.FREED:
        return NOBODY
    if edge.step is Step.DROPPED:
        return Partition(partition=0, phase=FENCING, epoch=4, owner=A, to_epoch=5, removed=True)
    return START[edge.phase]


@pytest.mark.parametrize("edge", TABLE, ids=lambda edge: f"{edge.phase.value} {edge.step.value}")
def test_edge(edge: Edge) -> None:
    before = start_of(edge)
    to = A2 if (edge.phase, edge.step) == (OWNED, Step.RESTORE) else C
    after = advance(before, edge.step, to=to, deadline_s=6.0, found=7, why="it is damaged")
    expected, said = EXPECTED[edge.phase, edge.step]
    assert after == expected
    assert (after.phase if after else None) is edge.then
    follows = action(before, edge.step, after, "because")
    assert (line(follows) if follows else "") == said
    assert (type(follows) if follows else None) is edge.action


def test_what_the_table_does_not_have_is_refused() -> None:
    assert len(TABLE) == len(EDGES) == len(EXPECTED)
    for phase in Phase:
        for step in Step:
            if (phase, step) not in EDGES:
                with pytest.raises(ValueError, match=f"partition 0 is {phase.value}: it cannot take the step"):
                    advance(START[phase], step, to=C, deadline_s=6.0, found=7)


def test_the_mark_of_lost_reports_ends_with_the_epoch_they_belong_to() -> None:
    again = Partition(partition=0, phase=FENCING, epoch=4, owner=A, to=A2, to_epoch=4, reports_lost=True)
    after = advance(again, Step.FENCED)
    assert after is not None
    assert after.reports_lost
    other = Partition(partition=0, phase=FENCING, epoch=4, owner=A, to=B, to_epoch=5, reports_lost=True)
    after = advance(other, Step.FENCED)
    assert after is not None
    assert not after.reports_lost


TOLD = """
HAN-01: the order is pause, wait, remap, resume
  group 2, 1 flow
  bind b, sleep 5: status Rebalancing; pause 1 a1 for b1 = partitions Ready Paused
  sleep 2.999 = phases owned paused
  drain
  all: fence 1 a1@1 for b1@2; tell b1 active; assign 1 to b1@2; status Ready

HAN-08, HAN-09: the receiver dies while partitions are paused, which keep their owner and epoch
  group 4, 1 flow
  bind b, sleep 5, expire b: resume 2 a1; resume 3 a1; status Ready
  = instances a1 a1 a1 a1; epochs 1 1 1 1; phases owned owned owned owned

HAN-08: the receiver dies and another flow waits for it
  group 4, 1 flow
  bind b, sleep 5, bind c, expire b = Holddown
  settle = counts a:2 c:2

HAN-08: the receiver dies while the partition is fenced for it
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, expire b: nothing
  fence: assign 1 to b1@2; status Holddown = partitions Ready Unbound
  settle = owners a a; epochs 1 3

HAN-08: the receiver starts anew while the partition is paused
  group 2, 1 flow
  bind b, sleep 5, bind b: resume 1 a1; status Ready; status Holddown
  settle = owners a b

HAN-08: the receiver starts anew while the partition is fenced for it
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, bind b: fence 1 a1@1 for b2@3 = active a b
  settle = instances a1 b2; epochs 1 3

: the owner dies while the partition is paused
  group 4, 2 flows, fences wait
  bind c, sleep 5, expire a: fence 1 a1@1 for c1@2; tell c1 active
  fence: assign 1 to c1@2; status Holddown = partitions Unbound Ready Ready Ready
  settle = counts b:2 c:2

HAN-03: after max-handoff-time the partition moves anyway
  group 2, 1 flow
  bind b, sleep 5, sleep 3: fence 1 a1@1 for b1@2; tell b1 active = owners a b

: the owner starts anew while a partition is paused, and keeps what it still has
  group 4, 2 flows, fences wait
  bind c, sleep 5, bind a back: fence 1 a1@1 for c1@2; fence 0 a1@1 for a2@1; tell c1 active
  settle = owners a c b b

: both die while the partition is paused
  group 4, 2 flows, fences wait
  bind c, sleep 5, expire c: resume 1 a1; status Ready
  expire a: status Holddown
  settle = counts b:4

RES-04: a partition is removed during its handoff
  group 4, 1 flow, fences wait
  bind b, sleep 5, resize 0 1 2: fence 3 a1@1 for nobody@2 = phases owned owned paused fencing
  settle = counts a:2 b:1; retired 3@2

RES-04: a partition is removed while it is fenced
  group 4, 1 flow, fences wait
  bind b, sleep 5, drain, resize 0 1 2: fence 3 a1@1 for nobody@3
  settle = counts a:2 b:1; retired 3@3

: what is being fenced is moved last
  group 4, 1 flow, fences wait
  ahead 3 5, bind b, sleep 5: status Rebalancing; pause 2 a1 for b1; pause 1 a1 for b1

HAN-09: what is planned back after the fence was asked for goes through a higher epoch, so that the last fence wins
  group 2, 2 flows, delay 0, fences wait
  resize 0, settle
  # b is a standby now
  expire a: fence 0 a1@1 for b1@2; tell b1 active
  bind a, expire b: fence 0 a1@1 for a2@3; tell a2 active
  fence = instances a2; epochs 3

REB-15: of a lost flow whose one checkpoint is damaged the healthy partitions are given away
  group 4, 2 flows, fences wait
  expire a, sleep 5, fence 1
  # a word of an earlier fence makes nobody stuck
  old-word-of 0: nothing = Rebalancing; stuck
  stuck 0 = Ready; owners a b b b; partitions Paused Ready Ready Ready; stuck 0
  sleep 1000: nothing
  # late words of fences that nobody waits for any more
  stuck 0 another reason: nothing
  stuck 1: nothing = stuck 0
  # it heals when the fence lands
  fence 0: assign 0 to b1@2 = Ready; counts b:4; stuck

OWN-04: a checkpoint that is ahead once it can be read
  group 4, 2 flows, fences wait
  expire a, sleep 5, fence 1, stuck 0, ahead 0 7: fence 0 a1@1 for b1@8 (reports lost)
  fence 0: assign 0 to b1@8

HAN-04, REB-15: beside a partition that is stuck a new flow gets its share of the others
  group 4, 2 flows, fences wait
  expire a, sleep 5, fence 1, stuck 0, bind c, sleep 5 = Rebalancing; phases fencing owned paused paused
  drain, fence 1 2 3
  # partition 0 is counted as b's
  = Ready; owners a b c c

REB-15, REB-14: a handoff that gets stuck ends the rebalance of the others
  group 6, 2 flows, fences wait
  bind c, sleep 8 = phases owned owned fencing owned owned fencing
  bind d, fence 5, stuck 2 = Holddown
  fences land, sleep 8, settle = counts a:1 b:2 c:2 d:1

: of a partition that is stuck the receiver may be lost too, and nobody waits for it again
  group 4, 2 flows, fences wait
  expire a, sleep 5, fence 1, stuck 0, bind c, sleep 8, fence 1 2 3 = receivers b1 - - -
  expire b, sleep 5, fence 1 2 3 = Ready; receivers c1 - - -; stuck 0
  expire c, sleep 5, fence 1 2 3 = Ready; partitions Unassigned Unassigned Unassigned Unassigned
  bind d, fence = counts d:4
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)
