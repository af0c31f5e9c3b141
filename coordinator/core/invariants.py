"""What is true of every state, as named predicates: checked before every write and after every test.

Each predicate yields what breaks it. What concerns two states (epochs only grow) the tests have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.core import rebalance
from coordinator.core.draft import is_in_handoff, survey
from partq_spark.group.model import GroupState, Partition, Phase, RebalanceStatus


def violations(state: GroupState) -> tuple[str, ...]:
    """The sentences that are not true of `state`, each with the partition or flow that breaks it; () if all is well."""
    return tuple(f"{name}: {what}" for name, predicate in PREDICATES.items() for what in predicate(state))


def _partition_fields(state: GroupState) -> Iterator[str]:
    for number, partition in state.partitions.items():
        if (partition.stuck or partition.drained) and partition.phase is not Phase.FENCING:
            yield f"partition {number} is {partition.phase.value} and stuck, or drained"
        if number != partition.partition or number < 0:
            yield f"{partition.partition} stands at {number}"
        wrong = _FIELDS[partition.phase](partition)
        if wrong:
            yield f"partition {number} is {partition.phase.value} and {wrong}"


def _free(partition: Partition) -> str:
    if partition.owner is not None or partition.to is not None:
        return "names a flow"
    if partition.removed or partition.to_epoch or partition.deadline_s is not None:
        return "waits for something"
    return ""


def _owned(partition: Partition) -> str:
    if partition.owner is None or partition.epoch < 1:
        return "has no owner or no epoch"
    if partition.to is not None or partition.to_epoch or partition.deadline_s is not None or partition.removed:
        return "is on its way"
    return ""


def _paused(partition: Partition) -> str:
    if partition.owner is None or partition.to is None or partition.owner.flow == partition.to.flow:
        return "does not go from one flow to another"
    if partition.deadline_s is None:
        return "has no deadline"
    return "is on another way" if partition.to_epoch or partition.removed else ""


def _fencing(partition: Partition) -> str:
    again = (
        partition.owner is not None
        and partition.to is not None
        and partition.owner.flow == partition.to.flow
        and partition.owner != partition.to
    )
    if partition.to_epoch < partition.epoch or (partition.to_epoch == partition.epoch and not again):
        return f"would not raise epoch {partition.epoch}"
    if (partition.deadline_s is not None) != partition.drained:
        return "has a deadline, or none"
    return "would go to a flow although it was removed" if partition.removed and partition.to is not None else ""


_FIELDS: dict[Phase, Callable[[Partition], str]] = {
    Phase.FREE: _free,
    Phase.OWNED: _owned,
    Phase.PAUSED: _paused,
    Phase.FENCING: _fencing,
}


def _order(state: GroupState) -> Iterator[str]:
    numbers = list(state.partitions)
    if numbers != sorted(numbers):
        yield "partitions are not in order"
    for number in state.partitions.keys() & state.retired.keys():
        yield f"partition {number} is there and retired"


def _known_flows(state: GroupState) -> Iterator[str]:
    named: set[str] = set()
    for number, partition in state.partitions.items():
        for owner in (partition.owner, partition.to):
            if owner is None:
                continue
            named.add(owner.flow)
            if owner.flow not in state.flows:
                yield f"partition {number} names {owner.flow}, which is not known"
    for name, flow in state.flows.items():
        if name != flow.name:
            yield f"flow {flow.name} stands at {name}"
        if not flow.bound and name not in named:
            yield f"flow {name} is not bound, and no partition names it"


def _seniority(state: GroupState) -> Iterator[str]:
    since = [flow.since for flow in state.flows.values() if flow.bound]
    if len(set(since)) != len(since) or any(not 0 < number <= state.binds for number in since):
        yield f"bound flows are not told apart by {sorted(since)} of {state.binds} binds"


def _activity(state: GroupState) -> Iterator[str]:
    held = {partition.holder for partition in state.partitions.values()}
    for flow in state.flows.values():
        if flow.active != (flow.bound and flow.owner in held):
            yield f"flow {flow.name} is {'' if flow.active else 'not '}active"
        if flow.updates < 0:
            yield f"flow {flow.name} has {flow.updates} updates"


def _pauses(state: GroupState) -> Iterator[str]:
    """Nobody waits for a flow that is gone, and pauses are part of a rebalance."""
    bound = {flow.owner for flow in state.flows.values() if flow.bound}
    for number, partition in state.partitions.items():
        if partition.phase is not Phase.PAUSED:
            continue
        if partition.owner not in bound or partition.to not in bound:
            yield f"partition {number} is paused although its owner or its receiver is gone"
        if state.status is not RebalanceStatus.REBALANCING:
            yield f"partition {number} is paused in status {state.status.value}"


def _timers(state: GroupState) -> Iterator[str]:
    if (state.holddown_until_s is not None) != (state.status is RebalanceStatus.HOLDDOWN):
        yield f"status {state.status.value} with holddown until {state.holddown_until_s}"
    if state.trigger and state.status is not RebalanceStatus.REBALANCING:
        yield f"something to be looked at after a rebalance, in status {state.status.value}"
    if state.altered and not state.trigger:
        yield "an alteration to be looked at after a rebalance, and nothing to be looked at"


def _status(state: GroupState) -> Iterator[str]:
    """The status follows from what the state shows, so that nothing can be stuck in it."""
    need = rebalance.need(survey(state), state.settings)
    if state.status is RebalanceStatus.READY and need is not None:
        yield f"Ready although {need}"
    if state.status is RebalanceStatus.HOLDDOWN and need is None:
        yield "Holddown although nothing has to be rebalanced"
    if state.status is RebalanceStatus.REBALANCING and not is_in_handoff(state):
        yield "Rebalancing although no partition is on its way"


PREDICATES: dict[str, Callable[[GroupState], Iterator[str]]] = {
    "a partition's fields fit its phase": _partition_fields,
    "partitions are in order, and retired ones are others": _order,
    "flows are known as long as they are named or bound": _known_flows,
    "bound flows have an order": _seniority,
    "active is who is bound and holds something": _activity,
    "who is waited for is there": _pauses,
    "timers belong to a status": _timers,
    "the status is what the state shows": _status,
}
