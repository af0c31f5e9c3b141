"""Decisions as log lines: which event was heeded, what followed and why. Words only."""

from __future__ import annotations

from coordinator.core.actions import Action, Assign, ChangeStatus, Fence, NotifyFlow, Pause, Resume
from coordinator.core.events import (
    CheckpointAhead,
    Event,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    PartitionDrained,
    PartitionFenced,
    QueueAltered,
    ReportsLost,
    Tick,
)
from coordinator.logs import Log, Value
from partq_spark.flow.model import GroupKey, Owner


def tell_event(log: Log, key: GroupKey, event: Event) -> None:
    """One line for an event that changed something. A tick is told by what it brings about."""
    if isinstance(event, Tick | PartitionFenced):
        return
    log("info", _EVENTS[type(event)], group=str(key), **_event_facts(event))


_EVENTS: dict[type, str] = {
    FlowBound: "flow_bound",
    FlowUnbound: "flow_unbound",
    FlowExpired: "flow_expired",
    PartitionDrained: "partition_drained",
    CheckpointAhead: "checkpoint_ahead",
    ReportsLost: "reports_lost",
    QueueAltered: "queue_altered",
}


def _event_facts(event: Event) -> dict[str, Value]:
    match event:
        case FlowBound():
            return {"flow": event.flow, "instance": event.instance, "mapping": len(event.mapping)}
        case FlowUnbound() | FlowExpired():
            return {"flow": event.flow, "instance": event.instance}
        case PartitionDrained() | CheckpointAhead() | PartitionFenced():
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


def tell_action(log: Log, key: GroupKey, action: Action) -> None:
    """One line for what was decided, with its reason."""
    name, facts = _action_facts(action)
    log("info", name, group=str(key), **facts, reason=action.reason)


def _action_facts(action: Action) -> tuple[str, dict[str, Value]]:
    match action:
        case Pause():
            return "pause", {"partition": action.partition, "flow": action.owner.flow, "to": action.to.flow}
        case Fence():
            facts: dict[str, Value] = {"partition": action.partition, "flow": _flow(action.owner)}
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
