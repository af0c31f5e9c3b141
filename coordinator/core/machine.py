"""`decide`, the only way in which a group's state changes, and what follows from a state by itself."""

from __future__ import annotations

from coordinator.core.actions import Action, Fence
from coordinator.core.events import Event
from partq_spark.flow.model import GroupState


def decide(state: GroupState, event: Event, now_s: float) -> tuple[GroupState, tuple[Action, ...]]:
    """The state after `event`, and what follows from it. The same arguments give the same answer.

    The very same `state` object comes back if nothing changed. Call it with `Tick` when `next_deadline` has passed.
    The actions are in order, and to be carried out after the new state was written. An event that is merely late
    changes nothing; one that cannot happen (partition -1) raises ValueError.
    """
    raise NotImplementedError


def pending(state: GroupState) -> tuple[Fence, ...]:
    """The fences that this state waits for, one for each partition in FENCING: what a new leader has to finish."""
    raise NotImplementedError


def next_deadline(state: GroupState) -> float | None:
    """When the next `Tick` is due, in the clock of `now_s`; None if nothing runs."""
    raise NotImplementedError
