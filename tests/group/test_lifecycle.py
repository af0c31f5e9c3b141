"""A group's end: a deleted queue leaves nothing of its groups, and what the next queue of its name has is not touched;
a group is taken away only when no flow lives in it. And what a repeated batch left out, which goes with its group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.group import deleting, lifecycle
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.lifecycle import Remains, require_no_flow
from partq_spark.group.missed_partitions import MOST_ENDS, MissedPartitions, missed_folder
from partq_spark.group.model import Owner
from partq_spark.log import admin
from partq_spark.log.model import MAX_PARTITIONS
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore
from tests.group.ownership.conftest import KEY, a_record
from tests.support.ownership import MemoryOwnership, OwnershipServer

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


# --- whether a flow lives ---------------------------------------------------------------------------------------------


class Watch:
    """Two flows are bound, of which one is silent; a look later something happens."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.flows = MemoryOwnership(OwnershipServer(now_s=lambda: self.now_s), group=KEY)
        self.silent, self.other = a_record("billing-1"), a_record("billing-2")
        for record in (self.silent, self.other):
            self.flows.bind(KEY, record, replaces=None)

    def look(self, then: Callable[[], object]) -> None:
        """As an operator's command does, which watches until nobody can live any more."""
        left = Remains(key=KEY, group=None, checkpoints={}, damaged=(), records=self.flows.read_flows(KEY))
        waits: list[Callable[[], object]] = [then]

        def sleep(pause_s: float) -> None:
            self.now_s += pause_s
            if waits:
                waits.pop()()

        require_no_flow(self.flows, left, Effects(now_s=lambda: self.now_s, sleep=sleep))


def test_a_flow_that_leaves_while_it_is_watched_does_not_live() -> None:
    watch = Watch()
    watch.look(lambda: watch.flows.unbind(KEY, "billing-2", watch.other.instance))
    assert watch.now_s >= min(watch.silent.session_timeout_s, 60.0), "the silent one was watched to its end"


def test_a_flow_that_left_before_does_not_live() -> None:
    watch = Watch()
    watch.flows.unbind(KEY, "billing-2", watch.other.instance)
    watch.look(lambda: None)


@pytest.mark.parametrize("what", ["beats", "binds"])
def test_a_flow_that_beats_or_binds_lives(what: str) -> None:
    watch = Watch()
    if what == "beats":
        act: Callable[[], object] = lambda: watch.flows.beat(KEY, "billing-2", watch.other.instance)  # noqa: E731
    else:
        act = lambda: watch.flows.bind(KEY, a_record("billing-3"), replaces=None)  # noqa: E731
    with pytest.raises(Invalid, match=f"billing-{2 if what == 'beats' else 3}.*whose heartbeat moves"):
        watch.look(act)


# --- what a repeated batch left out -----------------------------------------------------------------------------------


def of_flow(store: MemoryStore, flow: str = "left") -> MissedPartitions:
    return MissedPartitions(store, KEY, lambda: flow, Effects(sleep=lambda _: None))


def test_it_speaks_of_one_end_of_one_flow(store: MemoryStore) -> None:
    of_flow(store).note("first", [3, 1], "q")
    assert of_flow(store).of("first") == {1, 3}
    assert of_flow(store).of("second") == frozenset()
    assert of_flow(store, "right").of("first") == frozenset()
    of_flow(store).note("second", [2], "q")
    assert of_flow(store).of("second") == {2}


def test_the_last_few_ends_are_kept(store: MemoryStore) -> None:
    """A process that slept writes of an older end: what the next one wrote meanwhile still counts."""
    for number in range(MOST_ENDS + 1):
        of_flow(store).note(f"end-{number}", [number], "q")
    assert of_flow(store).of("end-0") == frozenset()
    assert [of_flow(store).of(f"end-{number}") for number in (1, 2, 3)] == [{1}, {2}, {3}]


@pytest.mark.parametrize("partitions", [range(MAX_PARTITIONS), range(0, MAX_PARTITIONS, 2), [0, 1, 2, 5, 7, 8, 999]])
def test_as_many_partitions_as_a_queue_may_have(store: MemoryStore, partitions: Collection[int]) -> None:
    for number in range(MOST_ENDS):
        of_flow(store).note(f"{number:032x}", partitions, "q")
    assert of_flow(store).of(f"{0:032x}") == set(partitions)


def test_a_second_look_at_the_same_batch_leaves_out_more_and_never_less(store: MemoryStore) -> None:
    one, other = of_flow(store), of_flow(store)
    one.note("end", [1], "q")
    other.note("end", [2], "q")
    assert other.of("end") == {1, 2}
    assert one.of("end") == {1}, "read once: its process is not the one that goes on"
    one.note("end", [1], "q")
    assert of_flow(store).of("end") == {1, 2}


class Deaf(MemoryStore):
    """Changes are carried out, and their answers are lost."""

    def swap(self, name: str, content: object, *, expected: str | None) -> str:
        super().swap(name, content, expected=expected)  # type: ignore[arg-type]
        raise Unavailable("the answer is lost")


def test_an_unknown_outcome_is_settled_by_reading() -> None:
    store = Deaf(clock=lambda: 0.0, rng=Random(1))
    of_flow(store).note("end", [1], "q")
    assert of_flow(store).of("end") == {1}


def test_what_cannot_be_written_is_told(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise Unavailable("no")

    monkeypatch.setattr(store, "swap", refuse)
    with pytest.raises(Unavailable, match=r"missed/left could not be swapped in 8 tries"):
        of_flow(store).note("end", [1], "q")


@pytest.mark.parametrize("key", ["ends", "queue_id"])
def test_one_that_is_damaged_is_corrupt_by_name(store: MemoryStore, key: str) -> None:
    of_flow(store).note("end", [1], "q")
    name = f"{missed_folder(KEY)}left"
    found = store.load(name)
    assert isinstance(found, Document)
    store.swap(name, {**found.metadata, key: "2"}, expected=found.etag)
    with pytest.raises(Corrupt, match=r"missed/left is damaged.*restore the blob, or delete it"):
        of_flow(store).of("end")
