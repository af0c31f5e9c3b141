"""What flows' records and a group's state, side by side, say has happened: facts as events. Pure, and without policy.

What a record says counts only if it was written in the ownership store's present incarnation: an older one may be a
copy that lacks what the flow did since (OWN-04).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from coordinator.core.events import Event, FlowBound, FlowExpired, FlowUnbound, PartitionDrained
from coordinator.watch import Stillness
from partq_spark.group.model import Delivery, FlowRecord, GroupState, Owner, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """In which queue and in which life of the ownership store the records are read."""

    queue_id: str
    incarnation: str


def binds(
    state: GroupState, records: Mapping[str, FlowRecord], setting: Setting, gone: Collection[Owner]
) -> Iterator[Event]:
    """Flows that left, then flows that came, each by name. `gone`: instances that the group has let go already, whose
    records are still to be removed.
    """
    for name, flow in sorted(state.flows.items()):
        record = records.get(name)
        if not flow.bound:
            continue
        if record is None:
            yield FlowExpired(flow=name, instance=flow.instance)  # the store lost it: it binds anew if it lives
        elif not record.bound:
            # Also where it was bound anew and left again meanwhile: then this instance is gone all the more.
            yield FlowUnbound(flow=name, instance=flow.instance)
    for name, record in sorted(records.items()):
        known = state.flows.get(name)
        if (known is None or known.instance != record.instance) and is_candidate(record, setting, gone):
            yield FlowBound(flow=name, instance=record.instance, mapping=record.mapping)


def is_candidate(record: FlowRecord, setting: Setting, gone: Collection[Owner]) -> bool:
    """Whether the record is that of a flow which may be taken into the group."""
    return (
        record.bound
        and record.queue_id == setting.queue_id
        and record.incarnation == setting.incarnation
        and Owner(record.flow, record.instance) not in gone
    )


def leftovers(state: GroupState, records: Mapping[str, FlowRecord], setting: Setting) -> Iterator[Owner]:
    """Records that mean nothing any more: of flows that left and own nothing, and of instances that ended with a former
    queue or a former life of the store.
    """
    for name, record in sorted(records.items()):
        if name not in state.flows and not (record.bound and is_reliable(record, setting)):
            yield Owner(name, record.instance)


def expired(state: GroupState, records: Mapping[str, FlowRecord], heartbeats: Stillness[Owner]) -> Iterator[Event]:
    """Flows whose heartbeat was seen to stand still for their session timeout, by this process' clock."""
    for name, flow in sorted(state.flows.items()):
        record = records.get(name)
        if not flow.bound or record is None or record.instance != flow.instance or not record.bound:
            continue
        if heartbeats.still_s(Owner(name, flow.instance)) >= record.session_timeout_s:
            yield FlowExpired(flow=name, instance=flow.instance)


def drained(state: GroupState, records: Mapping[str, FlowRecord], setting: Setting) -> Iterator[Event]:
    """Paused partitions of which nothing is unacknowledged. `records` were read after the pause was written."""
    for number, partition in state.partitions.items():
        if partition.phase is not Phase.PAUSED or partition.owner is None:
            continue
        record = records.get(partition.owner.flow)
        entry = entry_of(record, number, partition.epoch, setting)
        if entry is not None:
            is_drained = entry.acknowledged >= entry.delivered
        else:
            is_drained = not partition.reports_lost and is_whole(record, partition.owner, setting)
        if is_drained:
            yield PartitionDrained(partition=number, epoch=partition.epoch)


def is_reliable(record: FlowRecord | None, setting: Setting) -> bool:
    """Whether the record has everything that its flow reported since it bound."""
    return record is not None and record.incarnation == setting.incarnation and record.queue_id == setting.queue_id


def is_whole(record: FlowRecord | None, owner: Owner, setting: Setting) -> bool:
    """Whether an entry that the record does not have means that this owner delivered nothing. A record that began anew,
    after the owner's was lost, says nothing of it.
    """
    if record is None or not is_reliable(record, setting):
        return False
    return owner.instance == record.instance or owner.instance in record.former


def entry_of(record: FlowRecord | None, partition: int, epoch: int, setting: Setting) -> Delivery | None:
    """`FlowRecord.entry`, if the record counts."""
    return record.entry(partition, epoch) if record is not None and is_reliable(record, setting) else None
