"""What `partq status` tells: the four statuses, why something does not flow, and what is left of each timer; and while
a changed partition count is not dealt with, how far it is and who waits for what.
"""

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
from partq_spark.log.layouts import resized
from partq_spark.log.model import Head
from tests.log.queues import empty_head

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


# --- a changed partition count ----------------------------------------------------------------------------------------


def published(head: Head, *ends: int) -> Head:
    return replace(head, next=(*ends, *head.next[len(ends) :]))


def shown(head: Head, done: dict[int, int], known: list[int] | None = None, **more: object) -> GroupView:
    """The group with a coordinator that knows the partitions `known`, all of flow a; None: without a coordinator."""
    group = None if known is None else state(*(owned(A, partition=number) for number in known))
    return view(
        seen(
            group,
            head=head,
            ends=head.next,
            starts=(0,) * len(head.next),
            layout_partitions=head.partitions,
            checkpoints={number: checkpoint(number, offset) for number, offset in done.items()},
            **more,
        )
    )


def reasons(group: GroupView) -> dict[int, str]:
    return {each.partition: each.reason.split("; ")[-1] for each in group.partitions if each.reason}


GROWN = published(resized(published(empty_head(4), 1000, 2000, 3000, 4000), 8), 1000, 2000, 3000, 4000, 5, 6, 7, 8)


@pytest.mark.conformance("RES-03")
def test_a_partition_says_what_it_waits_for() -> None:
    found = shown(GROWN, {0: 1000, 1: 500, 2: 2999, 3: 4000, 4: 0, 5: 0, 6: 0, 7: 0}, list(range(8)))
    assert found.scale_status == "ScalingUp"
    waits = {number: text for number, text in reasons(found).items() if "waits" in text}
    assert waits == {
        5: "waits for 1,500 messages of partition 1 from when the queue had 4 partitions",
        6: "waits for 1 message of partition 2 from when the queue had 4 partitions",
    }
    assert all(each.status is PartitionStatus.READY for each in found.partitions)


@pytest.mark.conformance("RES-03")
def test_several_partitions_and_several_counts_are_named() -> None:
    head = resized(published(resized(published(empty_head(1), 10), 2), 20, 5), 3)
    head = published(head, 21, 6, 7)
    texts = reasons(shown(head, {0: 9, 1: 0}, None))
    assert texts[2] == "waits for 16 messages of partitions 0 and 1 from when the queue had 2 partitions"
    assert texts[1] == "waits for 1 message of partition 0 from when the queue had 1 partition"


def test_of_many_partitions_the_first_are_named_and_never_the_one_that_waits() -> None:
    head = published(resized(published(empty_head(12), *range(1, 13)), 11), *[50] * 11)
    texts = reasons(shown(head, {}, None))
    when = "from when the queue had 12 partitions"
    assert texts[3] == f"waits for 74 messages of partitions 0, 1, 2, 4, 5, 6, 7, 8 and 3 more {when}"
    assert texts[10] == f"waits for 67 messages of partitions 0, 1, 2, 3, 4, 5, 6, 7 and 3 more {when}"


def test_the_counts_are_those_of_what_is_waited_for_and_not_of_its_own() -> None:
    head = published(resized(published(resized(published(empty_head(1), 10), 2), 10, 5), 3), 11, 6, 7)
    texts = reasons(shown(head, {}, None))
    assert texts[0] == "waits for 5 messages of partition 1 from when the queue had 2 partitions"
    assert texts[2] == "waits for 15 messages of partitions 0 and 1 from when the queue had 1 or 2 partitions"


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize("known", [None, [0, 1, 2, 3]], ids=["without a coordinator", "with one"])
def test_a_partition_that_leaves_says_so_until_it_is_finished(known: list[int] | None) -> None:
    head = resized(published(empty_head(4), 10, 10, 10, 120), 3)
    found = shown(head, {0: 10, 1: 10, 2: 10, 3: 0}, known)
    assert found.scale_status == "ScalingDown"
    assert [each.partition for each in found.partitions] == [0, 1, 2, 3]
    assert "leaves the queue at offset 120: 120 messages left" in found.partitions[3].reason
    done = shown(head, {0: 10, 1: 10, 2: 10, 3: 120}, known)
    assert done.scale_status == ("Ready" if known is None else "ScalingDown"), "its coordinator has not followed yet"
    assert [each.partition for each in done.partitions] == list(range(3 if known is None else 4))
    assert shown(head, {0: 10, 1: 10, 2: 10, 3: 120}, [0, 1, 2]).scale_status == "Ready"


def test_a_coordinator_that_has_not_followed_shows() -> None:
    assert shown(resized(empty_head(4), 8), {}, [0, 1, 2, 3]).scale_status == "ScalingUp"
    assert shown(resized(empty_head(4), 3), {}, [0, 1, 2, 3]).scale_status == "ScalingDown"
    assert shown(resized(empty_head(4), 3), {}, [0, 1, 2]).scale_status == "Ready"


def test_without_checkpoints_the_flows_word_counts() -> None:
    """And of a partition that has gone, that it has gone."""
    head = resized(published(empty_head(2), 10, 10), 1)
    said = {"a": record("a", "a1", {1: Delivery(epoch=1, delivered=10, acknowledged=10)})}
    assert shown(head, {0: 0, 1: 0}, [0, 1]).scale_status == "ScalingDown"
    both = {"a": replace(said["a"], deliveries={n: Delivery(epoch=1, delivered=10, acknowledged=10) for n in (0, 1)})}
    assert reasons(shown(head, {0: 0, 1: 0}, [0, 1], records=both)) == {}
    gone = replace(state(owned(A)), retired={1: 2})
    marks = {0: checkpoint(0, 10), 1: checkpoint(1, 0, None, 2)}
    found = view(seen(gone, head=head, ends=head.next, starts=(0, 0), layout_partitions=1, checkpoints=marks))
    assert found.scale_status == "Ready"


def test_a_reason_that_is_there_already_stays() -> None:
    unassigned = replace(state(Partition(partition=0, phase=Phase.FREE)), flows={})
    head = published(resized(published(empty_head(2), 0, 9), 1), 3, 9)
    found = view(seen(unassigned, head=head, ends=head.next, starts=(0, 0), layout_partitions=1))
    assert found.partitions[0].reason == (
        "no flow is bound; waits for 9 messages of partition 1 from when the queue had 2 partitions"
    )
