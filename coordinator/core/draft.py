"""A group's state while one event is being decided: what has changed so far, and what is to be told of it.

Only bookkeeping that keeps a state consistent in itself lives here: partitions are changed by steps of the handoff
table, flows are told when they become active or inactive, flows that nothing names any more go. Policy is elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from coordinator.core import handoff
from coordinator.core.events import NOBODY, Told
from coordinator.core.handoff import Cause, Step
from partq_spark.group.model import Flow, GroupState, Owner, Partition, Phase, RebalanceStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """Who holds what. `held`: by owner, bound or not, in order of the partitions; `unheld`: those of nobody.

    `live`: the bound flows, the oldest first. Removed partitions count for nobody; `total` is without them.
    """

    held: dict[Owner, list[int]]
    unheld: list[int]
    live: list[Owner]
    total: int

    @property
    def lost(self) -> list[Owner]:
        """Holders that are not bound, by their first partition."""
        bound = set(self.live)
        return [owner for owner in self.held if owner not in bound]

    @property
    def idle(self) -> list[Owner]:
        """Bound flows that hold nothing, the oldest first."""
        return [owner for owner in self.live if owner not in self.held]


class Draft:
    """Made from a state, changed in place by the code that decides, and turned into a state again by `finish`."""

    def __init__(self, state: GroupState, now_s: float) -> None:
        self._original = state
        self.now_s = now_s
        self.told: list[Told] = []
        self.partitions = dict(state.partitions)
        self.flows = dict(state.flows)
        self.retired = dict(state.retired)
        self.settings = state.settings
        self.status = state.status
        self.holddown_until_s = state.holddown_until_s
        self.binds = state.binds
        self._trigger = state.trigger
        self.altered = state.altered
        self._shifted = False  # somebody holds something else than before: activity has to be looked at
        self._loose: set[str] = set()  # flows that may have nothing left that names them
        self._newcomer: str | None = None  # becomes active within its own bind, without being told

    # --- reading ------------------------------------------------------------------------------------------------------

    def holdings(self) -> Holdings:
        """Who holds what, now."""
        return survey(self)

    # --- changing -----------------------------------------------------------------------------------------------------

    def step(
        self,
        number: int,
        step: Step,
        cause: Cause,
        reason: str,
        *,
        to: Owner | None = None,
        deadline_s: float | None = None,
        found: int = 0,
    ) -> None:
        """Take one step of the handoff table, and tell of it."""
        before = self.partitions[number]
        after = handoff.advance(before, step, cause, to=to, deadline_s=deadline_s, found=found, why=reason)
        if after is None:
            self.retired[number] = max(before.epoch, before.to_epoch)
            del self.partitions[number]
        else:
            self.partitions[number] = after
        self.told.append(_told(before, step, cause, after, reason))
        if after is None or before.holder != after.holder:
            self._shifted = True
        for owner in (before.owner, before.to):
            if owner is not None:
                self._loose.add(owner.flow)

    def put(self, *changed: Partition) -> None:
        """Replace or add partitions whose phase stays as it is (or which are new)."""
        for partition in changed:
            self.partitions[partition.partition] = partition
            self.retired.pop(partition.partition, None)
        self.partitions = dict(sorted(self.partitions.items()))

    def bind(self, name: str, instance: str) -> Owner:
        """A flow's new instance is bound."""
        reason = "its heartbeat shows an instance that the group did not know"
        self.told.append(Told(event="flow_bound", flow=name, instance=instance, reason=reason))
        self.binds += 1
        self.flows[name] = Flow(name=name, instance=instance, bound=True, since=self.binds)
        self._shifted = True
        self._newcomer = name
        return Owner(name, instance)

    def unbind(self, flow: Flow) -> None:
        """A flow is not bound any more; it stays known as long as a partition names it."""
        self.flows[flow.name] = flow._replace(bound=False, active=False)
        self._loose.add(flow.name)

    def set_status(self, status: RebalanceStatus, reason: str, *, until_s: float | None = None) -> None:
        """The rebalancing status from now on. Rebalancing after Rebalancing is said again, Ready is not."""
        if status is not self.status or status is not RebalanceStatus.READY:
            self.told.append(Told(event="status", status=status.value, reason=reason))
        self.status, self.holddown_until_s = status, until_s
        self._trigger = self.altered = False

    def remember(self, *, altered: bool = False) -> None:
        """Something happened during a rebalance that is looked at when it has ended (REB-14)."""
        self._trigger = True
        self.altered = self.altered or altered

    # --- the end ------------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Flows that became active or inactive are told, once per change (FLO-05)."""
        if not self._shifted:
            return
        self._shifted = False
        held = {partition.holder for partition in self.partitions.values() if not partition.removed}
        for flow in list(self.flows.values()):
            active = flow.bound and flow.owner in held
            if active == flow.active:
                continue
            told = flow.bound and flow.name != self._newcomer
            self.flows[flow.name] = flow._replace(active=active, updates=flow.updates + told)
            if told:
                reason = "got its first partition" if active else "has no partition any more"
                status = "active" if active else "inactive"
                self.told.append(
                    Told(
                        event="flow_change_update", flow=flow.name, instance=flow.instance, status=status, reason=reason
                    )
                )

    def _forget_flows(self) -> None:
        left = {name for name in self._loose if name in self.flows and not self.flows[name].bound}
        for partition in self.partitions.values():
            if not left:
                return
            if partition.owner is not None:
                left.discard(partition.owner.flow)
            if partition.to is not None:
                left.discard(partition.to.flow)
        for name in left:
            del self.flows[name]

    def finish(self) -> tuple[GroupState, tuple[Told, ...]]:
        """The state after the event: the very same object if nothing has changed."""
        self.tell()
        if self._loose:
            self._forget_flows()
        state = replace(
            self._original,
            settings=self.settings,
            partitions=self.partitions,
            flows=self.flows,
            retired=self.retired,
            status=self.status,
            holddown_until_s=self.holddown_until_s,
            trigger=self._trigger,
            altered=self.altered,
            binds=self.binds,
        )
        return self._original if state == self._original else state, tuple(self.told)


