"""What can happen to a group, as values: each is a fact that was observed, with nothing left to look up. And what is
told of a decision, as values, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from coordinator.core.handoff import Cause
from partq_spark.group.model import GroupSettings, Owner


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowBound:
    """A heartbeat shows an instance that the state does not know. `mapping`: partition to epoch, as presented."""

    flow: str
    instance: str
    mapping: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowUnbound:
    """The flow asked to leave."""

    flow: str
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowExpired:
    """The flow's heartbeat stood still for its session timeout. Has the effect of `FlowUnbound` (FLO-06)."""

    flow: str
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionDrained:
    """The owner at this epoch has nothing in hand, as its checkpoint said after the pause was written."""

    partition: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFenced:
    """The checkpoint names `owner` (None: nobody) at `epoch`: the fence that was asked for is in place."""

    partition: int
    epoch: int
    owner: Owner | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FenceStuck:
    """The checkpoint could not be rewritten for `epoch`, and nobody knows when it can be. `reason` is for people. It is
    tried again all the same.
    """

    partition: int
    epoch: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointAhead:
    """The checkpoint of a partition has an epoch, an owner or an instance that the state does not explain: the
    ownership store has lost changes (OWN-04). `epoch` is the one found.
    """

    partition: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAltered:
    """The queue's settings, or the partitions that the group has to deliver. `partitions` lists all of them; `epochs`
    has the last epoch of those whose checkpoint exists, for numbers that come back.
    """

    settings: GroupSettings
    partitions: tuple[int, ...]
    epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: whatever is due by `now` happens."""


Event = (
    FlowBound
    | FlowUnbound
    | FlowExpired
    | PartitionDrained
    | PartitionFenced
    | FenceStuck
    | CheckpointAhead
    | QueueAltered
    | Tick
)


# --- what is told of a decision ---------------------------------------------------------------------------------------

# What a decision changed, as values, each told once with its reason in words. Nothing of it is carried out: what has to
# be done follows from the state.


NOBODY: Final = "nobody"
"""In place of a flow that gets a partition. No flow is called so by accident: it is a word of the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """One thing that happened: `event` is its word in the log. Of a partition: `cause`, whose it was (`flow`) and whose
    it becomes (`to`), by the names of flows, and its `epoch`. Of a flow: its `instance`. `status`: of the group, or
    `active` or `inactive`, of which a flow is told (FLO-05).
    """

    event: str
    partition: int | None = None
    cause: Cause | None = None
    flow: str | None = None
    to: str | None = None
    epoch: int | None = None
    instance: str | None = None
    status: str | None = None
    reason: str

    @property
    def facts(self) -> dict[str, str | int | None]:
        """All of it but the event's word."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "event"}
