"""Requests and answers that are lost: what is tried again, for how long, and what never is; and a document that several
change, where each change is made once, or told. Time is a list of pauses; the store loses what it is told.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Corrupt, Unavailable
from partq_spark.base.retry import Backoff, Retry
from partq_spark.objects import Document, ObjectInfo, Unchanged
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.register import MAX_TRIES, Register, few_tries
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


def test_what_is_wrong_is_not_repeated(time: Time) -> None:
    flaky = Flaky(time)
    flaky.create("o", b"theirs")
    store = patient(flaky, time)
    with pytest.raises(Conflict):
        store.create("o", b"mine")
    with pytest.raises(Corrupt):
        store.read("o", length=7)
    with pytest.raises(Corrupt):
        store.load("o")
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


# --- a document that several change -----------------------------------------------------------------------------------


NAME = "q/numbers"


Numbers = tuple[str, ...]


EFFECTS = Effects(sleep=lambda _: None)


class Rough(MemoryStore):
    """Loses requests and answers, sends swaps twice, and lets `between` happen before them, as `rng` says."""

    def __init__(self, seed: int, *, trouble: float = 0.5) -> None:
        super().__init__(clock=lambda: 0.0, rng=random.Random(seed))
        self.dice = random.Random(seed)
        self.trouble = trouble
        self.between: Callable[[], object] = lambda: None
        self.swaps = 0
        self.conditional = True

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        self.swaps += 1
        self.between()
        kind = self.dice.choice(["request", "answer", "twice"]) if self.dice.random() < self.trouble else ""
        if kind == "request":
            raise Unavailable("the request was lost (test)")
        if not self.conditional:
            found = super().load(name)
            expected = found.etag if isinstance(found, Document) else None
        etag = super().swap(name, content, expected=expected)
        if kind == "answer":
            raise Unavailable("the answer was lost (test)")
        return super().swap(name, content, expected=expected) if kind == "twice" and self.conditional else etag


def register(store: ObjectStore) -> Register[Numbers]:
    return Register(
        store,
        NAME,
        what=f"list {NAME}",
        decode=lambda found: tuple(json.loads(found.body)["numbers"]),
        encode=lambda numbers: json.dumps({"numbers": numbers}).encode(),
    )


def adding(token: str) -> Callable[[Numbers | None], Numbers]:
    """A change that recognises itself."""

    def decide(found: Numbers | None) -> Numbers:
        return found if found is not None and token in found else (*(found or ()), token)

    return decide


def often() -> Backoff:
    return Backoff(Retry(first_s=0.0, most_s=0.0, tries=200), EFFECTS)


def crowd(seed: int, change: Callable[[str], Callable[[Numbers | None], Numbers]], *, conditional: bool = True) -> None:
    """Eight changes, each of which may happen within others. Raises `AssertionError` unless each was made once."""
    store = Rough(seed)
    store.conditional = conditional
    left = [f"w{number}" for number in range(8)]

    def one() -> None:
        if left and store.dice.random() < 0.6:
            token = left.pop()
            register(store).change(change(token), often())

    store.between = one
    while left:
        token = left.pop()
        register(store).change(change(token), often())
    found = register(store).read() or ()
    assert Counter(found) == Counter(f"w{number}" for number in range(8))


def crowds(change: Callable[[str], Callable[[Numbers | None], Numbers]], *, conditional: bool = True) -> None:
    for seed in range(200):
        crowd(seed, change, conditional=conditional)


def test_each_change_is_made_once_whatever_is_lost() -> None:
    crowds(adding)


def test_without_the_condition_of_a_swap_that_is_noticed() -> None:
    with pytest.raises(AssertionError):
        crowds(adding, conditional=False)


def test_what_is_known_is_not_read() -> None:
    store = Rough(1, trouble=0.0)
    mine = register(store)
    mine.change(adding("a"), few_tries(EFFECTS))
    other = register(store)
    other.keep(mine.value, mine.etag)
    load, loads = store.load, Counter[str]()

    def counted(name: str, *, known: str | None = None) -> object:
        loads[name] += 1
        return load(name, known=known)

    store.load = counted  # type: ignore[method-assign,assignment]
    assert other.change(adding("b"), few_tries(EFFECTS), known=True) == ("a", "b")
    assert not loads
    mine.change(adding("c"), few_tries(EFFECTS), known=True)  # stale: a conflict, one look, and again
    assert (mine.value, loads[NAME]) == (("a", "b", "c"), 1)


def test_a_store_that_stays_away_ends_in_bounded_tries() -> None:
    store = Rough(1)
    store.between = lambda: (_ for _ in ()).throw(Unavailable("away (test)"))
    with pytest.raises(Unavailable, match=rf"list {NAME} could not be swapped in 8 tries: away \(test\); try again"):
        register(store).change(adding("a"), few_tries(EFFECTS))
    assert store.swaps == MAX_TRIES


def test_the_last_try_is_settled_too() -> None:
    store = Rough(1, trouble=0.0)
    swap = store.swap

    def lost(name: str, content: bytes, *, expected: str | None) -> str:
        if store.swaps == MAX_TRIES - 1:
            swap(name, content, expected=expected)
        else:
            store.swaps += 1
        raise Unavailable("the answer was lost (test)")

    store.swap = lost  # type: ignore[method-assign,assignment]
    assert register(store).change(adding("a"), few_tries(EFFECTS)) == ("a",)


def test_who_decides_may_refuse() -> None:
    def refuse(found: Numbers | None) -> Numbers:
        raise Conflict(f"not on top of {found}")

    store = Rough(1, trouble=0.0)
    with pytest.raises(Conflict, match="not on top of None"):
        register(store).change(refuse, few_tries(EFFECTS))
    assert store.swaps == 0


def test_it_can_be_removed() -> None:
    store = Rough(1, trouble=0.0)
    mine = register(store)
    mine.change(adding("a"), few_tries(EFFECTS))
    assert mine.change(lambda found: cast("Numbers | None", None), few_tries(EFFECTS)) is None
    assert mine.value is None
    assert register(store).read() is None
    assert mine.change(adding("b"), few_tries(EFFECTS)) == ("b",)
