"""What a flow may deliver, as values, and what the group's state says of it, as pure functions.

No I/O and no clock. `session` claims, delivers and acknowledges; `holdings` keeps count of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from partq_spark.group.model import AccessType, Flow, GroupState, Owner, Phase
from partq_spark.log.model import Origin


class Position(NamedTuple):
    """An offset of a partition, and the ownership that it belongs to."""

    epoch: int
    offset: int


class Standing(StrEnum):
    """How a flow stands in its group (FLO-04)."""

    UNANSWERED = "unanswered"  # the coordinator has not taken notice of this instance yet
    ACTIVE = "active"  # has partitions, or is getting one
    PENDING = "pending"  # waits for its share
    STANDBY = "standby"  # there is a flow for every partition already


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A partition that this flow has, as the deliverer of its messages sees it.

    `position` is the next offset to deliver. Messages below `redelivered_below` may have been delivered before, by
    this or another flow. While `paused` nothing new may be delivered; what was delivered is still acknowledged.
    """

    partition: int
    epoch: int
    position: int
    acknowledged: int  # as the checkpoint has it
    redelivered_below: int
    paused: bool
    origin: Origin | None = None  # as the checkpoint has it


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowChangeUpdate:
    """The flow has become active, or inactive (FLO-05, seed 002)."""

    active: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a flow has at one look. `lost` and `updates` are told exactly once, by the first look that could know.

    `lost` maps partitions whose claim is over to the epoch of that claim. One may come back: at another epoch, or at
    the same one, if this flow had to begin as a new instance and nobody else had the partition meanwhile.
    """

    instance: str
    standing: Standing
    claims: Mapping[int, Claim]
    lost: Mapping[int, int] = field(default_factory=dict)
    updates: tuple[FlowChangeUpdate, ...] = ()

    @property
    def deliverable(self) -> Mapping[int, Claim]:
        """The partitions whose messages may be delivered now."""
        return {partition: claim for partition, claim in self.claims.items() if not claim.paused}

    @property
    def paused(self) -> frozenset[int]:
        """The partitions that are held back until what was delivered is acknowledged."""
        return frozenset(partition for partition, claim in self.claims.items() if claim.paused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """The answer to a bind: the flow's partitions (FLO-03). `answered` is False if the coordinator did not answer in
    time; the flow stays bound and gets its partitions later.
    """

    view: View
    answered: bool

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that the flow has from the start, in order."""
        return tuple(sorted(self.view.claims))

    @property
    def standing(self) -> Standing:
        """Active, pending or standby."""
        return self.view.standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The state says that a partition is somebody's."""

    epoch: int
    paused: bool


def granted(state: GroupState, me: Owner) -> Mapping[int, Grant]:
    """The partitions that are `me`'s by the state, an instance like any other part of the name."""
    return {
        number: Grant(epoch=partition.epoch, paused=partition.phase is Phase.PAUSED)
        for number, partition in state.partitions.items()
        if partition.phase in (Phase.OWNED, Phase.PAUSED) and partition.owner == me
    }


def coming(state: GroupState, me: Owner) -> Mapping[int, int]:
    """The partitions whose checkpoints are being rewritten for `me`, and the epochs at which they will be."""
    return {
        number: partition.to_epoch
        for number, partition in state.partitions.items()
        if partition.phase is Phase.FENCING and partition.to == me
    }


def is_settling(state: GroupState, me: Owner) -> bool:
    """Whether partitions are about to become `me`'s without anybody having to wait for acknowledgements: they are
    being given to it, or taken from the last flow that left.
    """
    takers = {partition.to for partition in state.partitions.values() if partition.phase is Phase.FENCING}
    return me in takers or (None in takers and standing(state, me) is Standing.PENDING)


def flow_of(state: GroupState | None, me: Owner) -> Flow | None:
    """What the state says of this very instance, if it is bound there."""
    flow = None if state is None else state.flows.get(me.flow)
    return flow if flow is not None and flow.bound and flow.instance == me.instance else None


def standing(state: GroupState | None, me: Owner) -> Standing:
    """How `me` stands. A flow counts against it that has partitions or came earlier."""
    flow = flow_of(state, me)
    if state is None or flow is None:
        return Standing.UNANSWERED
    if flow.active:
        return Standing.ACTIVE
    before = [one for one in state.flows.values() if one.bound and (one.active or one.since < flow.since)]
    places = sum(not partition.removed for partition in state.partitions.values())
    if state.settings.access_type is AccessType.EXCLUSIVE:
        places = min(places, 1)
    return Standing.STANDBY if len(before) >= places else Standing.PENDING


def updates_since(flow: Flow, seen: int) -> tuple[FlowChangeUpdate, ...]:
    """The updates after the first `seen`, in order: each turns the flow over, and the last left it as it is now."""
    return tuple(
        FlowChangeUpdate(active=flow.active if (flow.updates - number) % 2 == 1 else not flow.active)
        for number in range(seen, flow.updates)
    )
