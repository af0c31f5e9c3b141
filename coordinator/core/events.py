"""What can happen to a group, as values: each is a fact that was observed, with nothing left to look up; what the
checkpoints say against the state, as such facts; and what is told of a decision, as values, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from coordinator.core.handoff import Cause
from partq_spark.group.model import Flow, GroupSettings, GroupState, Owner, Partition, Phase, RebalanceStatus


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


# --- what the checkpoints say against the state -----------------------------------------------------------------------

# A state from nothing, and the differences as events.


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointMark:
    """What a partition's checkpoint says of its ownership. `owner` None: nobody."""

    epoch: int
    owner: Owner | None


_NO_MARK = CheckpointMark(epoch=0, owner=None)  # there is no checkpoint: never fenced


def initial_state(
    *,
    queue_id: str,
    settings: GroupSettings,
    partitions: Iterable[int],
    checkpoints: Mapping[int, CheckpointMark],
    session_timeout_s: float,
    now_s: float,
) -> GroupState:
    """The state of a group that has none: new, or lost with Redis. Owners in the checkpoints count as Unbound for
    `session_timeout_s` plus the rebalance delay, so that flows that still live can come back with their mapping.

    `checkpoints` may lack partitions (never fenced, or damaged: the fence will find that its epoch is too low once it
    can be read) and may have more than `partitions` (numbers that were removed).
    """
    numbers = sorted(set(partitions))
    group: dict[int, Partition] = {}
    flows: dict[str, Flow] = {}
    for number in numbers:
        mark = checkpoints.get(number, _NO_MARK)
        if mark.owner is None:
            group[number] = Partition(partition=number, epoch=mark.epoch)
            continue
        group[number] = Partition(partition=number, phase=Phase.OWNED, epoch=mark.epoch, owner=mark.owner)
        name, instance = mark.owner
        flows.setdefault(name, Flow(name=name, instance=instance, bound=False, since=0))
    return GroupState(
        queue_id=queue_id,
        settings=settings,
        partitions=group,
        flows=flows,
        retired={number: mark.epoch for number, mark in sorted(checkpoints.items()) if number not in group},
        status=RebalanceStatus.HOLDDOWN if flows else RebalanceStatus.READY,
        holddown_until_s=now_s + session_timeout_s + settings.rebalance_delay_s if flows else None,
    )


def differences(
    state: GroupState, checkpoints: Mapping[int, CheckpointMark], damaged: Container[int] = ()
) -> tuple[Event, ...]:
    """Events that bring the state in line with the checkpoints, to be fed to `decide` in order when a leader adopts.

    `PartitionFenced` for a fence that is in place already, `CheckpointAhead` for what the state does not
    explain. A checkpoint that is behind (lower epoch than the state's, or missing where the state names an owner)
    counts as unexplained too. Partitions that the state does not have are left to `QueueAltered.epochs`. What is
    `damaged` says nothing: the state stands.
    """
    events = (
        _difference(partition, checkpoints.get(number, _NO_MARK))
        for number, partition in state.partitions.items()
        if number not in damaged
    )
    return tuple(event for event in events if event is not None)


def _difference(partition: Partition, mark: CheckpointMark) -> Event | None:
    if partition.phase is Phase.FREE:
        # One that is behind harms nobody: the next fence goes above both.
        explained = mark.owner is None and mark.epoch <= partition.epoch
    elif partition.phase is not Phase.FENCING:
        explained = mark == CheckpointMark(epoch=partition.epoch, owner=partition.owner)
    elif mark == CheckpointMark(epoch=partition.to_epoch, owner=partition.to):
        return PartitionFenced(partition=partition.partition, epoch=mark.epoch, owner=mark.owner)
    elif partition.to_epoch == partition.epoch:
        explained = mark == CheckpointMark(epoch=partition.epoch, owner=partition.owner)
    else:
        # Still the owner's, or an earlier fence has landed that was given up since: the pending one goes above.
        explained = mark.epoch < partition.to_epoch
    if explained:
        return None
    return CheckpointAhead(partition=partition.partition, epoch=max(mark.epoch, partition.epoch))


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
