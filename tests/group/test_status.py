"""What `partq status` tells: the four statuses, why something does not flow, and what is left of each timer; and while
a changed partition count is not dealt with, how far it is and who waits for what.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from partq_spark.base.errors import Corrupt
from partq_spark.group.lifecycle import GroupProgress
from partq_spark.group.model import (
    Checkpoint,
    Flow,
    FlowRecord,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    PartitionStatus,
    Phase,
    Progress,
    RebalanceStatus,
)
from partq_spark.group.status import GroupReading, GroupView, view
from partq_spark.log.layouts import resized
from partq_spark.log.model import Group, Head
from tests.group.ownership.conftest import KEY, a_record
from tests.log.queues import empty_head

A, B, C, GONE = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1"), Owner("gone", "g1")
LEASE: Final = Lease(token="l1", name="host:1", beat=3)
UNASSIGNED, UNBOUND = PartitionStatus.UNASSIGNED, PartitionStatus.UNBOUND
PAUSED, READY = PartitionStatus.PAUSED, PartitionStatus.READY


def owned(by: Owner, **more: Any) -> Partition:
    return replace(Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=by), **more)


def state(*partitions: Partition, **more: Any) -> GroupState:
    made = GroupState(
        queue_id="q1",
        settings=GroupSettings(),
        partitions={each.partition: each for each in partitions},
        flows={
            "a": Flow(name="a", instance="a1", bound=True, since=1, active=True),
            "b": Flow(name="b", instance="b1", bound=True, since=2),
            "c": Flow(name="c", instance="c1", bound=True, since=3),
            "gone": Flow(name="gone", instance="g1", bound=False, since=0),
        },
    )
    return replace(made, **more)


def checkpoint(
    partition: int, offset: int | None, owner: Owner | None = A, epoch: int = 1, may_reach: int = 0
) -> Checkpoint:
    return Checkpoint(
        partition=partition, epoch=epoch, owner=owner, offset=offset, redelivered_below=0, updated="",
        may_reach=max(may_reach, offset or 0), queue_id="q1", since=0, etag=None,
    )  # fmt: skip


def reported(instance: str = "a1", **progress: Progress) -> dict[str, FlowRecord]:
    """By flow a, of the partitions p0, p1 …"""
    return {"a": a_record("a", instance, **progress)}


def seen(group: GroupState | None, **more: Any) -> GroupView:
    """A queue with 5,000 messages in each partition, which the group begins at the eighth, or `head`, from its
    beginning.
    """
    count = len(group.partitions) if group else 4
    head = more.pop("head", None)
    begins = 7 if head is None else 0
    head = head or replace(empty_head(count), next=(5000,) * count)
    progress = GroupProgress(
        head=head,
        group=Group(since_sequence=1, start=(begins,) * len(head.next)),
        checkpoints=more.pop("checkpoints", {}),
        damaged=more.pop("damaged", {}),
    )
    made = GroupReading(
        key=KEY, progress=progress, state=group, state_token="t1" if group else None, lease=LEASE, lease_age_s=0.4
    )
    return view(replace(made, **more))


def paused(by: Owner) -> Partition:
    return owned(by, phase=Phase.PAUSED, to=B, deadline_s=2.0)


def fencing(to: Owner | None) -> Partition:
    return owned(A, phase=Phase.FENCING, to=to, to_epoch=2)


ACKNOWLEDGED: Final = {0: checkpoint(0, 1000)}
WAITING: Final = {"records": reported(p0=Progress(4000, 1000)), "checkpoints": ACKNOWLEDGED, "state_age_s": 0.6}
UNSAID: Final = {"a": replace(a_record("a", "a1"), progress=None)}
NOT_TAKEN: Final = "flow a has not taken it yet"
NOT_BOUND: Final = "is not bound, waits for the running handoffs"
HANDED: Final = "paused: its checkpoint is being handed to flow b at epoch 2"


@pytest.mark.conformance("FLO-01")
@pytest.mark.parametrize(
    ("partition", "more", "status", "reason"),
    [
        (Partition(partition=0), {}, UNASSIGNED, "no flow has it"),
        (owned(A), {}, READY, NOT_TAKEN),
        (owned(A), {"records": reported("former", p0=Progress(9, 9))}, READY, NOT_TAKEN),
        (owned(A), {"records": reported(p0=Progress(9, 8))}, READY, ""),
        (owned(A), {"checkpoints": {0: checkpoint(0, 8, may_reach=12)}}, READY, ""),
        (owned(A), {"checkpoints": {0: checkpoint(0, 8, epoch=2, may_reach=12)}}, READY, NOT_TAKEN),
        (owned(A), {"records": reported(), "checkpoints": {0: checkpoint(0, 8)}}, READY, NOT_TAKEN),
        (owned(A), {"records": UNSAID, "checkpoints": {0: checkpoint(0, 8)}}, READY, ""),
        (owned(GONE), {}, UNBOUND, f"flow gone {NOT_BOUND}"),
        (owned(Owner("a", "former")), {}, UNBOUND, f"the former instance of flow a {NOT_BOUND}"),
        (paused(A), WAITING, PAUSED, "paused: waits for 3,000 messages of flow a, 1.4 s left, then goes to b"),
        (paused(GONE), {}, UNBOUND, f"flow gone {NOT_BOUND}"),
        (fencing(B), {}, PAUSED, HANDED),
        (fencing(GONE), {}, UNBOUND, f"flow gone {NOT_BOUND}"),
        (fencing(None), {}, UNASSIGNED, "no flow has it"),
    ],
)
def test_every_partition_has_exactly_one_of_four_statuses_and_says_why_it_does_not_flow(
    partition: Partition, more: dict[str, Any], status: PartitionStatus, reason: str
) -> None:
    (found,) = seen(state(partition), **more).partitions
    assert (found.status, found.reason) == (status, reason)


def test_what_nobody_says_counts_from_the_groups_start() -> None:
    (found,) = seen(state(owned(A))).partitions
    assert (found.acknowledged, found.delivered, found.lag) == (7, None, 4993)
    newer: dict[str, Any] = {"records": reported(p0=Progress(9, 8)), "checkpoints": {0: checkpoint(0, 12)}}
    assert seen(state(owned(A)), **newer).partitions[0].delivered == 12, "at least what is acknowledged"


@pytest.mark.parametrize(("may_reach", "delivered"), [(8, 8), (12, 12), (6000, 5000)])
def test_where_its_owner_does_not_say_it_what_it_may_have_delivered_counts(may_reach: int, delivered: int) -> None:
    marks = {0: checkpoint(0, 8, may_reach=may_reach)}
    assert seen(state(owned(A)), records=UNSAID, checkpoints=marks).partitions[0].delivered == delivered


@pytest.mark.parametrize(("state_token", "left_s"), [("t1", 1.5), ("t0", 4.0)], ids=["of this state", "of another"])
def test_a_leases_timers_are_fresher_than_those_of_the_same_state(state_token: str, left_s: float) -> None:
    lease = replace(LEASE, timers={"holddown": 2.0}, state_token=state_token)
    holddown = state(owned(GONE), status=RebalanceStatus.HOLDDOWN, holddown_until_s=5.0)
    found = seen(holddown, state_age_s=1.0, lease=lease, lease_age_s=0.5)
    assert found.rebalance_deadline_s == pytest.approx(left_s)
    assert found.partitions[0].reason == f"flow gone is not bound, mapped anew in {left_s} s"


@pytest.mark.parametrize(
    ("beats_age_s", "silent"), [({"a": 0.2}, False), ({"a": 5.0}, False), ({"a": 5.1}, True), ({}, True)]
)
@pytest.mark.parametrize("group", [state(owned(A)), None], ids=["with a state", "without"])
def test_a_flow_without_a_heartbeat_for_half_of_its_session_timeout_is_silent(
    beats_age_s: dict[str, float], silent: bool, group: GroupState | None
) -> None:
    flow = seen(group, records=reported(), beats_age_s=beats_age_s).flows[0]
    assert (flow.flow, flow.silent, flow.last_seen_s) == ("a", silent, beats_age_s.get("a"))
    assert (flow.active, flow.bound, flow.partitions) == ((True, True, (0,)) if group else (False, True, ()))


@pytest.mark.parametrize(
    ("group", "more", "note"),
    [
        (state(owned(A)), {"lease": None, "lease_age_s": None}, "start one with"),
        (state(owned(A)), {"lease_age_s": 61.0}, "host:1 was last heard of 61 s ago"),
        (None, {"kept": False}, "--ownership"),
    ],
)
def test_a_silent_or_missing_coordinator_is_told(group: GroupState | None, more: dict[str, Any], note: str) -> None:
    assert note in seen(group, **more).notes[0]
    assert seen(state(owned(A))).notes == ()


@pytest.mark.parametrize(
    ("kept", "status", "reason"),
    [
        (True, UNBOUND, "flow gone took it last, no coordinator has seen the group since"),
        (False, READY, "flow gone took it last, whether it runs is not known here"),
    ],
)
def test_without_a_state_the_checkpoints_speak(kept: bool, status: PartitionStatus, reason: str) -> None:
    marks = {1: checkpoint(1, 40, GONE, epoch=3), 2: checkpoint(2, 40, None, epoch=3)}
    found = seen(None, kept=kept, checkpoints=marks).partitions
    assert [each.reason[:11] for each in found] == ["no flow has", "flow gone t", "it was take", "no flow has"]
    assert [each.status for each in found] == [UNASSIGNED, status, UNASSIGNED, UNASSIGNED]
    assert (found[1].flow, found[1].epoch, found[1].acknowledged, found[1].reason) == ("gone", 3, 40, reason)


# --- a changed partition count ----------------------------------------------------------------------------------------


def queue(*layouts: tuple[int, ...]) -> Head:
    """A queue that had one layout after the other, published up to these ends in each."""
    head = empty_head(len(layouts[0]))
    for ends in layouts:
        head = head if len(ends) == head.partitions else resized(head, len(ends))
        head = replace(head, next=(*ends, *head.next[len(ends) :]))
    return head


def shown(head: Head, done: dict[int, int], known: int | None = None, **more: Any) -> GroupView:
    """The group with a coordinator that knows so many partitions, all of flow a; None: without a coordinator."""
    group = None if known is None else state(*(owned(A, partition=number) for number in range(known)))
    changed = {"head": head, "checkpoints": {number: checkpoint(number, offset) for number, offset in done.items()}}
    return seen(group, **(changed | more))


GROWN: Final = queue((1000, 2000, 3000, 4000), (1000, 2000, 3000, 4000, 5, 6, 7, 8))
ALL_NEW: Final = queue((10,), (10, 5), (11, 6, 7))
ONE_LEFT_OF_MORE: Final = queue((10, 10), (12,))
OF_12: Final = queue(tuple(range(1, 13)), (50,) * 11)


@pytest.mark.conformance("RES-03")
@pytest.mark.parametrize(
    ("head", "done", "partition", "what", "had"),
    [
        (GROWN, {1: 500}, 5, "1,500 messages of partition 1", "4 partitions"),
        (GROWN, {2: 2999}, 6, "1 message of partition 2", "4 partitions"),
        # the counts are those of what is waited for and not of its own
        (ALL_NEW, {}, 0, "5 messages of partition 1", "2 partitions"),
        (ALL_NEW, {}, 2, "15 messages of partitions 0 and 1", "1 or 2 partitions"),
        # of many the first are named, and never the one that waits
        (OF_12, {}, 3, "74 messages of partitions 0, 1, 2, 4, 5, 6, 7, 8 and 3 more", "12 partitions"),
    ],
)
def test_a_partition_says_what_it_awaits(head: Head, done: dict[int, int], partition: int, what: str, had: str) -> None:
    for known in (None, head.partitions):
        found = shown(head, done, known).partitions[partition]
        assert found.reason.partition("waits for ")[2] == f"{what} from when the queue had {had}"
    if head is GROWN:
        finished = shown(head, {0: 1000, 1: 2000, 2: 3000, 3: 4000}, known).partitions
        assert not any("waits" in each.reason for each in finished)


def test_nobody_waits_for_what_the_owner_of_a_damaged_checkpoint_has_acknowledged() -> None:
    for partition_1, waits in ((4, True), (10, False)):
        records = reported(p0=ALL_TEN, p1=Progress(10, partition_1))
        found = shown(ONE_LEFT_OF_MORE, {0: 10}, 2, records=records, damaged={1: Corrupt("cut short")})
        assert ("waits for 6 messages of partition 1" in found.partitions[0].reason) == waits
        assert found.partitions[1].acknowledged == partition_1


@pytest.mark.conformance("RES-03")
def test_a_partition_that_is_being_delivered_says_where_it_will_wait() -> None:
    for acknowledged, since in ((9, "from offset 10 on "), (10, "")):
        found = shown(ONE_LEFT_OF_MORE, {0: acknowledged, 1: 4}, 2).partitions[0]
        assert f"{since}waits for 6 messages of partition 1 from" in found.reason
        assert ("from offset" in found.reason) == bool(since)


SHRUNK: Final = queue((10, 10, 10, 120), (10, 10, 10))
ALL_DONE: Final = {0: 10, 1: 10, 2: 10, 3: 120}
ALL_TEN: Final = Progress(10, 10)
WITHOUT_OFFSETS: Final = {number: checkpoint(number, None, may_reach=10) for number in (0, 1)}
ONE_LEFT: Final = queue((10, 10), (10,))
RETIRED: Final[dict[str, Any]] = {
    "state": state(owned(A), retired={1: 2}),
    "checkpoints": {0: checkpoint(0, 10), 1: checkpoint(1, 10, None, 2)},
}
LEAVES: Final = "leaves the queue at offset 120: 120 messages left"


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize(
    ("found", "scale_status", "partitions", "reason_of_the_last"),
    [
        (seen(state(owned(A))), "Ready", 1, NOT_TAKEN),
        (seen(state(owned(A)), head=queue((9,), (9, 0, 0, 0))), "ScalingUp", 1, NOT_TAKEN),
        (shown(queue((0,) * 4, (0,) * 8), {}, 4), "ScalingUp", 4, ""),
        (shown(queue((0,) * 4, (0,) * 3), {}, 3), "Ready", 3, ""),
        (shown(SHRUNK, ALL_DONE | {3: 0}), "ScalingDown", 4, LEAVES),
        (shown(SHRUNK, ALL_DONE | {3: 0}, 4), "ScalingDown", 4, LEAVES),
        (shown(SHRUNK, ALL_DONE), "Ready", 3, "flow a took it last, no coordinator has seen the group since"),
        (shown(SHRUNK, ALL_DONE, 4), "ScalingDown", 4, ""),  # its coordinator has not followed yet
        (shown(SHRUNK, ALL_DONE, 3), "Ready", 3, ""),
        # where checkpoints have no offsets, one that is closed says how far it is
        (
            shown(ONE_LEFT, {}, 2, records=reported(p0=ALL_TEN, p1=ALL_TEN), checkpoints=WITHOUT_OFFSETS),
            "ScalingDown",
            2,
            "",
        ),
        (shown(ONE_LEFT, {}, **RETIRED), "Ready", 1, ""),
    ],
)
def test_a_changed_count_is_dealt_with_when_what_leaves_is_finished_and_the_coordinator_has_followed(
    found: GroupView, scale_status: str, partitions: int, reason_of_the_last: str
) -> None:
    assert (found.scale_status, [each.partition for each in found.partitions]) == (
        scale_status,
        list(range(partitions)),
    )
    assert reason_of_the_last in found.partitions[-1].reason
    assert bool(reason_of_the_last) == bool(found.partitions[-1].reason)


def test_a_reason_that_is_there_already_stays() -> None:
    unassigned = state(Partition(partition=0, phase=Phase.FREE), flows={})
    head = queue((0, 9), (3,))
    (found,) = seen(unassigned, head=head).partitions
    assert found.reason == "no flow is bound; waits for 9 messages of partition 1 from when the queue had 2 partitions"
