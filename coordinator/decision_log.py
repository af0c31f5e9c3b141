"""Decisions as log lines: which event was heeded, what followed and why. Words only."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.actions import Action, Assign, ChangeStatus, Fence, NotifyFlow, Pause, Resume
from coordinator.core.events import (
    CheckpointAhead,
    Event,
    FenceStuck,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    PartitionDrained,
    PartitionFenced,
    QueueAltered,
    ReportsLost,
    Tick,
)
from coordinator.logs import FieldValue, Log
from partq_spark.group.model import GroupKey, Owner


def log_decision(log: Log, key: GroupKey, events: Sequence[Event], actions: Sequence[Action]) -> None:
    """What was decided: first the events that changed something, then what follows from them. A tick and a fence are
    told by what they bring about.
    """
    for event in events:
        if not isinstance(event, Tick | PartitionFenced):
            name, reason = _EVENTS[type(event)]
            level, reason = ("error", event.reason) if isinstance(event, FenceStuck) else ("info", reason)
            log(level, name, group=str(key), **_event_facts(event), reason=reason)
    for action in actions:
        name, facts = _action_facts(action)
        log("info", name, group=str(key), **facts, reason=action.reason)


_EVENTS: dict[type, tuple[str, str]] = {
    FlowBound: ("flow_bound", "its record shows an instance that the group did not know"),
    FlowUnbound: ("flow_unbound", "it asked to leave"),
    FlowExpired: ("flow_expired", "its heartbeat stood still for its session timeout, or its record is gone"),
    PartitionDrained: ("partition_drained", "all that was delivered is acknowledged"),
    CheckpointAhead: ("checkpoint_ahead", "the checkpoint says what the group's state does not explain"),
    FenceStuck: ("partition_stuck", "its checkpoint cannot be rewritten"),
    ReportsLost: ("reports_lost", "the ownership store was restarted"),
    QueueAltered: ("queue_altered", "the queue's head says so"),
}


def _event_facts(event: Event) -> dict[str, FieldValue]:
    match event:
        case FlowBound():
            return {"flow": event.flow, "instance": event.instance, "mapping": len(event.mapping)}
        case FlowUnbound() | FlowExpired():
            return {"flow": event.flow, "instance": event.instance}
        case PartitionDrained() | CheckpointAhead() | PartitionFenced() | FenceStuck():
            return {"partition": event.partition, "epoch": event.epoch}
        case ReportsLost():
            return {"incarnation": event.incarnation}
        case QueueAltered():
            return {
                "partitions": len(event.partitions),
                "access_type": event.settings.access_type.value,
                "rebalance_delay_s": event.settings.rebalance_delay_s,
                "max_handoff_time_s": event.settings.max_handoff_time_s,
            }
        case Tick():
            return {}


def _action_facts(action: Action) -> tuple[str, dict[str, FieldValue]]:
    match action:
        case Pause():
            return "pause", {"partition": action.partition, "flow": action.owner.flow, "to": action.to.flow}
        case Fence():
            facts: dict[str, FieldValue] = {"partition": action.partition, "flow": _flow(action.owner)}
            return "fence", {**facts, "to": _flow(action.to) or "nobody", "epoch": action.epoch}
        case Assign():
            return "assign", {
                "partition": action.partition,
                "flow": _flow(action.owner) or "nobody",
                "epoch": action.epoch,
            }
        case Resume():
            return "resume", {"partition": action.partition, "flow": action.owner.flow}
        case NotifyFlow():
            return "flow_change_update", {"flow": action.owner.flow, "active": action.active}
        case ChangeStatus():
            return "status", {"status": action.status}


def _flow(owner: Owner | None) -> str | None:
    return owner.flow if owner is not None else None
