"""What is tried again, for how long, and what never is. Time is a list of pauses; the store loses what it is told."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Corrupt, Unavailable
from partq_spark.objects import Document, ObjectInfo, Unchanged
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying


class Flaky(MemoryStore):
    """Loses `requests` calls before they are done, then `answers` after they are done, then works."""

    def __init__(self, time: Time, *, requests: int = 0, answers: int = 0) -> None:
        super().__init__(clock=time.clock, rng=random.Random(1), page_size=3)
        self.requests = requests
        self.answers = answers
        self.calls = 0

    def lossy(self, done: Callable[[], object]) -> None:
        self.calls += 1
        if self.requests > 0:
            self.requests -= 1
            raise Unavailable("the request was lost")
        done()
        if self.answers > 0:
            self.answers -= 1
            raise Unavailable("the answer was lost")

    def create(self, name: str, data: bytes | memoryview) -> None:
        self.lossy(lambda: super(Flaky, self).create(name, data))

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        self.lossy(lambda: None)
        return super().read(name, start=start, length=length)

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        self.lossy(lambda: None)
        return super().load(name, known=known)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        self.lossy(lambda: super(Flaky, self).swap(name, content, expected=expected))
        return "unused"

    def remove(self, name: str, *, expected: str) -> None:
        self.lossy(lambda: super(Flaky, self).remove(name, expected=expected))

    def delete(self, name: str) -> bool:
        self.lossy(lambda: super(Flaky, self).delete(name))
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for i, info in enumerate(super().list(prefix)):
            if i % 3 == 0:  # one request a page
                self.lossy(lambda: None)
            yield info

    def list_folders(self, prefix: str) -> Iterator[str]:
        for folder in super().list_folders(prefix):
            self.lossy(lambda: None)
            yield folder


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def effects(self, seed: int) -> Effects:
        return Effects(now_s=self.clock, sleep=self.sleep, uniform=random.Random(seed).uniform)

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def time() -> Time:
    return Time()


def patient(store: MemoryStore, time: Time, timeout_s: float = 60) -> Retrying:
    return Retrying(store, timeout_s, time.effects(2))


OPERATIONS: dict[str, Callable[[Retrying], object]] = {
    "create": lambda store: store.create("new", b"x"),
    "read": lambda store: bytes(store.read("o")),
    "load": lambda store: store.load("d"),
    "delete": lambda store: store.delete("o"),
    "list": lambda store: [info.name for info in store.list("")],
    "list_folders": lambda store: list(store.list_folders("")),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_what_may_be_repeated_is_repeated_until_the_store_is_back(
    time: Time, operation: Callable[[Retrying], object], lost: str
) -> None:
    def prepared() -> Flaky:
        store = Flaky(time)
        for name in ("o", "x/1", "y/2"):
            store.create(name, b"x")
        MemoryStore.swap(store, "d", b"{}", expected=None)
        store.calls = 0
        return store

    undisturbed = operation(patient(prepared(), time))
    assert time.pauses == []
    flaky = prepared()
    setattr(flaky, lost, 5)
    assert operation(patient(flaky, time)) == undisturbed
    own_success_met = lost == "answers" and operation is OPERATIONS["create"]
    assert len(time.pauses) == (1 if own_success_met else 5)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_end_of_the_time_names_store_time_cause_and_option(
    time: Time, operation: Callable[[Retrying], object]
) -> None:
    flaky = Flaky(time)
    for name in ("o", "x/1"):
        flaky.create(name, b"x")
    flaky.requests = 1_000_000
    with pytest.raises(
        Unavailable, match=r"memory: was tried for 60\.0 s \(option retryTimeout, 60 s\): the request was"
    ):
        operation(patient(flaky, time))
    assert sum(time.pauses) == pytest.approx(60)
    assert max(time.pauses) <= 5
    assert len(time.pauses) < 40


def test_pauses_grow_and_differ_from_one_process_to_the_next(time: Time) -> None:
    flaky = Flaky(time, requests=7)
    patient(flaky, time).load("d")
    other = Time()
    Retrying(Flaky(other, requests=7), 60, other.effects(3)).load("d")
    assert 0.025 <= time.pauses[0] <= 0.05
    assert 1.6 <= time.pauses[6] <= 3.2
    assert all(a != b for a, b in zip(time.pauses, other.pauses, strict=True))


@pytest.mark.parametrize(("requests", "answers"), [(1, 0), (0, 1)])
def test_swap_and_remove_are_never_repeated(time: Time, requests: int, answers: int) -> None:
    flaky = Flaky(time)
    etag = MemoryStore.swap(flaky, "d", b'{"n":1}', expected=None)
    store = patient(flaky, time)
    calls: list[Callable[[], object]] = [
        lambda: store.swap("d", b'{"n":2}', expected=etag),
        lambda: store.swap("new", b'{"n":2}', expected=None),
        lambda: store.remove("d", expected=etag),
    ]
    for call in calls:
        flaky.requests, flaky.answers, flaky.calls = requests, answers, 0
        with pytest.raises((Unavailable, Conflict)):
            call()
        assert flaky.calls == 1
    assert time.pauses == []


def test_a_creation_that_meets_anothers_object_first_is_a_conflict(time: Time) -> None:
    flaky = Flaky(time)
    flaky.create("a", b"theirs")
    with pytest.raises(Conflict):
        patient(flaky, time).create("a", b"mine")
    assert time.pauses == []


def test_what_is_wrong_is_not_repeated(time: Time) -> None:
    flaky = Flaky(time)
    flaky.create("o", b"x")
    with pytest.raises(Corrupt):
        patient(flaky, time).read("o", length=2)
    with pytest.raises(Corrupt):
        patient(flaky, time).load("o")
    assert time.pauses == []


def test_a_listing_goes_on_where_it_was_and_gives_nothing_twice(time: Time) -> None:
    flaky = Flaky(time)
    names = [f"f{i // 4}/{i:02}" for i in range(12)]
    for name in names:
        flaky.create(name, b"x")
    seen = []
    for info in patient(flaky, time).list(""):
        seen.append(info.name)
        if len(seen) in (3, 8):
            flaky.requests = 2
        time.now_s += 100  # what the caller does in between is not waiting
    assert seen == names
    assert len(time.pauses) == 4


def test_the_time_a_try_itself_took_counts(time: Time) -> None:
    class Slow(Flaky):
        def lossy(self, done: Callable[[], object]) -> None:
            time.now_s += 40  # it runs into the time-out of its connection
            super().lossy(done)

    slow = Slow(time, requests=100)
    with pytest.raises(Unavailable, match=r"tried for 80\.\d s"):
        patient(slow, time).load("d")
    assert slow.calls == 2


def test_one_outage_is_told_once_and_at_its_beginning(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(time, requests=6)
    with caplog.at_level(logging.WARNING, logger="partq.objects"):
        patient(flaky, time).load("d")
    assert caplog.messages == ["store memory:: the request was lost; trying again for up to 60 s"]
