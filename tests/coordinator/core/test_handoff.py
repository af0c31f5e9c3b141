"""One partition's way: where each step of the table leads, handoffs whose flows change or die (HAN), and checkpoints
that cannot be rewritten: then the partition waits, and nobody else does (REB-15).
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from coordinator.core.handoff import EDGES, TABLE, Cause, Step, advance
from partq_spark.group.model import Owner, Phase
from tests.coordinator.core.context import histories, partition, run
from tools.from_code import HANDOFF, handoff_page

START = {"free": "free -@4", "owned": "owned a1@4", "paused": "paused a1@4 b1", "fencing": "fencing a1@4 b1@5 drained"}


def test_each_step_leads_where_the_table_says_and_what_it_does_not_have_is_refused() -> None:
    """What becomes of owners, epochs and deadlines is in the histories."""
    assert len(TABLE) == len(EDGES)
    for phase, step, cause in product(Phase, Step, Cause):
        edge, before = EDGES.get((phase, step)), partition(START[phase.value])
        take = partial(advance, before, step, cause, to=Owner("c", "c1"), deadline_s=6.0, found=7)
        if edge is not None and cause in edge.causes:
            after = take()
            assert edge.then is (after.phase if after else None)
        else:
            with pytest.raises(ValueError, match=f"partition 0 is {phase.value}: it cannot take the step"):
                take()


def test_the_document_draws_the_table_as_it_is() -> None:
    text = HANDOFF.read_text(encoding="utf-8")
    assert handoff_page(text) == text, "run scripts/docs --write"


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

OWN-04: what was drained does not stay so where the checkpoint says something else
  group 2, 1 flow, fences wait
  bind b, sleep 5, drain, ahead 1 5: fence 1 a1@1 for b1@6 = due never; drained

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
