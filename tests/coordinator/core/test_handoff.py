"""One partition's way: every edge of the table once, handoffs whose flows change or die (HAN), and checkpoints that
cannot be rewritten: then the partition waits, and nobody else does (REB-15).
"""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.events import FenceStuck
from coordinator.core.handoff import EDGES, TABLE, Edge, Step, action, advance
from partq_spark.group.model import Owner, Partition, PartitionStatus, Phase, RebalanceStatus
from tests.coordinator.core.context import DELAY_S, HANDOFF_S, Group, balanced, line

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
    (FREE, Step.GIVE): (
        Partition(partition=0, phase=FENCING, epoch=4, to=C, to_epoch=5),
        "fence 0 nobody@4 for c1@5",
    ),
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


@pytest.mark.conformance("HAN-01")
def test_the_order_is_pause_wait_remap_resume() -> None:
    group = balanced(2, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.log[-1] == "pause 1 a1 for b1"
    assert group.statuses() == {0: PartitionStatus.READY, 1: PartitionStatus.PAUSED}
    group.sleep(HANDOFF_S - 0.001)
    assert group.partition(1).phase is PAUSED
    group.log.clear()
    group.drain()
    assert group.log == ["fence 1 a1@1 for b1@2", "tell b1 active", "assign 1 to b1@2", "status Ready"]


@pytest.mark.conformance("HAN-08")
def test_the_receiver_dies_while_the_partition_is_paused() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.expire("b") == ["resume 2 a1", "resume 3 a1", "status Ready"]
    assert group.counts() == {"a": 4}
    assert {p.epoch for p in group.state.partitions.values()} == {1}


@pytest.mark.conformance("HAN-08")
def test_the_receiver_dies_and_another_flow_waits_for_it() -> None:
    group = balanced(4, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    group.bind("c")
    group.expire("b")
    assert group.status is RebalanceStatus.HOLDDOWN  # c waits for its share
    group.settle()
    assert group.counts() == {"a": 2, "c": 2}


@pytest.mark.conformance("HAN-08")
def test_the_receiver_dies_while_the_partition_is_fenced_for_it() -> None:
    group = balanced(2, 1, land_fences=False)
    group.bind("b")
    group.sleep(DELAY_S)
    group.drain()
    assert group.expire("b") == []
    assert group.fence() == ["assign 1 to b1@2", "status Holddown"]
    assert group.statuses()[1] is PartitionStatus.UNBOUND
    group.settle()
    assert group.owners() == {0: "a", 1: "a"}
    assert group.partition(1).epoch == 3


@pytest.mark.conformance("HAN-08")
def test_the_receiver_starts_anew_while_the_partition_is_paused() -> None:
    group = balanced(2, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    assert group.bind("b") == ["resume 1 a1", "status Ready", "status Holddown"]
    group.settle()
    assert group.owners() == {0: "a", 1: "b"}


@pytest.mark.conformance("HAN-08")
def test_the_receiver_starts_anew_while_the_partition_is_fenced_for_it() -> None:
    group = balanced(2, 1, land_fences=False)
    group.bind("b")
    group.sleep(DELAY_S)
    group.drain()
    assert group.bind("b") == ["fence 1 a1@1 for b2@3"]
    assert group.state.flows["b"].active
    group.settle()
    assert group.partition(1) == Partition(partition=1, phase=OWNED, epoch=3, owner=Owner("b", "b2"))


def test_the_owner_dies_while_the_partition_is_paused() -> None:
    group = balanced(4, 2, land_fences=False)
    group.bind("c")
    group.sleep(DELAY_S)
    assert group.expire("a") == ["fence 1 a1@1 for c1@2", "tell c1 active"]
    assert group.fence() == ["assign 1 to c1@2", "status Holddown"]
    assert group.statuses()[0] is PartitionStatus.UNBOUND
    group.settle()
    assert group.counts() == {"b": 2, "c": 2}


@pytest.mark.conformance("HAN-09")
def test_a_partition_that_is_planned_back_keeps_its_owner_and_epoch() -> None:
    group = balanced(2, 1)
    group.bind("b")
    group.sleep(DELAY_S)
    before = group.partition(1)
    assert (before.owner, before.epoch) == (("a", "a1"), 1)
    group.expire("b")
    assert group.partition(1) == Partition(partition=1, phase=OWNED, epoch=1, owner=Owner("a", "a1"))


@pytest.mark.conformance("HAN-09")
def test_a_partition_that_is_planned_back_after_the_fence_was_asked_for_goes_through_a_higher_epoch() -> None:
    """The receiver is lost between: whichever fence lands first, each names one owner, and the last one wins."""
    group = balanced(2, 2, delay_s=0, land_fences=False)
    group.alter([0])
    group.settle()  # b is a standby now
    assert group.expire("a") == ["fence 0 a1@1 for b1@2", "tell b1 active"]
    group.bind("a")
    assert group.expire("b") == ["fence 0 a1@1 for a2@3", "tell a2 active"]
    group.fence()
    assert group.partition(0) == Partition(partition=0, phase=OWNED, epoch=3, owner=Owner("a", "a2"))


READY, REBALANCING = RebalanceStatus.READY, RebalanceStatus.REBALANCING


def one_is_stuck() -> Group:
    """Of two flows with two partitions each `a` is lost, and the checkpoint of its partition 0 is damaged."""
    group = balanced(4, 2, land_fences=False)
    group.expire("a")
    group.sleep(DELAY_S)
    group.fence(1)
    assert group.status is REBALANCING
    group.stuck(0)
    return group


@pytest.mark.conformance("REB-15")
def test_a_lost_flows_healthy_partitions_are_given_away() -> None:
    group = one_is_stuck()
    assert group.status is READY
    assert group.owners() == {0: "a", 1: "b", 2: "b", 3: "b"}
    assert group.statuses()[0] is PartitionStatus.PAUSED
    assert group.partition(0).stuck == "it is damaged"
    assert group.sleep(1000) == []


@pytest.mark.conformance("HAN-04")
@pytest.mark.conformance("REB-15")
def test_a_new_flow_gets_its_share_of_the_others() -> None:
    group = one_is_stuck()
    group.bind("c")
    group.sleep(DELAY_S)
    assert group.status is REBALANCING
    assert group.partition(0).phase is Phase.FENCING
    group.drain()
    group.fence(1, 2, 3)
    assert group.status is READY
    assert group.counts() == {"b": 1, "c": 2}, "partition 0 is counted as b's"


@pytest.mark.conformance("REB-15")
def test_a_handoff_that_gets_stuck_ends_the_rebalance_of_the_others() -> None:
    """What was only remembered while it ran is looked at (REB-14)."""
    group = balanced(6, 2, land_fences=False)
    group.bind("c")
    group.sleep(DELAY_S + HANDOFF_S)
    moving = [n for n, p in group.state.partitions.items() if p.phase is Phase.FENCING]
    assert len(moving) == 2
    group.bind("d")
    group.fence(moving[1])
    group.stuck(moving[0])
    assert group.status is RebalanceStatus.HOLDDOWN, "for d, which came meanwhile"
    group.land_fences = True
    group.sleep(DELAY_S + HANDOFF_S)
    assert group.counts()["d"] >= 1


def test_who_was_to_get_it_may_be_lost_too() -> None:
    group = one_is_stuck()
    group.bind("c")
    group.sleep(DELAY_S + HANDOFF_S)
    group.fence(1, 2, 3)
    assert group.partition(0).to == Owner("b", "b1")
    epoch = group.partition(0).to_epoch
    group.expire("b")
    group.sleep(DELAY_S)
    group.fence(1, 2, 3)
    assert group.status is READY
    stuck = group.partition(0)
    assert (stuck.to, stuck.stuck) == (Owner("c", "c1"), "it is damaged"), "nobody waits for it again"
    assert stuck.to_epoch > epoch
    group.expire("c")
    group.sleep(DELAY_S)
    group.fence(1, 2, 3)
    assert group.status is READY
    assert group.statuses() == dict.fromkeys(range(4), PartitionStatus.UNASSIGNED)
    group.bind("d")
    group.fence()
    assert group.counts() == {"d": 4}


def test_it_heals_when_the_fence_lands() -> None:
    group = one_is_stuck()
    assert group.fence(0) == ["assign 0 to b1@2"]
    assert group.status is READY
    assert group.counts() == {"b": 4}
    assert group.partition(0).stuck == ""


def test_a_checkpoint_that_is_ahead_once_it_can_be_read() -> None:
    group = one_is_stuck()
    assert group.ahead(0, 7) == ["fence 0 a1@1 for b1@8 (reports lost)"]
    assert group.fence(0) == ["assign 0 to b1@8"]


def test_a_late_word_of_a_fence_that_is_not_waited_for_any_more_changes_nothing() -> None:
    group = one_is_stuck()
    before = group.state
    group.stuck(0, "another reason")
    assert group.state is before
    group.stuck(1)
    assert group.state is before, "it is owned"


def test_a_word_of_an_earlier_fence_makes_nobody_stuck() -> None:
    group = balanced(4, 2, land_fences=False)
    group.expire("a")
    group.sleep(DELAY_S)
    assert group.event(FenceStuck(partition=0, epoch=group.partition(0).to_epoch - 1, reason="an old one")) == []
    assert group.partition(0).stuck == ""
    assert group.status is REBALANCING
