"""What a repeated batch left out, written down where nothing else remembers it."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.group.missed_partitions import MOST_ENDS, MissedPartitions, missed_folder
from partq_spark.group.model import GroupKey
from partq_spark.log.model import MAX_PARTITIONS
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore

KEY = GroupKey("default", "orders", "billing")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: 0.0, rng=Random(1))


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


class Echo(MemoryStore):
    """Something in between sends each change twice: the answer to one's own success is a conflict."""

    def swap(self, name: str, content: object, *, expected: str | None) -> str:
        super().swap(name, content, expected=expected)  # type: ignore[arg-type]
        return super().swap(name, content, expected=expected)  # type: ignore[arg-type]


def test_a_conflict_with_its_own_success_is_settled_by_reading() -> None:
    store = Echo(clock=lambda: 0.0, rng=Random(1))
    of_flow(store).note("end", [1], "q")
    assert of_flow(store).of("end") == {1}
