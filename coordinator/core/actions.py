"""What follows from a decision, as values, each with its reason in words.

Only `Fence` asks for work outside the state: everything else tells flows and people what the new state means, and is
true as soon as that state is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from partq_spark.group.model import Owner


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """New messages of the partition are held back until the owner has acknowledged what it has, or the deadline."""

    partition: int
    owner: Owner
    to: Owner
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """Rewrite the partition's checkpoint for `to` (None: nobody) at `epoch`. What `owner` delivered at `owner_epoch`
    and did not acknowledge will be marked as redelivered.
    """

    partition: int
    owner: Owner | None
    owner_epoch: int
    to: Owner | None
    epoch: int
    reports_lost: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Assign:
    """The partition belongs to `owner` at `epoch` from now on, the fence being in place."""

    partition: int
    owner: Owner | None
    epoch: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """The pause is over, the partition stays where it was."""

    partition: int
    owner: Owner
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyFlow:
    """A FlowChangeUpdate (FLO-05): the flow has become active or inactive."""

    owner: Owner
    active: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeStatus:
    """The rebalancing status, or what it waits for, has changed."""

    status: str
    reason: str


Action = Pause | Fence | Assign | Resume | NotifyFlow | ChangeStatus
