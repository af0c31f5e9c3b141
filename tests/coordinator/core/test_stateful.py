"""Random histories of events in any order, the invariants checked after each; and the way out of where they lead."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.core.differences import CheckpointMark, differences
from coordinator.core.events import Event, PartitionDrained, PartitionFenced, ReportsLost, Tick
from coordinator.core.machine import next_deadline, pending
from partq_spark.group.model import AccessType, Owner, PartitionStatus, Phase, RebalanceStatus
from tests.coordinator.core.context import Group
from tests.support.properties import examples

FLOWS = st.sampled_from("abcde")
NUMBERS = st.integers(0, 6)


class Told(Group):
    """Keeps what flows were told, to compare it with what they are (FLO-05)."""

    active: dict[Owner, bool]

    def _feed(self, event: Event) -> list[str]:
        before = self.state.flows
        lines = super()._feed(event)
        told = [entry.split()[1] for entry in lines if entry.startswith("tell")]
        assert len(set(told)) == len(told), "told twice of one change"
        for name, flow in self.state.flows.items():
            former = before.get(name)
            if flow.bound and former is not None and former.instance == flow.instance:
                assert (flow.active != former.active) == (flow.instance in told)
                assert flow.updates == former.updates + (flow.active != former.active)
            elif flow.bound:
                assert flow.updates == 0, "told within its own bind"
        return lines


class History(RuleBasedStateMachine):
    """What the world may do, late and repeated as well."""

    @initialize(
        partitions=st.integers(1, 6),
        delay_s=st.sampled_from([0.0, 5.0]),
        handoff_s=st.sampled_from([0.0, 3.0]),
        access=st.sampled_from(AccessType),
    )
    def begin(self, partitions: int, delay_s: float, handoff_s: float, access: AccessType) -> None:
        self.group = Told(partitions, delay_s=delay_s, handoff_s=handoff_s, access=access, land_fences=False)
        self.known: dict[str, dict[int, int]] = {}

    @rule(flow=FLOWS, remembers=st.booleans())
    def bind(self, flow: str, remembers: bool) -> None:
        self.group.bind(flow, self.known.get(flow) if remembers else None)

    @rule(flow=FLOWS, expired=st.booleans())
    def leave(self, flow: str, expired: bool) -> None:
        self.known[flow] = self.group.mapping(flow)
        if expired:
            self.group.expire(flow)
        else:
            self.group.unbind(flow)

    @rule(number=NUMBERS, epoch=st.integers(0, 12))
    def late_report(self, number: int, epoch: int) -> None:
        self.group.event(PartitionDrained(partition=number, epoch=epoch))

    @rule(number=NUMBERS, epoch=st.integers(0, 12), flow=FLOWS, instance=st.integers(1, 4))
    def late_fence(self, number: int, epoch: int, flow: str, instance: int) -> None:
        before = self.group.state
        if all((f.partition, f.epoch) != (number, epoch) for f in pending(before)):
            self.group.event(PartitionFenced(partition=number, epoch=epoch, owner=Owner(flow, f"{flow}{instance}")))
            assert self.group.state is before

    @precondition(lambda self: any(p.phase is Phase.PAUSED for p in self.group.state.partitions.values()))
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        paused = [n for n, p in self.group.state.partitions.items() if p.phase is Phase.PAUSED]
        self.group.drain(data.draw(st.sampled_from(paused)))

    @precondition(lambda self: bool(pending(self.group.state)))
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        self.group.fence(data.draw(st.sampled_from(pending(self.group.state))).partition)

    @precondition(lambda self: bool(pending(self.group.state)))
    @rule(data=st.data())
    def stuck(self, data: st.DataObject) -> None:
        self.group.stuck(data.draw(st.sampled_from(pending(self.group.state))).partition)

    @rule()
    def fence_all(self) -> None:
        self.group.fence()

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 5.0, 20.0]))
    def sleep(self, seconds: float) -> None:
        self.group.sleep(seconds)

    @rule(partitions=st.sets(NUMBERS, max_size=6), access=st.none() | st.sampled_from(AccessType))
    def alter(self, partitions: set[int], access: AccessType | None) -> None:
        self.group.alter(sorted(partitions), access=access)

    @rule(number=NUMBERS, above=st.integers(-2, 3))
    def ahead(self, number: int, above: int) -> None:
        partition = self.group.state.partitions.get(number)
        if partition is not None:
            self.group.ahead(number, max(partition.epoch + above, 0))

    @rule(incarnation=st.sampled_from("123"))
    def reports_lost(self, incarnation: str) -> None:
        self.group.event(ReportsLost(incarnation=incarnation))
        assert self.group.state.incarnation == incarnation

    @invariant()
    def deadlines_are_reached(self) -> None:
        """What waits has a timer, a fence that is asked for, or nobody to wait for."""
        state = self.group.state
        if state.status is not RebalanceStatus.READY:
            assert next_deadline(state) is not None or pending(state)

    @invariant()
    def a_new_leader_sees_no_difference(self) -> None:
        marks = {n: CheckpointMark(epoch=p.epoch, owner=p.owner) for n, p in self.group.state.partitions.items()}
        assert differences(self.group.state, marks) == ()

    def teardown(self) -> None:
        if hasattr(self, "group"):
            silence(self.group)


def silence(group: Group) -> None:
    """REB-15: no flow says anything any more. Fences land, being the coordinator's own work."""
    bound_s = group.settings.max_handoff_time_s + 2 * group.settings.rebalance_delay_s
    started_s = group.now_s
    for flow in [flow.name for flow in group.state.flows.values() if flow.bound]:
        group.event(Tick())
        group.expire(flow)
    group.land_fences = True
    group.fence()
    group.sleep(bound_s)
    assert group.now_s - started_s <= bound_s
    assert group.status is RebalanceStatus.READY
    assert set(group.statuses().values()) <= {PartitionStatus.UNASSIGNED}
    assert group.state.flows == {}


TestHistory = pytest.mark.slow(pytest.mark.conformance("REB-15")(History.TestCase))
TestHistory.settings = examples(120, steps=40)
