"""What has happened to a group, as what flows say and its state say side by side: facts as events. Pure, and without
policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from coordinator.core.events import Event, FlowBound, FlowExpired, FlowUnbound
from coordinator.failure_detector import FailureDetector
from partq_spark.group.model import FlowRecord, GroupState, Owner


def binds(state: GroupState, flows: Mapping[str, FlowRecord], gone: Collection[Owner]) -> Iterator[Event]:
    """Flows that left, then flows that came, each by name. `gone`: instances that the group has let go already, whose
    heartbeats are still to be removed.
    """
    for name, flow in sorted(state.flows.items()):
        record = flows.get(name)
        if not flow.bound:
            continue
        if record is None:
            yield FlowExpired(flow=name, instance=flow.instance)  # the store lost it: it binds anew if it lives
        elif not record.bound:
            # Also where it was bound anew and left again meanwhile: then this instance is gone all the more.
            yield FlowUnbound(flow=name, instance=flow.instance)
    for name, record in sorted(flows.items()):
        known = state.flows.get(name)
        is_known = known is not None and known.instance == record.instance
        if not is_known and _is_here(state, record) and Owner(name, record.instance) not in gone:
            yield FlowBound(flow=name, instance=record.instance, mapping=record.mapping)


def leftovers(state: GroupState, flows: Mapping[str, FlowRecord]) -> Iterator[Owner]:
    """Heartbeats that mean nothing any more: of flows that left and own nothing, and of instances of a former queue."""
    for name, record in sorted(flows.items()):
        if name not in state.flows and not _is_here(state, record):
            yield Owner(name, record.instance)


def expired(state: GroupState, flows: Mapping[str, FlowRecord], heartbeats: FailureDetector[Owner]) -> Iterator[Event]:
    """Flows whose heartbeat was seen to stand still for their session timeout, by this process' clock."""
    for name, flow in sorted(state.flows.items()):
        record = flows.get(name)
        if not flow.bound or record is None or record.instance != flow.instance or not record.bound:
            continue
        if heartbeats.still_s(Owner(name, flow.instance)) >= record.session_timeout_s:
            yield FlowExpired(flow=name, instance=flow.instance)


def _is_here(state: GroupState, record: FlowRecord) -> bool:
    return record.bound and record.queue_id == state.queue_id
