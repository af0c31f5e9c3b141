"""What `partq status` says while a changed partition count is not dealt with: how far it is, who waits for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partq_spark.group.model import Delivery, Partition, PartitionStatus, Phase
from partq_spark.group.status import GroupView, view
from partq_spark.log.layouts import resized
from partq_spark.log.model import Head
from tests.group.test_status import A, checkpoint, owned, record, seen, state
from tests.log.queues import empty_head


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
