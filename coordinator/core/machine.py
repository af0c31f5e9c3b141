"""`decide`, the only way in which a group's state changes, and what it means that a flow comes or goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from coordinator.core import rebalance
from coordinator.core.draft import Draft
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
    Tick,
    Told,
)
from coordinator.core.handoff import Cause, Step
from partq_spark.group.model import Flow, GroupState, Partition, Phase, RebalanceStatus


def decide(state: GroupState, event: Event, now_s: float) -> tuple[GroupState, tuple[Told, ...]]:
    """The state after `event`, and what is to be told of it, in order, once that is written. The same arguments give
    the same answer.

    The very same `state` object comes back if nothing changed. Call it with `Tick` when `next_deadline_s` has passed.
    An event that is merely late changes nothing; one that cannot happen (partition -1) raises ValueError.
    """
    draft = Draft(state, now_s)
    match event:
        case FlowBound():
            bound(draft, event)
        case FlowUnbound() | FlowExpired():
            left(draft, event)
        case PartitionDrained():
            _drained(draft, event)
        case PartitionFenced():
            _fenced(draft, event)
        case FenceStuck():
            _stuck(draft, event)
        case CheckpointAhead():
            _ahead(draft, event)
        case QueueAltered():
            _altered(draft, event)
        case Tick():
            _tick(draft)
        case _:
            assert_never(event)
    return draft.finish()


def _drained(draft: Draft, event: PartitionDrained) -> None:
    partition = draft.partitions.get(event.partition)
    if partition is not None and partition.phase is Phase.PAUSED and partition.epoch == event.epoch:
        reason = "its owner has nothing in hand"
        draft.step(event.partition, Step.FENCE, Cause.DRAINED, reason, to=partition.to)


def _fenced(draft: Draft, event: PartitionFenced) -> None:
    partition = draft.partitions.get(event.partition)
    if partition is None or partition.phase is not Phase.FENCING:
        return
    if (partition.to, partition.to_epoch) != (event.owner, event.epoch):
        return
    step = Step.ASSIGN if partition.to is not None else Step.DROP if partition.removed else Step.FREE
    draft.step(event.partition, step, Cause.FENCED, "the fence is in place")
    rebalance.end_if_done(draft)


def _stuck(draft: Draft, event: FenceStuck) -> None:
    partition = draft.partitions.get(event.partition)
    if partition is None or partition.phase is not Phase.FENCING or partition.to_epoch != event.epoch:
        return
    if not partition.stuck:  # the first reason stays, so that nothing is written again and again
        draft.step(event.partition, Step.STICK, Cause.STUCK, event.reason)
        rebalance.end_if_done(draft)


def _ahead(draft: Draft, event: CheckpointAhead) -> None:
    partition = draft.partitions.get(event.partition)
    if partition is None:
        return  # of a partition that was removed: its number continues above what is found when it comes back
    if partition.phase is Phase.FENCING and partition.to_epoch > partition.epoch:
        known = partition.to_epoch - 1  # a fence that goes above what was found is on its way
    else:
        known = partition.epoch - 1
    if event.epoch > known:
        # PAUSED: no use waiting for what is lost
        to = partition.owner if partition.phase is Phase.OWNED else partition.to
        reason = f"its checkpoint is at epoch {event.epoch}"
        draft.step(event.partition, Step.FENCE, Cause.AHEAD, reason, to=to, found=event.epoch)


def _altered(draft: Draft, event: QueueAltered) -> None:
    """Settings count from now on; timers that run are left alone. Other partitions or another access type: REB-08."""
    wanted = set(event.partitions)
    if len(wanted) != len(event.partitions) or any(number < 0 for number in wanted):
        raise ValueError(f"partitions {event.partitions}: each number from 0 once")
    again = [replace(p, removed=False) for p in draft.partitions.values() if p.removed and p.partition in wanted]
    new = [
        # A checkpoint above the last epoch that is known here: the store has lost that somebody had the partition.
        Partition(partition=number, epoch=max(draft.retired.get(number, 0), event.epochs.get(number, 0)))
        for number in sorted(wanted - draft.partitions.keys())
    ]
    gone = [p for p in draft.partitions.values() if p.partition not in wanted and not p.removed]
    access_changed = draft.settings.access_type is not event.settings.access_type
    if draft.settings != event.settings or again or new or gone:
        draft.told.append(Told(event="queue_altered", reason=_altered_to(event)))
    draft.settings = event.settings
    if not (again or new or gone or access_changed):
        return
    if again or new:
        draft.put(*again, *new)
    _remove(draft, gone)
    holdings = draft.holdings()
    if draft.status is RebalanceStatus.REBALANCING:
        draft.remember(altered=True)
        rebalance.end_if_done(draft)
    elif holdings.live:
        rebalance.start(draft, holdings, "the queue was altered")
    elif draft.status is RebalanceStatus.HOLDDOWN:
        # Nobody to give anything to; a flow that was lost still has the rest of the delay to come back.
        rebalance.look_in_holddown(draft)


def _remove(draft: Draft, gone: list[Partition]) -> None:
    """Seed 002, step 1. Everything in a partition that goes was acknowledged (RES-02), so nothing is waited for."""
    for partition in gone:
        if partition.phase is Phase.FENCING and partition.to is None:
            draft.put(replace(partition, removed=True))
        else:
            step = Step.DROP if partition.phase is Phase.FREE else Step.FENCE
            draft.step(partition.partition, step, Cause.REMOVE, "the queue does not have it any more")


def _altered_to(event: QueueAltered) -> str:
    settings = event.settings
    return (
        f"the queue's head says so: {len(event.partitions)} partitions, {settings.access_type.value}, rebalance delay "
        f"{settings.rebalance_delay_s:g} s, max-handoff-time {settings.max_handoff_time_s:g} s"
    )


def _tick(draft: Draft) -> None:
    for number, partition in list(draft.partitions.items()):
        if partition.deadline_s is not None and partition.deadline_s <= draft.now_s:
            step = Step.FENCE if partition.phase is Phase.PAUSED else Step.FORCE
            draft.step(number, step, Cause.DEADLINE, "max-handoff-time is over", to=partition.to)
    if draft.holddown_until_s is not None and draft.holddown_until_s <= draft.now_s:
        holdings = draft.holdings()
        reason = rebalance.need(holdings, draft.settings)
        rebalance.start(draft, holdings, f"the rebalance delay is over: {reason}")


# --- flows come and go ------------------------------------------------------------------------------------------------

# Flows come and go: what a bind, an unbind and an expiry mean for partitions, before anybody judges balance.


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
    owner = flow.owner
    draft.unbind(flow)
    for partition in [each for each in draft.partitions.values() if each.phase is not Phase.OWNED]:
        number = partition.partition
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
