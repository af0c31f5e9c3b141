"""A group's end: a deleted queue leaves nothing of its groups, and what the next queue of its name has is not touched;
a group is taken away only when no flow lives in it. And what a repeated batch left out, which goes with its group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Final

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group import lifecycle
from partq_spark.group.left_out import MOST_ENDS, MissedPartitions, missed_folder
from partq_spark.group.lifecycle import Remains, checkpoints_of, require_no_flow
from partq_spark.group.model import Checkpoint, Owner
from partq_spark.group.ownership import Ownership
from partq_spark.log import admin, groups
from partq_spark.log.model import MAX_PARTITIONS
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import Document, ObjectStore
from tests.group.ownership.conftest import KEY, a_record
from tests.log.queues import once
from tests.objects.conftest import memory_store
from tests.support.ownership import MemoryOwnership, OwnershipServer
from tests.support.way import Hooked

A = Owner("a", "i1")
OF_BILLING = "default/orders/billing/checkpoint/0"


@pytest.fixture
def store() -> ObjectStore:
    return memory_store()


def fenced(queue: QueueLog, partition: int, epoch: int, group: str = KEY.group) -> Checkpoint:
    return checkpoints_of(queue, group).fence(partition, to=A, epoch=epoch, start=0)


def made(store: ObjectStore) -> QueueLog:
    """A queue with two partitions, one of which a flow of `billing` has."""
    queue = admin.create_queue(store, KEY.namespace, KEY.queue, 2)
    groups.create_group(queue, KEY.group, [0, 0])
    fenced(queue, 0, 4)
    return queue


def names(store: ObjectStore) -> list[str]:
    return [info.name for info in store.list("default/orders/")]


def test_a_deleted_queue_leaves_nothing_of_its_groups(store: ObjectStore) -> None:
    """Of one whose checkpoint cannot be read, of one that was removed, and what a repetition missed."""
    queue = made(store)
    lifecycle.remove(queue, lifecycle.remains(queue, KEY.group, None), None)
    groups.create_group(queue, "audit", [0, 0])
    fenced(queue, 1, 1, "audit")
    MissedPartitions(store, KEY, lambda: "a", Effects()).note("digest", [0], queue.head.queue_id)
    found = store.load(OF_BILLING)
    assert isinstance(found, Document)
    store.swap(OF_BILLING, {"epoch": "four"}, expected=found.etag)
    assert len(names(store)) == 4
    assert lifecycle.delete_queue(queue) == 4
    assert names(store) == []


@pytest.mark.parametrize(
    ("moment", "partition", "removed"),
    [
        (None, None, 1),  # a deletion that was cut off is finished
        (("list", "/checkpoint/"), 1, 1),  # the next queue keeps what is its own
        (("load", "/checkpoint/0"), 0, 0),  # what is made after the look at the head stays: by the id as it was listed
        (("remove", "/checkpoint/0"), 0, 0),  # what it takes over at that moment stays: by the removal's condition
    ],
)
def test_what_a_former_queue_left_goes_and_nothing_of_the_next_one(
    store: ObjectStore, moment: tuple[str, str] | None, partition: int | None, removed: int
) -> None:
    admin.delete_queue(made(store))
    assert names(store) == [OF_BILLING]
    hooked, taken = Hooked(store), list[Checkpoint]()

    def the_next_queue() -> None:
        assert partition is not None
        taken.append(fenced(admin.create_queue(store, KEY.namespace, KEY.queue, 2), partition, 5))

    hooked.before = None if moment is None else once(*moment, the_next_queue)
    assert lifecycle.remove_remains(QueueLog(hooked, KEY.namespace, KEY.queue)) == removed
    if partition is None:
        assert names(store) == []
    else:
        checkpoints = checkpoints_of(QueueLog(store, KEY.namespace, KEY.queue), KEY.group)
        assert checkpoints.read(partition) == taken[0]
        assert list(checkpoints.list_readable()[0]) == [partition]


# --- whether a flow lives ---------------------------------------------------------------------------------------------


Act = Callable[[Ownership], object]
LEAVING: Final = a_record("billing-2")


def leaves(flows: Ownership) -> None:
    flows.unbind(KEY, "billing-2", LEAVING.instance)


@pytest.mark.parametrize(
    ("before", "then", "lives"),
    [
        (lambda _: None, leaves, None),
        (leaves, lambda _: None, None),
        (lambda _: None, lambda flows: flows.beat(KEY, LEAVING), "billing-2"),
        (lambda _: None, lambda flows: flows.bind(KEY, a_record("billing-3"), replaces=None), "billing-3"),
    ],
    ids=["leaves", "left before", "beats", "binds"],
)
def test_who_beats_or_binds_while_watched_lives_and_none_that_leaves(before: Act, then: Act, lives: str | None) -> None:
    """By an operator's command, which watches until nobody can live any more. Another flow is silent."""
    now_s = 0.0
    flows = MemoryOwnership(OwnershipServer(now_s=lambda: now_s), group=KEY)
    for record in (silent := a_record("billing-1"), LEAVING):
        flows.bind(KEY, record, replaces=None)
    before(flows)
    left = Remains(key=KEY, group=None, checkpoints={}, damaged=(), records=flows.read_flows(KEY))
    happens = [then]

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s
        if happens:
            happens.pop()(flows)

    with nullcontext() if lives is None else pytest.raises(Invalid, match=f"{lives}.*whose heartbeat moves"):
        require_no_flow(flows, left, Effects(now_s=lambda: now_s, sleep=sleep))
    assert lives or now_s >= min(silent.session_timeout_s, 60.0), "the silent one was watched to its end"


