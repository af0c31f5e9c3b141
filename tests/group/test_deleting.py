"""A deleted queue leaves nothing of its groups, and what the next queue of its name has is not touched."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.group import deleting, lifecycle
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.missed_partitions import MissedPartitions
from partq_spark.group.model import GroupKey, Owner
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects.memory import MemoryStore

KEY = GroupKey("default", "orders", "billing")
A = Owner("a", "i1")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: 0.0, rng=Random(1))


def made(store: MemoryStore) -> QueueLog:
    """A queue with two partitions, one of which a flow of `billing` has."""
    queue = admin.create_queue(store, "default", "orders", 2)
    admin.create_group(queue, "billing", [0, 0])
    lifecycle.checkpoints_of(queue, KEY.group).fence(0, to=A, epoch=4, start=0, delivered=None)
    return queue


def names(store: MemoryStore) -> list[str]:
    return [info.name for info in store.list("default/orders/")]


def test_a_deleted_queue_leaves_nothing_of_its_groups(store: MemoryStore) -> None:
    queue = made(store)
    lifecycle.remove(queue, lifecycle.remains(queue, "billing", None), None)
    admin.create_group(queue, "audit", [0, 0])
    lifecycle.checkpoints_of(queue, "audit").fence(1, to=A, epoch=1, start=0, delivered=None)
    MissedPartitions(store, KEY, lambda: "a", Effects()).note("digest", [0], queue.head.queue_id)
    assert len(names(store)) == 4
    assert deleting.delete_queue(queue) == 4
    assert names(store) == []


def test_a_deletion_that_was_cut_off_is_finished(store: MemoryStore) -> None:
    queue = made(store)
    admin.delete_queue(queue)
    assert names(store) == ["default/orders/billing/checkpoint/0"]
    assert deleting.remove_remains(QueueLog(store, "default", "orders")) == 1
    assert names(store) == []


def test_also_one_that_cannot_be_read_goes(store: MemoryStore) -> None:
    queue = made(store)
    name = "default/orders/billing/checkpoint/0"
    document = store.load(name)
    store.swap(name, {"epoch": "four"}, expected=getattr(document, "etag"))  # noqa: B009
    assert deleting.delete_queue(queue) == 2
    assert names(store) == []


def test_the_next_queue_keeps_what_is_its_own(store: MemoryStore) -> None:
    admin.delete_queue(made(store))
    queue = admin.create_queue(store, "default", "orders", 2)
    checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
    mine = checkpoints.fence(1, to=A, epoch=1, start=0, delivered=None)
    assert deleting.remove_remains(queue) == 1
    assert checkpoints.list_checkpoints().keys() == {1}
    assert checkpoints.read(1) == mine


class Interrupted:
    """A store in which something happens before a document is removed."""

    def __init__(self, real: MemoryStore, before: Callable[[], object]) -> None:
        self._real = real
        self._before = before

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def remove(self, name: str, *, expected: str) -> None:
        if "/checkpoint/" in name:
            self._before()
        self._real.remove(name, expected=expected)


def test_what_the_next_queue_takes_over_at_that_moment_stays(store: MemoryStore) -> None:
    """The guard is the condition of the removal."""
    admin.delete_queue(made(store))
    queue = admin.create_queue(store, "default", "orders", 2)
    checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
    taken: list[Checkpoint] = []

    def take() -> None:
        taken.append(checkpoints.fence(0, to=A, epoch=5, start=0, delivered=None))

    queue.store = Interrupted(store, take)  # type: ignore[assignment]
    assert deleting.remove_remains(queue) == 0
    assert checkpoints.read(0) == taken[0]


def test_what_is_made_after_the_look_at_the_head_stays(store: MemoryStore) -> None:
    """The guard is the queue's id as it was listed."""
    admin.delete_queue(made(store))
    later = QueueLog(store, "default", "orders")
    taken: list[Checkpoint] = []
    load = store.load

    def made_meanwhile(name: str, *, known: str | None = None) -> object:
        if "/checkpoint/" in name and not taken:
            taken.append(Checkpoint)  # type: ignore[arg-type] # not again
            queue = admin.create_queue(store, "default", "orders", 2)
            checkpoints = lifecycle.checkpoints_of(queue, KEY.group)
            taken.append(checkpoints.fence(0, to=A, epoch=5, start=0, delivered=None))
        return load(name, known=known)

    store.load = made_meanwhile  # type: ignore[assignment,method-assign]
    assert deleting.remove_remains(later) == 0
    assert names(store) == ["default/orders/_head.json", "default/orders/billing/checkpoint/0"]


def test_a_queue_that_is_not_there_is_said(store: MemoryStore) -> None:
    with pytest.raises(Invalid, match="does not exist"):
        deleting.delete_queue(QueueLog(store, "default", "orders"))
