"""Who has which partition, and why one does not flow, worked out from what the stores say. Pure, without I/O.

Nothing here decides anything. The four partition statuses are those of seed 001 (FLO-01); every partition that does not
deliver gets its reason in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from partq_spark.base.words import plural
from partq_spark.group import left_out
from partq_spark.group.claims import flow_of
from partq_spark.group.lifecycle import GroupProgress
from partq_spark.group.model import (
    Checkpoint,
    FlowRecord,
    GroupKey,
    GroupSettings,
    GroupState,
    Lease,
    Partition,
    PartitionStatus,
    Phase,
    Progress,
    RebalanceStatus,
)
from partq_spark.log import layouts
from partq_spark.log.model import at

SILENT_LEADER_S = 10.0  # a leader renews about once a second; longer silence is told to people


@dataclass(frozen=True, kw_only=True, slots=True)
class HandoffView:
    """A handoff under way. `remaining_s` is None where nothing is waited for any more."""

    to: str | None
    remaining_s: float | None
    waiting_for: int  # messages that were delivered and are not acknowledged


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionView:
    """One partition. Offsets are exclusive ends; None: not known. `lag_s` is the age of the oldest message that is not
    acknowledged, 0 without lag; it is found in the log, where this picture is taken. `reason` is empty where messages
    flow.
    """

    partition: int
    status: PartitionStatus
    flow: str | None
    epoch: int
    acknowledged: int
    delivered: int | None
    end: int
    handoff: HandoffView | None
    reason: str
    lag_s: float | None = None

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged."""
        return max(self.end - self.acknowledged, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowView:
    """One flow. `last_seen_s`: since its last heartbeat, by the ownership store's clock; None: it has none. `note` is
    what it says of itself. `silent`: it has no heartbeat, or none for more than half of its session timeout.
    """

    flow: str
    active: bool
    bound: bool
    partitions: tuple[int, ...]
    last_seen_s: float | None
    note: str = ""
    silent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorView:
    """Who leads the group, and how long ago it said so last, by the clock of the place where ownership is kept."""

    leader: str | None
    age_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupView:
    """Everything that `partq status` shows of a group. `notes` concern the group as a whole."""

    namespace: str
    queue: str
    group: str
    rebalance_status: RebalanceStatus
    rebalance_deadline_s: float | None
    scale_status: str
    partitions: tuple[PartitionView, ...]
    flows: tuple[FlowView, ...]
    coordinator: CoordinatorView
    notes: tuple[str, ...] = ()
    damaged: tuple[int, ...] = ()  # partitions that get on only when somebody does what their `reason` says


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupReading:
    """What was read, each part once. `state` has its deadlines as remaining seconds when it was written,
    `state_age_s` ago; the lease's timers, if they belong to the same state, are fresher.
    """

    key: GroupKey
    progress: GroupProgress
    kept: bool = True  # False: no ownership was asked, there is nothing but checkpoints
    away: str = ""  # why what the ownership says cannot be read now: there is nothing but checkpoints
    state: GroupState | None = None
    state_token: str | None = None
    state_age_s: float = 0.0
    records: Mapping[str, FlowRecord] = field(default_factory=dict)
    beats_age_s: Mapping[str, float] = field(default_factory=dict)
    damaged_flows: Mapping[str, str] = field(default_factory=dict)  # that cannot be read: why, and what to do
    state_damage: str = ""  # of the state that cannot be read
    lease_damage: str = ""
    lease: Lease | None = None
    lease_age_s: float | None = None

    @property
    def is_alone(self) -> bool:
        """Nobody shares the group, as far as is known here: its checkpoints tell all that there is."""
        return self.state is None and not self.kept and not self.away


def partition_status(state: GroupState, partition: Partition) -> PartitionStatus:
    """Exactly one of four (FLO-01)."""
    having = partition.holder
    if having is None:
        return PartitionStatus.UNASSIGNED
    if flow_of(state, having) is None:
        return PartitionStatus.UNBOUND
    if partition.phase in (Phase.PAUSED, Phase.FENCING):
        return PartitionStatus.PAUSED
    return PartitionStatus.READY


def view(seen: GroupReading) -> GroupView:
    """The whole picture of one group."""
    state = seen.state if seen.state is not None else _as_the_checkpoints_say(seen.progress)
    head, done, damaged = seen.progress.head, seen.progress.done_of_all, seen.progress.damaged
    deadline = _remaining(seen, "holddown", state.holddown_until_s)
    partitions = [_partition(seen, state, each, deadline) for each in state.partitions.values()]
    # What they wait for after the count was changed (RES-03). The owner may know more than a damaged checkpoint.
    done |= {each.partition: each.acknowledged for each in partitions if each.partition in damaged}
    reached = {each.partition: max(each.delivered or 0, each.acknowledged) for each in partitions}
    waits = left_out.reasons(head, done, reached)
    return GroupView(
        namespace=seen.key.namespace,
        queue=seen.key.queue,
        group=seen.key.group,
        rebalance_status=state.status,
        rebalance_deadline_s=deadline,
        scale_status=left_out.scale_status(head, done, state.partitions.keys()),
        partitions=tuple(
            replace(each, reason="; ".join(filter(None, (each.reason, waits.get(each.partition)))))
            for each in partitions
        ),
        flows=tuple(_flow(seen, state, name) for name in sorted({*state.flows, *seen.records, *seen.damaged_flows})),
        coordinator=CoordinatorView(leader=seen.lease.name if seen.lease else None, age_s=seen.lease_age_s),
        notes=_notes(seen),
        damaged=tuple(number for number, each in state.partitions.items() if each.stuck or number in damaged),
    )


def _as_the_checkpoints_say(progress: GroupProgress) -> GroupState:
    """No state was ever written, or it was lost: the checkpoints alone say whose the partitions are."""
    partitions = []
    for number in layouts.partitions_for(progress.head, progress.done_of_all):
        found = progress.checkpoints.get(number)
        owner, epoch = (found.owner, found.epoch) if found is not None else (None, 0)
        phase = Phase.FREE if owner is None else Phase.OWNED
        partitions.append(Partition(partition=number, phase=phase, epoch=epoch, owner=owner))
    by_number = {each.partition: each for each in partitions}
    return GroupState(queue_id=progress.head.queue_id, settings=GroupSettings(), partitions=by_number)


def _last_owner(seen: GroupReading, partition: Partition) -> str:
    if partition.owner is None:
        return "it was taken back, no flow has it now" if partition.epoch else "no flow has taken it yet"
    return f"flow {partition.owner.flow} took it last, " + (
        "no coordinator has seen the group since" if seen.kept else "whether it runs is not known here"
    )


def _notes(seen: GroupReading) -> tuple[str, ...]:
    lost = f"who should have what is not known, the checkpoints alone tell of partitions: {seen.state_damage}"
    kept = (
        "checkpoints=none: acknowledgements are not written down, so the group holds back every message since its "
        "start from going by age (`partq group remove` ends that)"
    )
    notes = (lost if seen.state_damage else "", _sharing(seen), kept if seen.progress.without_offsets else "")
    return tuple(filter(None, notes))


def _sharing(seen: GroupReading) -> str:
    """What is to be said of who shares the group, and of who leads it."""
    if seen.away:
        return f"who has what cannot be read now, the checkpoints alone are shown: {seen.away}"
    if not seen.kept and seen.progress.group.ownership == "none":
        return "ownership=none: one query has all of the group, and only its checkpoints tell of it"
    if not seen.kept:
        return "only the checkpoints are shown: name the place where ownership is kept with --ownership"
    if seen.lease_damage:
        return f"who leads this group is not known: {seen.lease_damage}"
    if seen.lease is None or not seen.lease.token:
        return "no coordinator leads this group: start one with `partq coordinator run`"
    if seen.lease_age_s is not None and seen.lease_age_s > SILENT_LEADER_S:
        silent = f"the coordinator {seen.lease.name} was last heard of {seen.lease_age_s:.0f} s ago"
        return f"{silent}: flows go on with what they have, nothing is rebalanced; start `partq coordinator run`"
    return ""


def _of_owner(partition: Partition, records: Mapping[str, FlowRecord]) -> FlowRecord | None:
    record = records.get(partition.owner.flow) if partition.owner is not None else None
    return record if record is not None and record.owner == partition.owner else None


def said_by_owner(partition: Partition, records: Mapping[str, FlowRecord]) -> Progress | None:
    """What its owner says of it."""
    record = _of_owner(partition, records)
    return record.progress.get(partition.partition) if record is not None and record.progress is not None else None


def _written_by_owner(seen: GroupReading, partition: Partition) -> Checkpoint | None:
    """Its checkpoint, if that is its owner's."""
    found = seen.progress.checkpoints.get(partition.partition)
    if found is None or found.owner is None or (found.owner, found.epoch) != (partition.owner, partition.epoch):
        return None
    return found


def _delivered(seen: GroupReading, partition: Partition, progress: Progress | None) -> int | None:
    """By its owner's word; else what it may have delivered."""
    if progress is not None:
        return progress.delivered
    found = _written_by_owner(seen, partition)
    return min(found.may_reach, at(seen.progress.head.next, partition.partition)) if found is not None else None


def _is_taken(seen: GroupReading, partition: Partition, progress: Progress | None) -> bool:
    """False: its owner is known not to have it yet."""
    found, record = _written_by_owner(seen, partition), _of_owner(partition, seen.records)
    is_open = found is not None and found.is_open
    return is_open or progress is not None or (record is not None and record.progress is None)


def _partition(seen: GroupReading, state: GroupState, partition: Partition, holddown_s: float | None) -> PartitionView:
    having = partition.holder
    status = partition_status(state, partition)
    if status is PartitionStatus.UNBOUND and seen.is_alone:
        status = PartitionStatus.READY
    progress = said_by_owner(partition, seen.records)
    delivered = _delivered(seen, partition, progress)
    acknowledged = seen.progress.acknowledged(partition.partition)
    damage = str(seen.progress.damaged.get(partition.partition, ""))
    if damage and progress is not None:
        acknowledged = max(acknowledged, progress.acknowledged)
    handoff = None
    if partition.phase is Phase.PAUSED or (partition.phase is Phase.FENCING and partition.owner != partition.to):
        handoff = HandoffView(
            to=partition.to.flow if partition.to else None,
            remaining_s=_remaining(seen, str(partition.partition), partition.deadline_s),
            waiting_for=max((delivered or 0) - acknowledged, 0) if partition.phase is Phase.PAUSED else 0,
        )
    made = PartitionView(
        partition=partition.partition,
        status=status,
        flow=having.flow if having else None,
        epoch=partition.to_epoch if partition.phase is Phase.FENCING else partition.epoch,
        acknowledged=acknowledged,
        delivered=None if delivered is None else max(delivered, acknowledged),  # a heartbeat may be older
        end=at(seen.progress.head.next, partition.partition),
        handoff=handoff,
        reason="",
    )
    if seen.state is None:
        return replace(made, reason=damage or _last_owner(seen, partition))
    if not (reason := _trouble(partition, damage) or _reason(state, partition, made, holddown_s)):
        is_missing = made.lag and not _is_taken(seen, partition, progress)
        reason = f"flow {made.flow} has not taken it yet" if is_missing else ""
    return replace(made, reason=reason)


def _trouble(partition: Partition, damage: str) -> str:
    """What is wrong with its checkpoint, and what to do."""
    if not partition.stuck:
        return damage
    receiver = f"flow {partition.to.flow}" if partition.to is not None else "nobody"
    return (
        f"stuck: its checkpoint cannot be rewritten for {receiver} at epoch {partition.to_epoch}, the other partitions"
        f" go on; repair this, it is tried again every few seconds: {damage or partition.stuck}"
    )


def _reason(state: GroupState, partition: Partition, seen: PartitionView, holddown_s: float | None) -> str:
    """Why nothing flows, in words; empty where it does."""
    soon = "" if holddown_s is None else f", mapped anew in {holddown_s:.1f} s"
    if seen.status is PartitionStatus.UNASSIGNED:
        return "no flow is bound" if not any(flow.bound for flow in state.flows.values()) else f"no flow has it{soon}"
    if seen.status is PartitionStatus.UNBOUND:
        flow = state.flows.get(seen.flow or "")
        whose = "the former instance of flow" if flow is not None and flow.bound else "flow"
        return f"{whose} {seen.flow} is not bound{soon or ', waits for the running handoffs'}"
    if partition.phase is Phase.PAUSED and seen.handoff is not None:
        left = "" if seen.handoff.remaining_s is None else f", {seen.handoff.remaining_s:.1f} s left"
        messages = plural(seen.handoff.waiting_for, "message")
        return f"paused: waits for {messages} of flow {seen.flow}{left}, then goes to {seen.handoff.to}"
    if partition.phase is Phase.FENCING:
        return f"paused: its checkpoint is being handed to flow {seen.flow} at epoch {seen.epoch}"
    return ""


def _flow(seen: GroupReading, state: GroupState, name: str) -> FlowView:
    flow = state.flows.get(name)
    having = [each.partition for each in state.partitions.values() if (owner := each.holder) and owner.flow == name]
    record, beat_age_s = seen.records.get(name), seen.beats_age_s.get(name)
    says_bound = record is not None and record.bound
    note = record.note if record is not None and says_bound else ""  # while it is there to say it
    return FlowView(
        flow=name,
        active=bool(flow and flow.bound and flow.active),
        bound=flow.bound if flow is not None else seen.state is None and says_bound,
        partitions=tuple(having),
        last_seen_s=beat_age_s,
        note=seen.damaged_flows.get(name) or note,
        silent=record is None or beat_age_s is None or beat_age_s > record.session_timeout_s / 2,
    )


def _remaining(seen: GroupReading, timer: str, deadline_s: float | None) -> float | None:
    """Seconds left, as of now: from the lease if it speaks of this state, else from the state itself."""
    if deadline_s is None:
        return None
    lease = seen.lease
    if lease is not None and lease.state_token == seen.state_token and timer in lease.timers:
        return max(lease.timers[timer] - (seen.lease_age_s or 0.0), 0.0)
    return max(deadline_s - seen.state_age_s, 0.0)
