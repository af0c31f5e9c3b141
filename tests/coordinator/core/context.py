"""A group in a test: events in, actions out as short lines, and a clock that fires timers while it is moved.

After every event the invariants are checked, and that `decide` gives the same answer twice and leaves its argument
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from coordinator.core.actions import Action, Assign, ChangeStatus, Fence, NotifyFlow, Pause, Resume
from coordinator.core.differences import CheckpointMark, initial_state
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
)
from coordinator.core.invariants import broken_by_change, violations
from coordinator.core.machine import decide, next_deadline, pending
from partq_spark.group.model import (
    AccessType,
    GroupSettings,
    Owner,
    Partition,
    PartitionStatus,
    Phase,
    RebalanceStatus,
)
from partq_spark.group.status import partition_status

DELAY_S = 5.0
HANDOFF_S = 3.0
SESSION_S = 10.0


def _name(owner: Owner | None) -> str:
    return "nobody" if owner is None else owner.instance


def line(action: Action) -> str:
    """An action without its reason. Instances are named like the flow, with a number: `a1`, `a2`."""
    assert getattr(action, "reason", ""), f"no reason: {action}"
    match action:
        case Pause():
            return f"pause {action.partition} {_name(action.owner)} for {_name(action.to)}"
        case Fence():
            lost = " (reports lost)" if action.reports_lost else ""
            former = f"{_name(action.owner)}@{action.owner_epoch}"
            return f"fence {action.partition} {former} for {_name(action.to)}@{action.epoch}{lost}"
        case Assign():
            return f"assign {action.partition} to {_name(action.owner)}@{action.epoch}"
        case Resume():
            return f"resume {action.partition} {_name(action.owner)}"
        case NotifyFlow():
            return f"tell {_name(action.owner)} {'active' if action.active else 'inactive'}"
        case ChangeStatus():
            return f"status {action.status}"


class Group:
    """A group whose fences land when the test says so (`fence`), or at once (`land_fences=True`)."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        delay_s: float = DELAY_S,
        handoff_s: float = HANDOFF_S,
        access: AccessType = AccessType.NON_EXCLUSIVE,
        land_fences: bool = True,
        owners: Mapping[int, str] | None = None,
    ) -> None:
        """`owners`: flows that are there from the start, bound, with these partitions at epoch 1."""
        self.settings = GroupSettings(rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s, access_type=access)
        self.now_s = 1000.0
        self.land_fences = land_fences
        self.instances: Counter[str] = Counter()
        self.log: list[str] = []
        self.state = initial_state(
            queue_id="q",
            incarnation="1",
            settings=self.settings,
            partitions=range(partitions),
            checkpoints={
                number: CheckpointMark(epoch=1, owner=Owner(flow, f"{flow}0"))
                for number, flow in (owners or {}).items()
            },
            session_timeout_s=SESSION_S,
            now_s=self.now_s,
        )
        assert violations(self.state) == ()
        for flow in sorted(set((owners or {}).values())):
            self.bind(flow, {number: 1 for number, name in (owners or {}).items() if name == flow})
            self.fence()
        if owners:
            # The reports of the time before are of no concern here.
            kept = {n: replace(p, reports_lost=False) for n, p in self.state.partitions.items()}
            self.state = replace(self.state, partitions=kept)
        self.log.clear()

    # --- events -------------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> list[str]:
        """Feed one event; returns what follows. Where fences land by themselves, they do so afterwards."""
        lines = self._feed(event)
        if self.land_fences:
            self.fence()
        return lines

    def _feed(self, event: Event) -> list[str]:
        before, kept = self.state, repr(self.state)
        self.state, actions = decide(before, event, self.now_s)
        assert (self.state, actions) == decide(before, event, self.now_s)
        assert repr(before) == kept, "decide changed its argument"
        assert violations(self.state) == (), (event, self.state)
        assert broken_by_change(before, self.state) == (), event
        lines = [line(action) for action in actions]
        self.log += lines
        return lines

    def bind(self, flow: str, mapping: Mapping[int, int] | None = None) -> list[str]:
        self.instances[flow] += 1
        return self.event(FlowBound(flow=flow, instance=f"{flow}{self.instances[flow]}", mapping=mapping or {}))

    def unbind(self, flow: str) -> list[str]:
        return self.event(FlowUnbound(flow=flow, instance=f"{flow}{self.instances[flow]}"))

    def expire(self, flow: str) -> list[str]:
        return self.event(FlowExpired(flow=flow, instance=f"{flow}{self.instances[flow]}"))

    def drain(self, *numbers: int) -> list[str]:
        """Everything that was delivered of these partitions (of all that are paused) has been acknowledged."""
        paused = [p for p in self.state.partitions.values() if p.phase is Phase.PAUSED]
        lines = []
        for partition in paused:
            if not numbers or partition.partition in numbers:
                lines += self.event(PartitionDrained(partition=partition.partition, epoch=partition.epoch))
        return lines

    def fence(self, *numbers: int) -> list[str]:
        """The fences of these partitions (all that are asked for) land."""
        lines = []
        for fence in pending(self.state):
            if not numbers or fence.partition in numbers:
                lines += self._feed(PartitionFenced(partition=fence.partition, epoch=fence.epoch, owner=fence.to))
        return lines + self.fence() if lines and self.land_fences else lines

    def stuck(self, number: int, reason: str = "it is damaged") -> list[str]:
        """The fence that this partition waits for comes to nothing, for nobody knows how long."""
        return self.event(FenceStuck(partition=number, epoch=self.partition(number).to_epoch, reason=reason))

    def alter(
        self,
        partitions: Iterable[int] | None = None,
        *,
        access: AccessType | None = None,
        epochs: Mapping[int, int] | None = None,
    ) -> list[str]:
        self.settings = replace(self.settings, access_type=access or self.settings.access_type)
        present = (p.partition for p in self.state.partitions.values() if not p.removed)
        numbers = tuple(present if partitions is None else partitions)
        return self.event(QueueAltered(settings=self.settings, partitions=numbers, epochs=epochs or {}))

    def ahead(self, number: int, epoch: int) -> list[str]:
        return self.event(CheckpointAhead(partition=number, epoch=epoch))

    def sleep(self, seconds: float) -> list[str]:
        """Let time pass; every timer fires when it is due."""
        until = self.now_s + seconds
        lines: list[str] = []
        for _ in range(1000):
            due = next_deadline(self.state)
            if due is None or due > until:
                self.now_s = until
                return lines
            self.now_s = max(self.now_s, due)
            lines += self.event(Tick())
        raise AssertionError("a timer fires without end")

    def settle(self) -> None:
        """Let everything that runs come to its end, everybody acknowledging at once."""
        for _ in range(1000):
            if self.status is RebalanceStatus.READY and not pending(self.state):
                return
            if not (self.fence() or self.drain()):
                self.sleep(max((next_deadline(self.state) or self.now_s) - self.now_s, 0.0))
        raise AssertionError(f"never Ready: {self.state}")

    # --- what can be seen ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> RebalanceStatus:
        return self.state.status

    def partition(self, number: int) -> Partition:
        return self.state.partitions[number]

    def statuses(self) -> dict[int, PartitionStatus]:
        return {number: partition_status(self.state, p) for number, p in self.state.partitions.items()}

    def owners(self) -> dict[int, str | None]:
        """Who has each partition according to its checkpoint: the flow's name."""
        return {number: p.owner.flow if p.owner else None for number, p in self.state.partitions.items()}

    def counts(self) -> dict[str, int]:
        """How many partitions each bound flow has."""
        counts = Counter(owner for owner in self.owners().values() if owner is not None)
        return {name: counts[name] for name, flow in self.state.flows.items() if flow.bound}

    def mapping(self, flow: str) -> dict[int, int]:
        """What the flow would present when it binds again."""
        return {n: p.epoch for n, p in self.state.partitions.items() if p.owner is not None and p.owner.flow == flow}

    def handoffs(self) -> int:
        """Pauses since the log was cleared."""
        return sum(entry.startswith("pause") for entry in self.log)


def balanced(partitions: int, flows: int, **how: object) -> Group:
    """A group in which flows a, b, c … have their share; flow a has the lowest numbers."""
    names = [chr(ord("a") + index) for index in range(flows)]
    share, extra = divmod(partitions, flows)
    owners: dict[int, str] = {}
    for index, name in enumerate(names):
        for _ in range(share + (index < extra)):
            owners[len(owners)] = name
    group = Group(partitions, owners=owners, **how)  # type: ignore[arg-type] # passed on as they are
    assert group.status is RebalanceStatus.READY
    return group
