"""What the checkpoints say against what the state says: a state from nothing, and the differences as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.events import Event
from partq_spark.flow.model import GroupSettings, GroupState, Owner


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What a partition's checkpoint says of its ownership. `owner` None: nobody."""

    epoch: int
    owner: Owner | None


def initial_state(
    *,
    queue_id: str,
    incarnation: str,
    settings: GroupSettings,
    partitions: Iterable[int],
    checkpoints: Mapping[int, Mark],
    session_timeout_s: float,
    now_s: float,
) -> GroupState:
    """The state of a group that has none: new, or lost with Redis. Owners in the checkpoints count as Unbound for
    `session_timeout_s` plus the rebalance delay, so that flows that still live can come back with their mapping.

    `checkpoints` may lack partitions (never fenced) and may have more than `partitions` (numbers that were removed).
    """
    raise NotImplementedError


def differences(state: GroupState, checkpoints: Mapping[int, Mark]) -> tuple[Event, ...]:
    """Events that bring the state in line with the checkpoints, to be fed to `decide` in order when a leader adopts.

    `PartitionFenced` for a fence that is in place already, `CheckpointAhead` for what the state does not explain. A
    checkpoint that is behind (lower epoch than the state's, or missing where the state names an owner) counts as
    unexplained too.
    """
    raise NotImplementedError
