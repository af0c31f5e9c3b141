"""Flows come and go: what a bind, an unbind and an expiry mean for partitions, before anybody judges balance."""

from __future__ import annotations

from typing import Final

from coordinator.core import rebalance
from coordinator.core.draft import Draft
from coordinator.core.events import FlowBound, FlowExpired, FlowUnbound
from coordinator.core.handoff import Cause, Step
from coordinator.core.told import Told
from partq_spark.group.model import Flow, Owner, Phase, RebalanceStatus

_SILENT: Final = "was silent for its session timeout, or is not known any more"


def bound(draft: Draft, event: FlowBound) -> None:
    """A flow's record shows an instance that the state does not know."""
    former = draft.flows.get(event.flow)
    if former is not None and former.instance == event.instance:
        return  # known: bound, or late, since an instance that was given up never comes back
    returning = _returning(draft, event)
    if former is not None and former.bound:
        # Two processes never have one name (FLO-08): a new instance means that the former one is gone.
        _detach(draft, former, f"{event.flow} was started again")
        if not returning:
            _judge(draft)
    owner = draft.bind(event.flow, event.instance)
    for number in returning:
        draft.step(number, Step.FENCE, Cause.RESTORE, f"{event.flow} is back", to=owner)
    _judge(draft)


def left(draft: Draft, event: FlowUnbound | FlowExpired) -> None:
    """A flow has left or was silent for too long: the same (FLO-06)."""
    flow = draft.flows.get(event.flow)
    if flow is None or not flow.bound or flow.instance != event.instance:
        return
    word, why = ("flow_unbound", "has left") if isinstance(event, FlowUnbound) else ("flow_expired", _SILENT)
    draft.told.append(Told(event=word, flow=event.flow, instance=event.instance, reason=f"it {why}"))
    _detach(draft, flow, f"{event.flow} {why}")
    _judge(draft)


def _returning(draft: Draft, event: FlowBound) -> list[int]:
    """What the flow gets again: its own partitions at the epochs of its mapping (LOS-01), and those that were on their
    way to its former instance. Nobody else has anything of these.
    """
    numbers = []
    for number, partition in draft.partitions.items():
        owner, to = partition.owner, partition.to
        if partition.phase is Phase.FENCING:
            mine = to is not None and to.flow == event.flow
        elif partition.phase is Phase.OWNED and owner is not None and owner.flow == event.flow:
            mine = event.mapping.get(number) == partition.epoch
        else:
            mine = False  # PAUSED: its receiver is bound, and gets it when the owner is lost
        if mine:
            numbers.append(number)
    return numbers


def _detach(draft: Draft, flow: Flow, reason: str) -> None:
    """The flow is gone: pauses that wait for it, or are meant for it, end (HAN-08), and nobody waits until it closes
    what it raised. What it owns becomes Unbound.
    """
    owner = Owner(flow.name, flow.instance)
    draft.unbind(flow)
    for number, partition in list(draft.partitions.items()):
        if partition.phase is Phase.PAUSED and partition.to == owner:
            draft.step(number, Step.RESUME, Cause.KEEP, reason)
        elif partition.phase is Phase.PAUSED and partition.owner == owner:  # its receiver is bound
            draft.step(number, Step.FENCE, Cause.LOST, reason, to=partition.to)
        elif partition.drained and partition.owner == owner:
            draft.step(number, Step.FORCE, Cause.LOST, reason, to=partition.to)


def _judge(draft: Draft) -> None:
    if draft.status is RebalanceStatus.READY:
        rebalance.look(draft)
    elif draft.status is RebalanceStatus.HOLDDOWN:
        rebalance.look_in_holddown(draft)
    else:
        draft.remember()
        rebalance.end_if_done(draft)
