"""One partition's way from owner to owner: the table of states first, then the code that follows it.

`TABLE` is the only list of what may happen to a partition; docs/handoff.md is written from it. When a step is taken is
not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from partq_spark.group.model import Owner, Partition, Phase


class Step(StrEnum):
    """What can happen to one partition."""

    PAUSE = "pause"
    RESUME = "resume"
    FENCE = "fence"
    FORCE = "force"
    ASSIGN = "assign"
    FREE = "free"
    DROP = "drop"
    STICK = "stick"


class Cause(StrEnum):
    """Why it happens."""

    GIVE = "give"
    MOVE = "move"
    KEEP = "keep"
    DRAINED = "drained"
    DEADLINE = "deadline"
    LOST = "owner lost"
    RESTORE = "restore"
    RELEASE = "release"
    REMOVE = "remove"
    AHEAD = "ahead"
    FENCED = "fenced"
    STUCK = "stuck"


class Edge(NamedTuple):
    """One edge: in `phase`, `step` leads to `then` (None: the partition is gone, its epoch is kept as retired), for
    one of these causes, each in words.
    """

    phase: Phase
    step: Step
    then: Phase | None
    causes: Mapping[Cause, str]


TABLE: tuple[Edge, ...] = (
    # --- nobody has it ------------------------------------------------------------------------------------------------
    Edge(
        Phase.FREE,
        Step.FENCE,
        Phase.FENCING,
        {
            Cause.GIVE: "it is mapped to a bound flow",
            Cause.AHEAD: "its checkpoint says something else: for nobody, above that",
        },
    ),
    Edge(Phase.FREE, Step.DROP, None, {Cause.REMOVE: "the queue has fewer partitions now"}),
    # --- a flow has it ------------------------------------------------------------------------------------------------
    Edge(Phase.OWNED, Step.PAUSE, Phase.PAUSED, {Cause.MOVE: "the plan moves it from one bound flow to another"}),
    Edge(
        Phase.OWNED,
        Step.FENCE,
        Phase.FENCING,
        {
            Cause.GIVE: "its owner is lost and another flow takes it",
            Cause.MOVE: "the plan moves it, and max-handoff-time is 0",
            Cause.RESTORE: "its flow came back and still has its mapping: the same epoch again",
            Cause.RELEASE: "its owner is lost, and no flow is bound when the delay ends: for nobody",
            Cause.REMOVE: "the queue has fewer partitions now: for nobody",
            Cause.AHEAD: "its checkpoint says something else: for the same owner, above that",
        },
    ),
    # --- a flow has it and gets nothing new ---------------------------------------------------------------------------
    Edge(Phase.PAUSED, Step.RESUME, Phase.OWNED, {Cause.KEEP: "the receiving flow is lost: same owner, same epoch"}),
    Edge(
        Phase.PAUSED,
        Step.FENCE,
        Phase.FENCING,
        {
            Cause.DRAINED: "its checkpoint says that its owner has nothing in hand: it is replaced if that is still so",
            Cause.DEADLINE: "max-handoff-time is over",
            Cause.LOST: "its owner is lost, the receiving flow is not",
            Cause.REMOVE: "the queue has fewer partitions now: for nobody",
            Cause.AHEAD: "its checkpoint says something else: for the receiving flow, above that",
        },
    ),
    # --- its checkpoint is being rewritten: left only by completing, or by another fence ------------------------------
    Edge(Phase.FENCING, Step.ASSIGN, Phase.OWNED, {Cause.FENCED: "it is done for a flow, bound or lost"}),
    Edge(Phase.FENCING, Step.FREE, Phase.FREE, {Cause.FENCED: "it is done for nobody"}),
    Edge(Phase.FENCING, Step.DROP, None, {Cause.FENCED: "it is done for nobody, and the partition was removed"}),
    Edge(Phase.FENCING, Step.STICK, Phase.FENCING, {Cause.STUCK: "it cannot be rewritten: nobody else waits for it"}),
    Edge(
        Phase.FENCING,
        Step.FORCE,
        Phase.FENCING,
        {
            Cause.DEADLINE: "it was drained and is open again, and max-handoff-time is over: it is replaced as it is",
            Cause.LOST: "the same, and its owner is lost",
        },
    ),
    Edge(
        Phase.FENCING,
        Step.FENCE,
        Phase.FENCING,
        {
            Cause.GIVE: "the receiving flow is lost, another one gets it: one epoch higher",
            Cause.MOVE: "the plan moves it to another flow: one epoch higher",
            Cause.RESTORE: "the receiving flow came back as a new instance: one epoch higher",
            Cause.RELEASE: "the receiving flow is lost, and no flow is bound when the delay ends: for nobody",
            Cause.REMOVE: "the queue has fewer partitions now: for nobody, one epoch higher",
            Cause.AHEAD: "its checkpoint says something else: for the same receiver, above that",
        },
    ),
)

EDGES: Mapping[tuple[Phase, Step], Edge] = {(edge.phase, edge.step): edge for edge in TABLE}


def advance(
    partition: Partition,
    step: Step,
    cause: Cause,
    *,
    to: Owner | None = None,
    deadline_s: float | None = None,
    found: int = 0,
    why: str = "",
) -> Partition | None:
    """The partition after `step`, None if it is gone. Raises ValueError where the table has no such edge or cause.

    `to`: who gets it (PAUSE, FENCE; None: nobody). `deadline_s`: when the pause ends at the latest (PAUSE). `found`:
    the epoch in the checkpoint (AHEAD). `why`: what keeps the fence from its place (STICK).
    """
    edge = EDGES.get((partition.phase, step))
    if edge is None or cause not in edge.causes:
        raise ValueError(
            f"partition {partition.partition} is {partition.phase.value}: it cannot take the step {step.value!r} "
            f"({cause.value})"
        )
    match step:
        case Step.PAUSE:
            return replace(partition, phase=Phase.PAUSED, to=to, deadline_s=deadline_s)
        case Step.RESUME:
            return replace(partition, phase=Phase.OWNED, to=None, deadline_s=None)
        case Step.FENCE:
            return _fenced(partition, cause, to, found)
        case Step.FORCE:
            return replace(partition, drained=False, deadline_s=None)
        case Step.ASSIGN:
            phase, owner = Phase.OWNED, partition.to
            return Partition(partition=partition.partition, phase=phase, epoch=partition.to_epoch, owner=owner)
        case Step.FREE:
            return Partition(partition=partition.partition, epoch=partition.to_epoch)
        case Step.DROP:
            return None
        case Step.STICK:
            return replace(partition, stuck=why)


def next_epoch(partition: Partition, found: int = 0) -> int:
    """The epoch of a new fence: above everything that was ever asked for, so that a late fence finds itself below."""
    return max(partition.epoch, partition.to_epoch, found) + 1


def _fenced(partition: Partition, cause: Cause, to: Owner | None, found: int) -> Partition:
    # Not while it is fenced: the former fence may be on its way, and both would have the same right.
    is_same = cause is Cause.RESTORE and partition.phase is Phase.OWNED
    # What was drained stays so, whoever gets it in the end, but for an owner of whom nothing is known.
    drained = cause is Cause.DRAINED or (partition.drained and cause is not Cause.AHEAD)
    return replace(
        partition,
        phase=Phase.FENCING,
        to=to,
        to_epoch=partition.epoch if is_same else next_epoch(partition, found),
        drained=drained,
        deadline_s=partition.deadline_s if drained else None,
        removed=partition.removed or cause is Cause.REMOVE,
    )
