"""One partition's way from owner to owner: the table of states first, then the code that follows it.

`TABLE` is the only list of what may happen to a partition; docs/handoff.md is written from it. When a step is taken is
not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator.core.actions import Action, Assign, Fence, Pause, Resume
from partq_spark.group.model import Owner, Partition, Phase


class Step(StrEnum):
    """What can happen to one partition."""

    GIVE = "give"
    MOVE = "move"
    KEEP = "keep"
    DRAINED = "drained"
    DEADLINE = "deadline"
    OWNER_LOST = "owner lost"
    RESTORE = "restore"
    RELEASE = "release"
    REMOVE = "remove"
    AHEAD = "ahead"
    FENCED = "fenced"
    FREED = "freed"
    DROPPED = "dropped"
    STUCK = "stuck"


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """One edge: in `phase`, `step` leads to `then` (None: the partition is gone, its epoch is kept as retired)."""

    phase: Phase
    step: Step
    then: Phase | None
    action: type[Action] | None
    when: str


def _in(phase: Phase, step: Step, then: Phase | None, action: type[Action] | None, when: str) -> Edge:
    return Edge(phase=phase, step=step, then=then, action=action, when=when)


_FREE, _OWNED, _PAUSED, _FENCING = Phase.FREE, Phase.OWNED, Phase.PAUSED, Phase.FENCING

TABLE: tuple[Edge, ...] = (
    # --- nobody has it ------------------------------------------------------------------------------------------------
    _in(_FREE, Step.GIVE, _FENCING, Fence, "it is mapped to a bound flow"),
    _in(_FREE, Step.REMOVE, None, None, "the queue has fewer partitions now"),
    _in(_FREE, Step.AHEAD, _FENCING, Fence, "its checkpoint says something else: fenced for nobody, above that"),
    # --- a flow has it ------------------------------------------------------------------------------------------------
    _in(_OWNED, Step.MOVE, _PAUSED, Pause, "the plan moves it from one bound flow to another"),
    _in(_OWNED, Step.GIVE, _FENCING, Fence, "its owner is lost and another flow takes it; or max-handoff-time is 0"),
    _in(_OWNED, Step.RESTORE, _FENCING, Fence, "its flow came back and still has its mapping: the same epoch again"),
    _in(_OWNED, Step.RELEASE, _FENCING, Fence, "its owner is lost, and no flow is bound when the delay ends"),
    _in(_OWNED, Step.REMOVE, _FENCING, Fence, "the queue has fewer partitions now: fenced for nobody"),
    _in(_OWNED, Step.AHEAD, _FENCING, Fence, "its checkpoint says something else: the same owner, above that"),
    # --- a flow has it and gets nothing new ---------------------------------------------------------------------------
    _in(_PAUSED, Step.DRAINED, _FENCING, Fence, "all that was delivered is acknowledged"),
    _in(_PAUSED, Step.DEADLINE, _FENCING, Fence, "max-handoff-time is over"),
    _in(_PAUSED, Step.OWNER_LOST, _FENCING, Fence, "its owner is lost, the receiving flow is not"),
    _in(_PAUSED, Step.KEEP, _OWNED, Resume, "the receiving flow is lost: it stays with its owner, same epoch"),
    _in(_PAUSED, Step.REMOVE, _FENCING, Fence, "the queue has fewer partitions now: fenced for nobody"),
    _in(_PAUSED, Step.AHEAD, _FENCING, Fence, "its checkpoint says something else: the receiving flow, above that"),
    # --- its checkpoint is being rewritten: left only by completing, or by another fence ------------------------------
    _in(_FENCING, Step.FENCED, _OWNED, Assign, "the fence for a flow is in place, that flow being bound or lost"),
    _in(_FENCING, Step.FREED, _FREE, Assign, "the fence for nobody is in place"),
    _in(_FENCING, Step.DROPPED, None, Assign, "the fence for nobody is in place and the partition was removed"),
    _in(_FENCING, Step.STUCK, _FENCING, None, "its checkpoint cannot be rewritten: nobody else waits for it any more"),
    _in(_FENCING, Step.GIVE, _FENCING, Fence, "another flow gets it: one epoch higher"),
    _in(_FENCING, Step.RESTORE, _FENCING, Fence, "the receiving flow came back as a new instance: one epoch higher"),
    _in(
        _FENCING, Step.RELEASE, _FENCING, Fence, "the receiving flow is lost, and no flow is bound when the delay ends"
    ),
    _in(_FENCING, Step.REMOVE, _FENCING, Fence, "the queue has fewer partitions now: fenced for nobody, one higher"),
    _in(_FENCING, Step.AHEAD, _FENCING, Fence, "its checkpoint says something else: the same receiver, above that"),
)

EDGES: Mapping[tuple[Phase, Step], Edge] = {(edge.phase, edge.step): edge for edge in TABLE}


def advance(
    partition: Partition,
    step: Step,
    *,
    to: Owner | None = None,
    deadline_s: float | None = None,
    found: int = 0,
    why: str = "",
) -> Partition | None:
    """The partition after `step`, None if it is gone. Raises ValueError where the table has no such edge.

    `to`: who gets it (GIVE, MOVE, RESTORE). `deadline_s`: when the pause ends at the latest (MOVE). `found`: the
    epoch in the checkpoint (AHEAD). `why`: what keeps the fence from its place (STUCK).
    """
    if (partition.phase, step) not in EDGES:
        raise ValueError(
            f"partition {partition.partition} is {partition.phase.value}: it cannot take the step {step.value!r}"
        )
    if step is Step.STUCK:
        return replace(partition, stuck=why)
    return _STEPS[step](partition, to, deadline_s, found)


def action(before: Partition, step: Step, after: Partition | None, reason: str) -> Action | None:
    """What follows from a step that was taken."""
    kind = EDGES[before.phase, step].action
    if kind is Assign:
        return Assign(partition=before.partition, owner=before.to, epoch=before.to_epoch, reason=reason)
    if after is None or kind is None:
        return None
    if kind is Fence:
        return fence(after, reason)
    if kind is Pause and after.owner is not None and after.to is not None:
        return Pause(partition=after.partition, owner=after.owner, to=after.to, reason=reason)
    if kind is Resume and after.owner is not None:
        return Resume(partition=after.partition, owner=after.owner, reason=reason)
    raise ValueError(f"partition {before.partition}: {step.value} gave {after}")


def fence(partition: Partition, reason: str) -> Fence:
    """The fence that a partition in FENCING waits for."""
    return Fence(
        partition=partition.partition,
        owner=partition.owner,
        owner_epoch=partition.epoch,
        to=partition.to,
        epoch=partition.to_epoch,
        reports_lost=partition.reports_lost,
        reason=reason,
    )


# --- the steps --------------------------------------------------------------------------------------------------------


def next_epoch(partition: Partition, found: int = 0) -> int:
    """The epoch of a new fence: above everything that was ever asked for, so that a late fence finds itself below."""
    return max(partition.epoch, partition.to_epoch, found) + 1


def _fencing(partition: Partition, to: Owner | None, to_epoch: int, *, reports_lost: bool, removed: bool) -> Partition:
    return Partition(
        partition=partition.partition,
        phase=_FENCING,
        epoch=partition.epoch,
        owner=partition.owner,
        to=to,
        to_epoch=to_epoch,
        reports_lost=reports_lost,
        removed=removed,
        stuck=partition.stuck,  # another fence does not mend the checkpoint: what waited once does not wait again
    )


def _give(partition: Partition, to: Owner | None, _deadline_s: float | None, _found: int) -> Partition:
    return _fencing(
        partition, to, next_epoch(partition), reports_lost=partition.reports_lost, removed=partition.removed
    )


def _to_receiver(partition: Partition, _to: Owner | None, deadline_s: float | None, found: int) -> Partition:
    return _give(partition, partition.to, deadline_s, found)


def _release(partition: Partition, _to: Owner | None, deadline_s: float | None, found: int) -> Partition:
    return _give(partition, None, deadline_s, found)


def _restore(partition: Partition, to: Owner | None, deadline_s: float | None, found: int) -> Partition:
    if partition.phase is _FENCING:
        # Not the same epoch again: the former fence may be on its way, and both would have the same right.
        return _give(partition, to, deadline_s, found)
    return _fencing(partition, to, partition.epoch, reports_lost=partition.reports_lost, removed=partition.removed)


def _remove(partition: Partition, _to: Owner | None, _deadline_s: float | None, _found: int) -> Partition | None:
    if partition.phase is _FREE:
        return None
    return _fencing(partition, None, next_epoch(partition), reports_lost=partition.reports_lost, removed=True)


def _ahead(partition: Partition, _to: Owner | None, _deadline_s: float | None, found: int) -> Partition:
    to = partition.owner if partition.phase is _OWNED else partition.to  # PAUSED: no use waiting for what is lost
    return _fencing(partition, to, next_epoch(partition, found), reports_lost=True, removed=partition.removed)


def _move(partition: Partition, to: Owner | None, deadline_s: float | None, _found: int) -> Partition:
    return Partition(
        partition=partition.partition,
        phase=_PAUSED,
        epoch=partition.epoch,
        owner=partition.owner,
        to=to,
        deadline_s=deadline_s,
        reports_lost=partition.reports_lost,
    )


def _keep(partition: Partition, _to: Owner | None, _deadline_s: float | None, _found: int) -> Partition:
    return Partition(
        partition=partition.partition,
        phase=_OWNED,
        epoch=partition.epoch,
        owner=partition.owner,
        reports_lost=partition.reports_lost,
    )


def _fenced(partition: Partition, _to: Owner | None, _deadline_s: float | None, _found: int) -> Partition:
    return Partition(
        partition=partition.partition,
        phase=_OWNED,
        epoch=partition.to_epoch,
        owner=partition.to,
        # What the former instance delivered at this epoch is still part of this epoch.
        reports_lost=partition.reports_lost and partition.to_epoch == partition.epoch,
    )


def _freed(partition: Partition, _to: Owner | None, _deadline_s: float | None, _found: int) -> Partition:
    return Partition(partition=partition.partition, phase=_FREE, epoch=partition.to_epoch)


def _dropped(_partition: Partition, _to: Owner | None, _deadline_s: float | None, _found: int) -> None:
    return None


_STEPS = {
    Step.GIVE: _give,
    Step.MOVE: _move,
    Step.KEEP: _keep,
    Step.DRAINED: _to_receiver,
    Step.DEADLINE: _to_receiver,
    Step.OWNER_LOST: _to_receiver,
    Step.RESTORE: _restore,
    Step.RELEASE: _release,
    Step.REMOVE: _remove,
    Step.AHEAD: _ahead,
    Step.FENCED: _fenced,
    Step.FREED: _freed,
    Step.DROPPED: _dropped,
}
