"""One partition's way: every edge of the table once, handoffs whose flows change or die (HAN), and checkpoints that
cannot be rewritten: then the partition waits, and nobody else does (REB-15).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.draft import Draft
from coordinator.core.handoff import EDGES, TABLE, Cause, Step, advance
from partq_spark.group.model import Owner, Phase
from tests.coordinator.core.context import Group, histories, line, partition, run

C = Owner("c", "c1")
START = {
    "free": "free -@4",
    "owned": "owned a1@4",
    "paused": "paused a1@4 b1",
    "fencing": "fencing a1@4 b1@5 drained",
    "fencing stick": "fencing a1@4 b1@5",
    "fencing free": "fencing a1@4 -@5",
    "fencing drop": "fencing a1@4 -@5 removed",
}
EXPECTED = """
free fence give           = fencing -@4 c1@5                 = fence 0 nobody@4 for c1@5
free fence ahead          = fencing -@4 c1@8                 = fence 0 nobody@4 for c1@8
free drop remove          = gone                             = nothing
owned pause move          = paused a1@4 c1                   = pause 0 a1 for c1
owned fence give          = fencing a1@4 c1@5                = fence 0 a1@4 for c1@5
owned fence move          = fencing a1@4 c1@5                = fence 0 a1@4 for c1@5
owned fence restore       = fencing a1@4 c1@4                = fence 0 a1@4 for c1@4
owned fence release       = fencing a1@4 c1@5                = fence 0 a1@4 for c1@5
owned fence remove        = fencing a1@4 c1@5 removed        = fence 0 a1@4 for c1@5
owned fence ahead         = fencing a1@4 c1@8                = fence 0 a1@4 for c1@8
paused resume keep        = owned a1@4                       = resume 0 a1
paused fence drained      = fencing a1@4 c1@5 drained        = fence 0 a1@4 for c1@5 drained
paused fence deadline     = fencing a1@4 c1@5                = fence 0 a1@4 for c1@5
paused fence owner lost   = fencing a1@4 c1@5                = fence 0 a1@4 for c1@5
paused fence remove       = fencing a1@4 c1@5 removed        = fence 0 a1@4 for c1@5
paused fence ahead        = fencing a1@4 c1@8                = fence 0 a1@4 for c1@8
fencing assign fenced     = owned b1@5                       = assign 0 to b1@5
fencing free fenced       = free -@5                         = assign 0 to nobody@5
fencing drop fenced       = gone                             = assign 0 to nobody@5
fencing stick stuck       = fencing a1@4 b1@5 stuck          = nothing
fencing force deadline    = fencing a1@4 b1@5                = force 0 a1@4 for b1@5
fencing force owner lost  = fencing a1@4 b1@5                = force 0 a1@4 for b1@5
fencing fence give        = fencing a1@4 c1@6 drained        = fence 0 a1@4 for c1@6 drained
fencing fence move        = fencing a1@4 c1@6 drained        = fence 0 a1@4 for c1@6 drained
fencing fence restore     = fencing a1@4 c1@6 drained        = fence 0 a1@4 for c1@6 drained
fencing fence release     = fencing a1@4 c1@6 drained        = fence 0 a1@4 for c1@6 drained
fencing fence remove      = fencing a1@4 c1@6 drained removed = fence 0 a1@4 for c1@6 drained
fencing fence ahead       = fencing a1@4 c1@8                = fence 0 a1@4 for c1@8
"""
"""Phase, step and cause, the partition then, and what is told. Whom it is for, callers say: here c."""


@pytest.mark.parametrize("row", EXPECTED.strip().splitlines())
def test_edge(row: str) -> None:
    at, then, follows = (part.strip() for part in row.split(" = "))
    phase, step, cause = at.split(" ", 2)
    edge = EDGES[Phase(phase), Step(step)]
    draft = Draft(replace(Group(1).state, partitions={0: partition(START.get(f"{phase} {step}", START[phase]))}), 0.0)
    reason = "it is damaged" if edge.step is Step.STICK else "because"
    draft.step(0, edge.step, Cause(cause), reason, to=C, deadline_s=9.0, found=7 if cause == "ahead" else 0)
    after = draft.partitions.get(0)
    assert after == (partition(then) if then != "gone" else None)
    assert edge.then is (after.phase if after else None)
    (told,) = draft.told
    assert (told.partition, told.cause, told.reason) == (0, Cause(cause), reason)
    assert (line(told, draft._original, replace(draft._original, partitions=draft.partitions)) or "nothing") == follows


def test_what_the_table_does_not_have_is_refused() -> None:
    assert sum(len(edge.causes) for edge in TABLE) == len(EXPECTED.strip().splitlines())
    assert len(TABLE) == len(EDGES)
    for phase in Phase:
        for step in Step:
            edge = EDGES.get((phase, step))
            for cause in Cause:
                if edge is None or cause not in edge.causes:
                    with pytest.raises(ValueError, match=f"partition 0 is {phase.value}: it cannot take the step"):
                        advance(partition(START[phase.value]), step, cause, to=C, deadline_s=6.0, found=7)


TOLD = """
HAN-01: the order is pause, wait, remap, resume
  group 2, 1 flow
  bind b, sleep 5: status Rebalancing; pause 1 a1 for b1 = partitions Ready Paused
  sleep 2.999 = phases owned paused
  drain
  all: fence 1 a1@1 for b1@2 drained; tell b1 active; assign 1 to b1@2; status Ready

HAN-08, HAN-09: the receiver dies while partitions are paused, which keep their owner and epoch
  group 4, 1 flow
  bind b, sleep 5, expire b: resume 2 a1; resume 3 a1; status Ready
  = instances a1 a1 a1 a1; epochs 1 1 1 1; phases owned owned owned owned

HAN-08: the receiver dies while the partition is fenced for it
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, expire b: nothing
  fence: assign 1 to b1@2; status Holddown = partitions Ready Unbound
  settle = owners a a; epochs 1 3

HAN-02: what was drained and is open again waits until its owner closes it, and no longer than the handoff may take
  group 2, 1 flow, fences wait
  bind b, sleep 5, sleep 1, drain: fence 1 a1@1 for b1@2 drained; tell b1 active = due 2; drained 1
  sleep 2: force 1 a1@1 for b1@2 = due never; drained
  fence: assign 1 to b1@2; status Ready

HAN-02: what was drained does not wait for an owner who is lost
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, expire a: force 1 a1@1 for b1@2 = due never; drained

HAN-02: what was drained stays so for another receiver
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, bind b: fence 1 a1@1 for b2@3 drained = due 3; drained 1

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
