"""What `partq status` tells: the four statuses, why something does not flow, and what is left of each timer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partq_spark.client import words
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.model import (
    Delivery,
    Flow,
    FlowRecord,
    GroupKey,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    PartitionStatus,
    Phase,
    RebalanceStatus,
)
from partq_spark.group.status import GroupReading, GroupView, PartitionView, view

KEY = GroupKey("default", "orders", "billing")
A, B, GONE = Owner("a", "a1"), Owner("b", "b1"), Owner("gone", "g1")


def checkpoint(partition: int, offset: int | None, owner: Owner | None = A, epoch: int = 1) -> Checkpoint:
    return Checkpoint(
        partition=partition,
        epoch=epoch,
        owner=owner,
        offset=offset,
        redelivered_below=0,
        updated="2026-11-20T00:00:00Z",
        queue_id="q1",
        since=0,
        etag=None,
    )


def record(flow: str, instance: str, deliveries: dict[int, Delivery] | None = None) -> FlowRecord:
    return FlowRecord(
        flow=flow,
        instance=instance,
        queue_id="q1",
        incarnation="i1",
        bound=True,
        session_timeout_s=10.0,
        deliveries=deliveries or {},
    )


def state(*partitions: Partition, status: RebalanceStatus = RebalanceStatus.READY, **more: float | None) -> GroupState:
    return GroupState(
        queue_id="q1",
        incarnation="i1",
        settings=GroupSettings(),
        partitions={each.partition: each for each in partitions},
        flows={
            "a": Flow(name="a", instance="a1", bound=True, since=1, active=True),
            "b": Flow(name="b", instance="b1", bound=True, since=2),
            "gone": Flow(name="gone", instance="g1", bound=False, since=0),
        },
        status=status,
        holddown_until_s=more.get("holddown_until_s"),
    )


def seen(group_state: GroupState | None, **more: object) -> GroupReading:
    made = GroupReading(
        key=KEY,
        ends=(5000, 5000, 5000, 5000),
        starts=(7, 7, 7, 7),
        layout_partitions=len(group_state.partitions) if group_state else 4,
        checkpoints={},
        state=group_state,
        state_token="t1" if group_state else None,
        lease=Lease(token="l1", name="host:1", beat=3),
        lease_age_s=0.4,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def only(group: GroupView) -> PartitionView:
    assert len(group.partitions) == 1
    return group.partitions[0]


def owned(by: Owner, **more: object) -> Partition:
    made = Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=by)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.conformance("FLO-01")
@pytest.mark.parametrize(
    ("partition", "status"),
    [
        (Partition(partition=0), PartitionStatus.UNASSIGNED),
        (owned(A), PartitionStatus.READY),
        (owned(GONE), PartitionStatus.UNBOUND),
        (owned(Owner("a", "former")), PartitionStatus.UNBOUND),
        (owned(A, phase=Phase.PAUSED, to=B, deadline_s=1.0), PartitionStatus.PAUSED),
        (owned(GONE, phase=Phase.PAUSED, to=B, deadline_s=1.0), PartitionStatus.UNBOUND),
        (owned(A, phase=Phase.FENCING, to=B, to_epoch=2), PartitionStatus.PAUSED),
        (owned(A, phase=Phase.FENCING, to=GONE, to_epoch=2), PartitionStatus.UNBOUND),
        (owned(A, phase=Phase.FENCING, to=None, to_epoch=2), PartitionStatus.UNASSIGNED),
    ],
)
def test_every_partition_has_exactly_one_of_four_statuses(partition: Partition, status: PartitionStatus) -> None:
    assert only(view(seen(state(partition)))).status is status


def test_a_pause_says_for_what_it_waits_and_how_long() -> None:
    paused = owned(A, phase=Phase.PAUSED, to=B, deadline_s=2.0)
    found = view(
        seen(
            state(paused, status=RebalanceStatus.REBALANCING),
            records={"a": record("a", "a1", {0: Delivery(epoch=1, delivered=4000, acknowledged=1000)})},
            checkpoints={0: checkpoint(0, 1000)},
            state_age_s=0.6,
        )
    )
    partition = only(found)
    assert partition.reason == "paused: waits for 3,000 messages of flow a, 1.4 s left, then goes to b"
    assert partition.handoff is not None
    assert (partition.handoff.to, partition.handoff.waiting_for) == ("b", 3000)
    assert (partition.acknowledged, partition.delivered, partition.lag) == (1000, 4000, 4000)


def test_the_leases_timers_are_fresher_than_the_states() -> None:
    holddown = state(owned(GONE), status=RebalanceStatus.HOLDDOWN, holddown_until_s=5.0)
    lease = Lease(token="l1", name="host:1", beat=9, timers={"holddown": 2.0}, state_token="t1")
    fresh = view(seen(holddown, state_age_s=1.0, lease=lease, lease_age_s=0.5))
    assert fresh.rebalance_deadline_s == pytest.approx(1.5)
    assert only(fresh).reason == "flow gone is not bound, mapped anew in 1.5 s"
    of_another_state = replace(lease, state_token="t0")
    assert view(seen(holddown, state_age_s=1.0, lease=of_another_state)).rebalance_deadline_s == pytest.approx(4.0)


def test_what_nobody_reports_counts_from_the_groups_start() -> None:
    partition = only(view(seen(state(owned(A)))))
    assert (partition.acknowledged, partition.delivered, partition.lag) == (7, None, 4993)
    assert partition.reason == "flow a has not taken it yet"


def test_an_entry_of_another_epoch_does_not_count() -> None:
    of_the_past = {"a": record("a", "a1", {0: Delivery(epoch=0, delivered=9, acknowledged=9)})}
    partition = only(view(seen(state(owned(A)), records=of_the_past)))
    assert partition.delivered is None
    assert partition.reason == "flow a has not taken it yet"


def test_what_flows_needs_no_reason() -> None:
    reports = {"a": record("a", "a1", {0: Delivery(epoch=1, delivered=9, acknowledged=8)})}
    found = view(seen(state(owned(A)), records=reports, beats_age_s={"a": 0.2}))
    assert only(found).reason == ""
    assert found.notes == ()
    flow = next(each for each in found.flows if each.flow == "a")
    assert (flow.active, flow.bound, flow.partitions, flow.last_seen_s) == (True, True, (0,), 0.2)


@pytest.mark.parametrize(
    ("beats_age_s", "silent"), [({"a": 0.2}, False), ({"a": 5.0}, False), ({"a": 5.1}, True), ({}, True)]
)
def test_a_flow_without_a_heartbeat_for_half_of_its_session_timeout_is_silent(
    beats_age_s: dict[str, float], silent: bool
) -> None:
    for group_state in (state(owned(A)), None):
        found = view(seen(group_state, records={"a": record("a", "a1")}, beats_age_s=beats_age_s))
        assert {each.flow: each.silent for each in found.flows}["a"] is silent
        assert words.flow_state(found.flows[0]) == ("silent" if silent else "active" if group_state else "inactive")


def test_a_silent_or_missing_coordinator_is_told() -> None:
    assert "start one with" in view(seen(state(owned(A)), lease=None, lease_age_s=None)).notes[0]
    silent = view(seen(state(owned(A)), lease_age_s=61.0)).notes[0]
    assert "host:1 was last heard of 61 s ago" in silent


def test_without_a_state_the_checkpoints_speak() -> None:
    found = view(seen(None, checkpoints={1: checkpoint(1, 40, GONE, epoch=3)}, lease=None, lease_age_s=None))
    assert [each.status for each in found.partitions] == [
        PartitionStatus.UNASSIGNED,
        PartitionStatus.UNBOUND,
        PartitionStatus.UNASSIGNED,
        PartitionStatus.UNASSIGNED,
    ]
    assert (found.partitions[1].flow, found.partitions[1].epoch, found.partitions[1].acknowledged) == ("gone", 3, 40)
    assert "no coordinator has seen the group since" in found.partitions[1].reason


def test_without_ownership_nobody_says_who_is_bound() -> None:
    found = view(seen(None, kept=False, checkpoints={1: checkpoint(1, 40, A)}, lease=None, lease_age_s=None))
    assert found.partitions[1].status is PartitionStatus.READY
    assert "--ownership" in found.notes[0]


def test_a_layout_that_the_state_does_not_have_yet_is_scaling() -> None:
    assert view(seen(state(owned(A)))).scale_status == "Ready"
    assert view(seen(state(owned(A)), layout_partitions=4)).scale_status == "ScalingUp"