# --- what a repeated batch left out -----------------------------------------------------------------------------------


def of_flow(store: ObjectStore, flow: str = "left") -> MissedPartitions:
    return MissedPartitions(store, KEY, lambda: flow, Effects(sleep=lambda _: None))


def test_the_last_ends_of_a_flow_are_kept_and_a_second_look_leaves_out_more_and_never_less(store: ObjectStore) -> None:
    """A process that slept writes of an older end: what the next one wrote meanwhile still counts."""
    slept = of_flow(store)
    slept.note("end-0", [3, 1], "q")
    of_flow(store).note("end-0", [2], "q")
    assert of_flow(store).of("end-0") == {1, 2, 3}
    assert slept.of("end-0") == {1, 3}, "read once: its process is not the one that goes on"
    for number in range(1, MOST_ENDS):
        of_flow(store).note(f"end-{number}", [number], "q")
    slept.note(f"end-{MOST_ENDS}", [9], "q")
    assert [of_flow(store).of(f"end-{number}") for number in range(4)] == [frozenset(), {1}, {2}, {9}]
    assert of_flow(store, "right").of("end-1") == frozenset()


@pytest.mark.parametrize("partitions", [range(MAX_PARTITIONS), range(0, MAX_PARTITIONS, 2), [0, 1, 2, 5, 7, 8, 999]])
def test_as_many_partitions_as_a_queue_may_have(store: ObjectStore, partitions: Collection[int]) -> None:
    for number in range(MOST_ENDS):
        of_flow(store).note(f"{number:032x}", partitions, "q")
    assert of_flow(store).of(f"{0:032x}") == set(partitions)


@pytest.mark.parametrize("key", ["ends", "queue_id"])
def test_one_that_is_damaged_is_corrupt_by_name(store: ObjectStore, key: str) -> None:
    of_flow(store).note("end", [1], "q")
    name = f"{missed_folder(KEY)}left"
    found = store.load(name)
    assert isinstance(found, Document)
    store.swap(name, {**found.metadata, key: "2"}, expected=found.etag)
    with pytest.raises(Corrupt, match=r"missed/left is damaged.*restore the blob, or delete it"):
        of_flow(store).of("end")
