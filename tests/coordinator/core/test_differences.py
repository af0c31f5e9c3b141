"""A state from the checkpoints alone, and what a new leader does about differences between both (OWN)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.differences import CheckpointMark, differences, initial_state
from coordinator.core.events import CheckpointAhead, Event, PartitionFenced
from coordinator.core.invariants import violations
from coordinator.core.machine import next_deadline
from partq_spark.group.model import GroupSettings, GroupState, Owner, Partition, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, SESSION_S, Group, balanced, histories, run

A, A2, B, C = Owner("a", "a1"), Owner("a", "a2"), Owner("b", "b1"), Owner("c", "c1")


def from_checkpoints(checkpoints: dict[int, CheckpointMark], partitions: int = 3) -> GroupState:
    return initial_state(
        queue_id="q",
        incarnation="2",
        settings=GroupSettings(rebalance_delay_s=DELAY_S),
        partitions=range(partitions),
        checkpoints=checkpoints,
        session_timeout_s=SESSION_S,
        now_s=100.0,
    )


@pytest.mark.conformance("RES-04")
def test_a_group_that_nobody_has_had_is_ready() -> None:
    state = from_checkpoints({1: CheckpointMark(epoch=7, owner=None), 5: CheckpointMark(epoch=3, owner=A)})
    assert violations(state) == ()
    assert (state.status, next_deadline(state)) == (RebalanceStatus.READY, None)
    assert [p.epoch for p in state.partitions.values()] == [0, 7, 0]
    assert state.retired == {5: 3}


@pytest.mark.conformance("OWN-03")
def test_who_had_what_was_rewound_may_have_delivered_more() -> None:
    state = from_checkpoints(
        {0: CheckpointMark(epoch=7, owner=None, rewound=True), 1: CheckpointMark(epoch=7, owner=None)}
    )
    assert {number: partition.reports_lost for number, partition in state.partitions.items() if number < 2} == {
        0: True,
        1: False,
    }


def test_owners_in_the_checkpoints_count_as_unbound_for_a_session_timeout_and_the_delay() -> None:
    state = from_checkpoints(
        {
            0: CheckpointMark(epoch=4, owner=A),
            1: CheckpointMark(epoch=2, owner=B),
            2: CheckpointMark(epoch=9, owner=None),
        }
    )
    assert violations(state) == ()
    assert state.status is RebalanceStatus.HOLDDOWN
    assert next_deadline(state) == 100.0 + SESSION_S + DELAY_S
    assert state.partitions[0] == Partition(partition=0, phase=Phase.OWNED, epoch=4, owner=A, reports_lost=True)
    assert [(flow.name, flow.bound) for flow in state.flows.values()] == [("a", False), ("b", False)]


@pytest.mark.conformance("OWN-03")
def test_flows_that_still_live_go_on_with_what_they_have() -> None:
    group = balanced(4, 2)
    checkpoints = {n: CheckpointMark(epoch=p.epoch, owner=p.owner) for n, p in group.state.partitions.items()}
    mappings = {flow: group.mapping(flow) for flow in "ab"}
    group.state = initial_state(
        queue_id="q",
        incarnation="2",
        settings=group.settings,
        partitions=range(4),
        checkpoints=checkpoints,
        session_timeout_s=SESSION_S,
        now_s=group.now_s,
    )
    group.bind("a", mappings["a"])
    seen = [group.status]
    group.bind("b", mappings["b"])
    assert [*seen, group.status] == [RebalanceStatus.HOLDDOWN, RebalanceStatus.READY]
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert {p.epoch for p in group.state.partitions.values()} == {1}
    assert not any(entry.startswith("pause") for entry in group.log)


def test_partitions_of_flows_that_do_not_come_back_go_to_who_does() -> None:
    group = Group(3)
    group.state = from_checkpoints({0: CheckpointMark(epoch=4, owner=A), 1: CheckpointMark(epoch=2, owner=B)})
    group.now_s = 100.0
    group.instances["a"] = 1
    assert group.bind("a", {0: 4}) == ["fence 0 a1@4 for a2@4 (reports lost)"]
    assert group.sleep(SESSION_S + DELAY_S) == [
        "status Rebalancing",
        "fence 1 b1@2 for a2@3 (reports lost)",
        "fence 2 nobody@0 for a2@1",
    ]
    assert group.status is RebalanceStatus.READY


def fencing(to: Owner | None, to_epoch: int, epoch: int = 4) -> Partition:
    return Partition(partition=0, phase=Phase.FENCING, epoch=epoch, owner=A, to=to, to_epoch=to_epoch)


FREE = Partition(partition=0, epoch=4)
OWNED = Partition(partition=0, phase=Phase.OWNED, epoch=4, owner=A)
PAUSED = Partition(partition=0, phase=Phase.PAUSED, epoch=4, owner=A, to=B, deadline_s=1.0)


@pytest.mark.conformance("OWN-04")
@pytest.mark.parametrize(
    ("partition", "mark", "expected"),
    [
        (FREE, CheckpointMark(epoch=4, owner=None), None),
        (FREE, CheckpointMark(epoch=4, owner=None, rewound=True), None),
        (FREE, None, None),
        (FREE, CheckpointMark(epoch=3, owner=None), None),
        (FREE, CheckpointMark(epoch=5, owner=None), CheckpointAhead(partition=0, epoch=5)),
        (FREE, CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        (OWNED, CheckpointMark(epoch=4, owner=A), None),
        (OWNED, CheckpointMark(epoch=4, owner=A, rewound=True), None),
        (OWNED, CheckpointMark(epoch=4, owner=A2), CheckpointAhead(partition=0, epoch=4)),
        (OWNED, CheckpointMark(epoch=6, owner=A), CheckpointAhead(partition=0, epoch=6)),
        (OWNED, CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
        (OWNED, None, CheckpointAhead(partition=0, epoch=4)),
        (PAUSED, CheckpointMark(epoch=4, owner=A), None),
        (PAUSED, CheckpointMark(epoch=5, owner=B), CheckpointAhead(partition=0, epoch=5)),
        (fencing(B, 6), CheckpointMark(epoch=4, owner=A), None),
        (fencing(B, 6), CheckpointMark(epoch=5, owner=C), None),  # a fence that was given up has landed
        (fencing(B, 6), CheckpointMark(epoch=6, owner=B), PartitionFenced(partition=0, epoch=6, owner=B)),
        (fencing(B, 6), CheckpointMark(epoch=6, owner=B, rewound=True), PartitionFenced(partition=0, epoch=6, owner=B)),
        (fencing(B, 6), CheckpointMark(epoch=6, owner=C), CheckpointAhead(partition=0, epoch=6)),
        (fencing(B, 6), CheckpointMark(epoch=8, owner=None), CheckpointAhead(partition=0, epoch=8)),
        (
            fencing(None, 6),
            CheckpointMark(epoch=6, owner=None),
            None,
        ),  # or a rewind: repeated, for what A delivered after it
        (fencing(A2, 4), CheckpointMark(epoch=4, owner=A), None),
        (fencing(A2, 4), CheckpointMark(epoch=4, owner=A2), PartitionFenced(partition=0, epoch=4, owner=A2)),
        (fencing(A2, 4), CheckpointMark(epoch=4, owner=C), CheckpointAhead(partition=0, epoch=4)),
        (fencing(A2, 4), CheckpointMark(epoch=3, owner=A), CheckpointAhead(partition=0, epoch=4)),
    ],
)
def test_difference(partition: Partition, mark: CheckpointMark | None, expected: Event | None) -> None:
    state = replace(from_checkpoints({}, partitions=1), partitions={0: partition})
    assert differences(state, {0: mark} if mark else {}) == ((expected,) if expected else ())


TOLD = """
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
