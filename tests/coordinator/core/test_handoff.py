"""One partition's way: every edge of the table once, handoffs whose flows change or die (HAN), and checkpoints that
cannot be rewritten: then the partition waits, and nobody else does (REB-15).
"""

from __future__ import annotations

import pytest

from coordinator.core.handoff import EDGES, TABLE, Step, action, advance
from partq_spark.group.model import Owner, Phase
from tests.coordinator.core.context import histories, line, partition, run

A2, C = Owner("a", "a2"), Owner("c", "c1")
START = {
    "free": "free -@4",
    "owned": "owned a1@4",
    "paused": "paused a1@4 b1",
    "fencing": "fencing a1@4 b1@5",
    "fencing freed": "fencing a1@4 -@5",
    "fencing dropped": "fencing a1@4 -@5 removed",
}
EXPECTED = """
free give           = fencing -@4 c1@5           = fence 0 nobody@4 for c1@5
free remove         = gone                       = nothing
free ahead          = fencing -@4 -@8 lost       = fence 0 nobody@4 for nobody@8 (reports lost)
owned move          = paused a1@4 c1             = pause 0 a1 for c1
owned give          = fencing a1@4 c1@5          = fence 0 a1@4 for c1@5
owned restore       = fencing a1@4 a2@4          = fence 0 a1@4 for a2@4
owned release       = fencing a1@4 -@5           = fence 0 a1@4 for nobody@5
owned remove        = fencing a1@4 -@5 removed   = fence 0 a1@4 for nobody@5
owned ahead         = fencing a1@4 a1@8 lost     = fence 0 a1@4 for a1@8 (reports lost)
paused drained      = fencing a1@4 b1@5          = fence 0 a1@4 for b1@5
paused deadline     = fencing a1@4 b1@5          = fence 0 a1@4 for b1@5
paused owner lost   = fencing a1@4 b1@5          = fence 0 a1@4 for b1@5
paused keep         = owned a1@4                 = resume 0 a1
paused remove       = fencing a1@4 -@5 removed   = fence 0 a1@4 for nobody@5
paused ahead        = fencing a1@4 b1@8 lost     = fence 0 a1@4 for b1@8 (reports lost)
fencing fenced      = owned b1@5                 = assign 0 to b1@5
fencing freed       = free -@5                   = assign 0 to nobody@5
fencing dropped     = gone                       = assign 0 to nobody@5
fencing stuck       = fencing a1@4 b1@5 stuck    = nothing
fencing give        = fencing a1@4 c1@6          = fence 0 a1@4 for c1@6
fencing restore     = fencing a1@4 c1@6          = fence 0 a1@4 for c1@6
fencing release     = fencing a1@4 -@6           = fence 0 a1@4 for nobody@6
fencing remove      = fencing a1@4 -@6 removed   = fence 0 a1@4 for nobody@6
fencing ahead       = fencing a1@4 b1@8 lost     = fence 0 a1@4 for b1@8 (reports lost)
"""
"""Phase and step, the partition then, and what follows."""


@pytest.mark.parametrize("row", EXPECTED.strip().splitlines())
def test_edge(row: str) -> None:
    at, then, follows = (part.strip() for part in row.split("="))
    phase, _, step = at.partition(" ")
    edge = EDGES[Phase(phase), Step(step)]
    before = partition(START.get(at, START[phase]))
    after = advance(
        before, edge.step, to=A2 if at == "owned restore" else C, deadline_s=9.0, found=7, why="it is damaged"
    )
    assert after == (partition(then) if then != "gone" else None)
    assert edge.then is (after.phase if after else None)
    said = action(before, edge.step, after, "because")
    assert (line(said) if said else "nothing") == follows
    assert edge.action is (type(said) if said else None)


def test_what_the_table_does_not_have_is_refused() -> None:
    assert len(TABLE) == len(EDGES) == len(EXPECTED.strip().splitlines())
    for phase in Phase:
        for step in Step:
            if (phase, step) not in EDGES:
                with pytest.raises(ValueError, match=f"partition 0 is {phase.value}: it cannot take the step"):
                    advance(partition(START[phase.value]), step, to=C, deadline_s=6.0, found=7)


@pytest.mark.parametrize("fence", ["fencing a1@4 a2@4 lost", "fencing a1@4 b1@5 lost"])
def test_the_mark_of_lost_reports_ends_with_the_epoch_they_belong_to(fence: str) -> None:
    after = advance(partition(fence), Step.FENCED)
    assert after is not None
    assert after.reports_lost == (after.epoch == 4)


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

HAN-08: the receiver dies while the partition is fenced for it
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, expire b: nothing
  fence: assign 1 to b1@2; status Holddown = partitions Ready Unbound
  settle = owners a a; epochs 1 3

HAN-08: the receiver starts anew while the partition is paused
  group 2, 1 flow
  bind b, sleep 5, bind b: resume 1 a1; status Ready; status Holddown
  settle = owners a b

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

HAN-04, REB-15: beside a partition that is stuck a new flow gets its share of the others
  group 4, 2 flows, fences wait
  expire a, sleep 5, fence 1, stuck 0, bind c, sleep 5 = Rebalancing; phases fencing owned paused paused
  drain, fence 1 2 3
  # partition 0 is counted as b's
  = Ready; owners a b c c

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
