"""What has happened to a group, as flows' records and its state say side by side: facts as events. Pure, and without
policy. Also when records have to be read again, and when there is nothing to observe at all.

What a record says counts only if it was written in the ownership store's present incarnation: an older one may be a
copy that lacks what the flow did since (OWN-04).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from coordinator.core.draft import is_in_handoff
from coordinator.core.events import Event, FlowBound, FlowExpired, FlowUnbound, PartitionDrained
from coordinator.core.machine import next_deadline, pending
from coordinator.failure_detector import FailureDetector
from coordinator.heads import GroupFacts
from partq_spark.group.model import Delivery, FlowRecord, GroupState, Owner, Phase
from partq_spark.group.ownership import Pulse


@dataclass(frozen=True, kw_only=True, slots=True)
class Validity:
    """For which queue, and in which life of the ownership store, a record must have been written to count."""

    queue_id: str
    incarnation: str


def binds(
    state: GroupState, records: Mapping[str, FlowRecord], validity: Validity, gone: Collection[Owner]
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
        if known is not None and known.instance == record.instance:
            continue
        if record.bound and is_reliable(record, validity) and Owner(name, record.instance) not in gone:
            yield FlowBound(flow=name, instance=record.instance, mapping=record.mapping)


def leftovers(state: GroupState, records: Mapping[str, FlowRecord], validity: Validity) -> Iterator[Owner]:
    """Records that mean nothing any more: of flows that left and own nothing, and of instances that ended with a former
    queue or a former life of the store.
    """
    for name, record in sorted(records.items()):
        if name not in state.flows and not (record.bound and is_reliable(record, validity)):
            yield Owner(name, record.instance)


def recordless(state: GroupState, records: Mapping[str, FlowRecord], pulse: Pulse) -> Iterator[Owner]:
    """Instances whose heartbeat is there and whose record is lost, and which the group does not have: nothing can be
    known of them, and they do not notice before they deliver. With their heartbeat gone, they bind anew.
    """
    for owner in sorted(pulse.beats):
        known = state.flows.get(owner.flow)
        if owner.flow not in records and (known is None or known.instance != owner.instance):
            yield owner


def expired(
    state: GroupState, records: Mapping[str, FlowRecord], heartbeats: FailureDetector[Owner]
) -> Iterator[Event]:
    """Flows whose heartbeat was seen to stand still for their session timeout, by this process' clock."""
    for name, flow in sorted(state.flows.items()):
        record = records.get(name)
        if not flow.bound or record is None or record.instance != flow.instance or not record.bound:
            continue
        if heartbeats.still_s(Owner(name, flow.instance)) >= record.session_timeout_s:
            yield FlowExpired(flow=name, instance=flow.instance)


def drained(state: GroupState, records: Mapping[str, FlowRecord], validity: Validity) -> Iterator[Event]:
    """Paused partitions of which nothing is unacknowledged. `records` were read after the pause was written."""
    for number, partition in state.partitions.items():
        if partition.phase is not Phase.PAUSED or partition.owner is None:
            continue
        record = records.get(partition.owner.flow)
        entry = entry_of(record, number, partition.epoch, validity)
        if entry is not None:
            is_drained = entry.acknowledged >= entry.delivered
        else:
            is_drained = not partition.reports_lost and is_whole(record, partition.owner, validity)
        if is_drained:
            yield PartitionDrained(partition=number, epoch=partition.epoch)


def is_reliable(record: FlowRecord | None, validity: Validity) -> bool:
    """Whether the record has everything that its flow reported since it bound."""
    return record is not None and record.incarnation == validity.incarnation and record.queue_id == validity.queue_id


def is_whole(record: FlowRecord | None, owner: Owner, validity: Validity) -> bool:
    """Whether an entry that the record does not have means that this owner delivered nothing. A record that began anew,
    after the owner's was lost, says nothing of it.
    """
    if record is None or not is_reliable(record, validity):
        return False
    return owner.instance == record.instance or owner.instance in record.former


def entry_of(record: FlowRecord | None, partition: int, epoch: int, validity: Validity) -> Delivery | None:
    """`FlowRecord.entry`, if the record counts."""
    return record.entry(partition, epoch) if record is not None and is_reliable(record, validity) else None


@dataclass(frozen=True, slots=True)
class Records:
    """The flows' records. `token`: of the state that was in the store before they were asked for; `version`: of the
    look before that.
    """

    flows: dict[str, FlowRecord]
    token: str
    version: str
    read_s: float

    def are_stale(self, pulse: Pulse, token: str, *, in_handoff: bool, old: bool) -> bool:
        """Whether reading them again may tell something new.

        Acknowledgements move the version all the time, and in quiet times only flows that come and go are of interest:
        then they are read again once they are `old`. In a handoff they count only if they were read after the state was
        written.
        """
        if in_handoff and self.token != token:
            return True
        if self.version == pulse.records_version:
            return False
        if in_handoff or old:
            return True
        return any(flow not in self.flows or self.flows[flow].instance != instance for flow, instance in pulse.beats)


@dataclass(frozen=True, slots=True)
class Quiet:
    """What was looked at in full and asked for nothing: as long as it is all still so, there is nothing to do but to
    watch heartbeats and the time. A sidecar has hundreds of groups, and nearly all are quiet.
    """

    state: GroupState
    records: Records
    facts: GroupFacts
    deadline_s: float
    session_timeout_s: float  # the shortest

    @classmethod
    def after(cls, state: GroupState, records: Records | None, facts: GroupFacts) -> Quiet | None:
        """After such a look; None while something is on its way."""
        if records is None or is_in_handoff(state) or pending(state):
            return None
        due_s = next_deadline(state)
        return cls(
            state,
            records,
            facts,
            deadline_s=math.inf if due_s is None else due_s,
            session_timeout_s=min((each.session_timeout_s for each in records.flows.values()), default=math.inf),
        )
