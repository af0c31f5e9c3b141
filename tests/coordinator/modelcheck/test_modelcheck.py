"""Small explorations, and what they are worth: cores with one guard missing are caught, each within the same bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import flow_events, handoff, rebalance
from coordinator.core.draft import Draft
from coordinator.core.handoff import Step
from partq_spark.group.model import Flow, GroupState, Owner, Partition, Phase
from tests.coordinator.modelcheck.explore import Explorer, Failure, Result


def explore(flows: int, partitions: int, limit: int = 4000) -> Result:
    return Explorer(flows=flows, partitions=partitions, limit=limit).run()


@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("HAN-09")
@pytest.mark.parametrize("flows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_partition_to_the_end(flows: int) -> None:
    result = explore(flows, 1, limit=8000)
    assert result.complete
    assert result.states > 700
    assert result.longest_way_to_ready <= 6


@pytest.mark.slow
@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("DIS-05")
@pytest.mark.parametrize(("flows", "partitions"), [(2, 2), (3, 2), (3, 3)])
def test_the_beginning_of_larger_groups(flows: int, partitions: int) -> None:
    result = explore(flows, partitions)
    assert result.states >= 4000
    assert result.longest_way_to_ready <= 15


# --- cores with one guard missing -------------------------------------------------------------------------------------


def epoch_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "next_epoch", lambda p, found=0: max(p.epoch, p.to_epoch, found, 1))


def second_fence_at_the_same_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above what the owner has, but not above a fence that is in flight."""
    monkeypatch.setattr(handoff, "next_epoch", lambda p, found=0: max(p.epoch + 1, p.to_epoch, found))


def fencing_left_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver is lost, so the partition is taken for what it was before."""
    original = flow_events._detach

    def detach(draft: Draft, flow: Flow, reason: str) -> None:
        original(draft, flow, reason)
        for partition in list(draft.partitions.values()):
            if partition.to == Owner(flow.name, flow.instance) and partition.owner is not None:
                draft.put(replace(partition, phase=Phase.OWNED, to=None, to_epoch=0))

    monkeypatch.setattr(flow_events, "_detach", detach)


def drained_before_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drained now is handed over without a pause: more may have been delivered when the state is written."""
    original = Draft.step

    def step(self: Draft, number: int, what: Step, reason: str, **rest: Any) -> None:
        original(self, number, Step.GIVE if what is Step.MOVE else what, reason, **rest)

    monkeypatch.setattr(Draft, "step", step)


def pause_of_a_lost_receiver_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_events, "_detach", lambda draft, flow, reason: draft.unbind(flow))


def same_epoch_for_a_new_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that came back as a new instance gets the epoch that was meant for its former one."""

    def restore(partition: Partition, to: Owner | None, _deadline_s: float | None, _found: int) -> Partition:
        epoch = partition.to_epoch if partition.phase is Phase.FENCING else partition.epoch
        return replace(partition, phase=Phase.FENCING, to=to, to_epoch=epoch)

    monkeypatch.setitem(handoff._STEPS, Step.RESTORE, restore)


def receiver_taken_for_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fence forgets whose reports count: what the owner had in hand would not be marked."""
    original = handoff._fencing

    def fencing(partition: Partition, to: Owner | None, to_epoch: int, **rest: Any) -> Partition:
        if partition.phase is Phase.FENCING:
            partition = replace(partition, owner=partition.to, epoch=partition.to_epoch)
        return original(partition, to, to_epoch, **rest)

    monkeypatch.setattr(handoff, "_fencing", fencing)


def rebalance_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "end_if_done", lambda draft: None)


def the_others_wait_for_what_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_on_its_way(state: GroupState | Draft) -> bool:
        return any(p.phase in {Phase.FENCING, Phase.PAUSED} for p in state.partitions.values())

    monkeypatch.setattr(rebalance, "is_in_handoff", any_on_its_way)


def restored_at_a_higher_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not wrong, only another rule: shows that the check looks for what is wrong, not for what is different."""
    monkeypatch.setitem(handoff._STEPS, Step.RESTORE, handoff._give)


def retired_epochs_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def retire(self: Draft, gone: Partition) -> None:
        self.retired = {**self.retired, gone.partition: 0}
        del self.partitions[gone.partition]

    monkeypatch.setattr(Draft, "_retire", retire)


Mutation = Callable[[pytest.MonkeyPatch], None]
CAUGHT: list[tuple[Mutation, int, int, str]] = [
    (epoch_not_raised, 3, 1, "it cannot land"),
    (second_fence_at_the_same_epoch, 3, 1, "it cannot land"),
    (fencing_left_without_a_fence, 2, 2, "a fence is in flight that nobody waits for"),
    (drained_before_the_pause, 2, 2, "taken before it was drained"),
    (pause_of_a_lost_receiver_stays, 2, 2, "paused although its owner or its receiver is gone"),
    (same_epoch_for_a_new_receiver, 3, 1, "it cannot land"),
    (receiver_taken_for_the_owner, 3, 1, "a message is delivered again without being marked"),
    (rebalance_that_never_ends, 3, 1, "nothing leads out of"),
    (retired_epochs_forgotten, 2, 2, "was retired at 0"),
    (the_others_wait_for_what_is_stuck, 2, 1, "nothing leads out of"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "flows", "partitions", "sentence"), CAUGHT, ids=[mutation.__name__ for mutation, *_ in CAUGHT]
)
def test_caught(
    mutation: Mutation, flows: int, partitions: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    if mutation is not pause_of_a_lost_receiver_stays:
        # Nothing of this is wrong only because the core says so: what surrounds it is enough to notice.
        monkeypatch.setattr("tests.coordinator.modelcheck.canon.violations", lambda state: ())
    with pytest.raises(Failure, match=sentence):
        explore(flows, partitions, limit=30_000)


def test_what_is_not_wrong_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    restored_at_a_higher_epoch(monkeypatch)
    assert explore(2, 1, limit=40_000).complete
