"""A state from the checkpoints alone, and what a new leader does about differences between both (OWN)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.differences import CheckpointMark, differences
from coordinator.core.events import CheckpointAhead, Event, PartitionFenced
from partq_spark.group.model import Owner
from tests.coordinator.core.context import Group, histories, partition, run

A, A2, B, C = Owner("a", "a1"), Owner("a", "a2"), Owner("b", "b1"), Owner("c", "c1")
BS = PartitionFenced(partition=0, epoch=6, owner=B)


@pytest.mark.conformance("OWN-04")
@pytest.mark.parametrize(
    ("held", "mark", "expected"),
    [
        ("free -@4", CheckpointMark(epoch=4, owner=None), None),
        ("free -@4", CheckpointMark(epoch=4, owner=None, rewound=True), None),
        ("free -@4", None, None),
        ("free -@4", CheckpointMark(epoch=3, owner=None), None),
        ("free -@4", CheckpointMark(epoch=5, owner=None), CheckpointAhead(partition=0, epoch=5)),
        ("free -@4", CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", CheckpointMark(epoch=4, owner=A), None),
        ("owned a1@4", CheckpointMark(epoch=4, owner=A, rewound=True), None),
        ("owned a1@4", CheckpointMark(epoch=4, owner=A2), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", CheckpointMark(epoch=6, owner=A), CheckpointAhead(partition=0, epoch=6)),
        ("owned a1@4", CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        ("owned a1@4", None, CheckpointAhead(partition=0, epoch=4)),
        ("paused a1@4 b1", CheckpointMark(epoch=4, owner=A), None),
        ("paused a1@4 b1", CheckpointMark(epoch=5, owner=B), CheckpointAhead(partition=0, epoch=5)),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=4, owner=A), None),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=5, owner=C), None),  # a fence that was given up has landed
        ("fencing a1@4 b1@6", CheckpointMark(epoch=6, owner=B), BS),
        (
            "fencing a1@4 b1@6",
            CheckpointMark(epoch=6, owner=B, rewound=True),
            PartitionFenced(partition=0, epoch=6, owner=B),
        ),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=6, owner=C), CheckpointAhead(partition=0, epoch=6)),
        ("fencing a1@4 b1@6", CheckpointMark(epoch=8, owner=None), CheckpointAhead(partition=0, epoch=8)),
        # or a rewind: repeated, for what A delivered after it
        ("fencing a1@4 -@6", CheckpointMark(epoch=6, owner=None), None),
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
  find none -@7 none none none -@3 = Ready; due never; epochs 0 7 0; retired 5@3; reports-lost

OWN-03: who had what was rewound may have delivered more
  group 3, 0 flows, fences wait
  find -@7r -@7 = Ready; reports-lost 0

OWN-03: owners in the checkpoints count as unbound for a session timeout and the delay
  group 3, 0 flows, fences wait
  find a1@4 b1@2 -@9 = Holddown; due 15; phases owned owned free; epochs 4 2 9; instances a1 b1 -; reports-lost 0 1
  = known a b; partitions Unbound Unbound Unassigned

OWN-03: flows that still live go on with what they have
  group 3, 0 flows, fences wait
  find a1@1 b1@1 b1@1
  bind a with 0@1: fence 0 a1@1 for a2@1 (reports lost) = Holddown
  bind b with 1@1 2@1, fence = Ready; instances a2 b2 b2; epochs 1 1 1; handoffs 0

OWN-03: partitions of flows that do not come back go to who does
  group 3, 0 flows, fences wait
  find a1@4 b1@2 none
  bind a with 0@4: fence 0 a1@4 for a2@4 (reports lost)
  fence, sleep 15: status Rebalancing; fence 1 b1@2 for a2@3 (reports lost); fence 2 nobody@0 for a2@1
  fence = Ready

OWN-04: a state from an old copy is brought above the checkpoints
  # Redis has jumped back to when a had both; since then b got partition 1, at epoch 2.
  group 2, 1 flow
  ahead 1 2: fence 1 a1@1 for a1@3 (reports lost) = Ready; instances a1 a1; epochs 1 3; reports-lost

OWN-04: a checkpoint that is ahead during a handoff ends the pause
  group 2, 1 flow, fences wait
  bind b, sleep 5, ahead 1 5: fence 1 a1@1 for b1@6 (reports lost); tell b1 active
  # found again before the fence has landed
  ahead 1 5: nothing
  ahead 1 6: fence 1 a1@1 for b1@7 (reports lost)
  fence = owners a b; Ready

OWN-04: a checkpoint of nobody's partition that is ahead
  group 1, 0 flows, fences wait
  ahead 0 3: fence 0 nobody@0 for nobody@4 (reports lost)
  fence = owners -; epochs 4; reports-lost
  ahead 0 7, bind a: fence 0 nobody@4 for a1@9 (reports lost)

OWN-03: lost reports are remembered until the epoch ends
  group 2, 1 flow
  lose-reports: nothing = reports-lost 0 1
  bind b, sleep 5, sleep 100: fence 1 a1@1 for b1@2 (reports lost); tell b1 active = reports-lost 0

OWN-03: nobody could have reported anything of what nobody has
  group 1, 0 flows
  lose-reports: nothing = reports-lost
"""


@histories(TOLD)
def test_history(lines: list[str]) -> None:
    run(lines)