def _told(before: Partition, step: Step, cause: Cause, after: Partition | None, reason: str) -> Told:
    is_over = cause is Cause.FENCED
    owner, to = (before.to, None) if is_over else (before.owner, before.to if after is None else after.to)
    return Told(
        event="assign" if is_over else "partition_stuck" if step is Step.STICK else step.value,
        partition=before.partition,
        cause=cause,
        flow=owner.flow if owner is not None else NOBODY if is_over else None,
        to=to.flow if to is not None else NOBODY if step is Step.FENCE else None,
        epoch=before.epoch if after is None else after.to_epoch or after.epoch,
        reason=reason,
    )


def survey(state: GroupState | Draft) -> Holdings:
    """Who holds what in `state`."""
    held: defaultdict[Owner, list[int]] = defaultdict(list)
    unheld: list[int] = []
    total = 0
    fencing = Phase.FENCING
    for number, partition in state.partitions.items():
        if partition.removed:
            continue
        total += 1
        owner = partition.to if partition.phase is fencing else partition.owner  # its `holder`, at half the time
        if owner is None:
            unheld.append(number)
        else:
            held[owner].append(number)
    bound = sorted((flow.since, flow.name, flow.instance) for flow in state.flows.values() if flow.bound)
    live = [Owner(name, instance) for _, name, instance in bound]
    return Holdings(held=dict(held), unheld=unheld, live=live, total=total)


def is_in_handoff(state: GroupState | Draft) -> bool:
    """Whether a partition changes hands, or is about to. One that is stuck is not waited for: it may take for ever, and
    the others have to go on (REB-15, HAN-04).
    """
    paused, fencing = Phase.PAUSED, Phase.FENCING
    return any(p.phase is paused or (p.phase is fencing and not p.stuck) for p in state.partitions.values())
