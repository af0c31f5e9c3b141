"""Requests and answers that are lost: what is tried again, for how long, and what never is; and a document that several
change, where each change is made once, or told. Time is a list of pauses; the way to the store loses what it is told.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from partq_spark.base.effects import Backoff, Effects, Retry
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.objects.retrying import MAX_TRIES, Register, Retrying, few_tries
from tests.support.memory_store import MemoryStore
from tests.support.way import Way

T = TypeVar("T")


class Lossy(Way):
    """Each call meets what `fate` says of it: its request or its answer is lost, or it is sent twice."""

    def __init__(self, fate: Callable[[str], str] = lambda kind: "") -> None:
        super().__init__(MemoryStore(clock=lambda: 0.0, rng=random.Random(1)))
        self.fate = fate
        self.calls: list[str] = []
        self.step = 1  # -1: it lists backwards

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self.calls.append(kind)
        fate = self.fate(kind)
        if fate == "request":
            raise Unavailable("the request was lost")
        result = effect()
        if fate == "answer":
            raise Unavailable("the answer was lost")
        return effect() if fate == "twice" else result

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        """One request for every three."""
        for number, item in enumerate([*items()][:: self.step]):
            if number % 3 == 0:
                self.call("list", prefix, lambda: None)
            yield item


def first(fate: str, calls: int) -> Callable[[str], str]:
    """So many calls meet it, then all is well."""
    left = iter([fate] * calls)
    return lambda kind: next(left, "")


def filled() -> Lossy:
    """A store with some objects and a document."""
    way = Lossy()
    for name in ("o", "x/1", "y/2"):
        way.store.create(name, b"x")
    way.store.swap("d", b"{}", expected=None)
    return way


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def patient(self, store: Lossy, seed: int = 2) -> Retrying:
        uniform = random.Random(seed).uniform
        return Retrying(store, 60, Effects(now_s=lambda: self.now_s, sleep=self.sleep, uniform=uniform))

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


OPERATIONS: dict[str, Callable[[Retrying], object]] = {
    "create": lambda store: store.create("new", b"x"),
    "read": lambda store: bytes(store.read("o")),
    "load": lambda store: store.load("d"),
    "delete": lambda store: store.delete("x/1"),
    "list": lambda store: [info.name for info in store.list("")],
    "list_folders": lambda store: list(store.list_folders("")),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_what_may_be_repeated_is_until_the_store_is_back_in_time(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed, operation = Time(), OPERATIONS[kind]
    wanted = operation(undisturbed.patient(filled()))
    assert undisturbed.pauses == []
    for fate, pauses in (("request", 7), ("answer", 1 if kind == "create" else 7)):  # it meets its own success
        one, other = Time(), Time()
        for time, seed in ((one, 2), (other, 3)):
            store = filled()
            store.fate = first(fate, 7)
            assert operation(time.patient(store, seed)) == wanted
            assert len(time.pauses) == pauses
            assert 0.025 <= time.pauses[0] <= 0.05
            assert pauses < 7 or 1.6 <= time.pauses[6] <= 3.2
        assert all(a != b for a, b in zip(one.pauses, other.pauses, strict=True)), "processes do not come at once"

    gone, store = Time(), filled()
    store.fate = lambda kind: "request"
    caplog.clear()
    with (
        pytest.raises(
            Unavailable, match=r"memory: was tried for 60\.0 s \(option retryTimeout, 60 s\): the request was"
        ),
        caplog.at_level(logging.WARNING, logger="partq.objects"),
    ):
        operation(gone.patient(store))
    assert sum(gone.pauses) == pytest.approx(60)
    assert max(gone.pauses) <= 5
    assert len(gone.pauses) < 40
    assert caplog.messages == ["store memory:: the request was lost; trying again for up to 60 s"], "once"


@pytest.mark.parametrize("fate", ["request", "answer"])
def test_swap_and_remove_are_never_repeated(fate: str) -> None:
    way, time = Lossy(), Time()
    etag, store = way.store.swap("d", b'{"n":1}', expected=None), time.patient(way)
    for call in (
        lambda: store.swap("d", b'{"n":2}', expected=etag),
        lambda: store.swap("new", b'{"n":2}', expected=None),
        lambda: store.remove("d", expected=etag),
    ):
        way.calls.clear()
        way.fate = first(fate, 1)
        with pytest.raises((Unavailable, Conflict)):
            call()
        assert len(way.calls) == 1
    assert time.pauses == []


@pytest.mark.parametrize("step", [1, -1])
def test_a_listing_goes_on_where_it_was_and_gives_nothing_twice(step: int) -> None:
    """Also that of a server that has an order of its own, as Azure with a hierarchical namespace."""
    way, time = Lossy(), Time()
    way.step = step
    names = [f"f{i // 4}/{i:02}" for i in range(12)]
    for name in names:
        way.create(name, b"x")
    seen = []
    for info in time.patient(way).list(""):
        seen.append(info.name)
        if len(seen) in (3, 8):
            way.fate = first("request", 2)
        time.now_s += 100  # what the caller does in between is not waiting
    assert seen == names[::step]
    assert len(time.pauses) == 4


# --- a document that several change -----------------------------------------------------------------------------------


NAME = "q/numbers"


Numbers = tuple[str, ...]


EFFECTS = Effects(sleep=lambda _: None)


def register(store: Lossy) -> Register[Numbers]:
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


@pytest.mark.parametrize("seed", range(200))
def test_each_change_is_made_once_whatever_is_lost(seed: int) -> None:
    """Eight changes, each of which may happen within others."""
    dice, left = random.Random(seed), [f"w{number}" for number in range(8)]

    def change() -> None:
        often = Backoff(Retry(first_s=0.0, most_s=0.0, tries=200), EFFECTS)
        register(store).change(adding(left.pop()), often)

    def fate(kind: str) -> str:
        if kind != "swap":
            return ""
        if left and dice.random() < 0.6:
            change()
        return dice.choice(["request", "answer", "twice"]) if dice.random() < 0.5 else ""

    store = Lossy(fate)
    while left:
        change()
    assert Counter(register(store).read() or ()) == Counter(f"w{number}" for number in range(8))


def test_what_is_known_is_not_read() -> None:
    store = Lossy()
    mine, other = register(store), register(store)
    mine.change(adding("a"), few_tries(EFFECTS))
    other.keep(mine.value, mine.etag)
    store.calls.clear()
    assert other.change(adding("b"), few_tries(EFFECTS), known=True) == ("a", "b")
    assert store.calls == ["swap"]
    mine.change(adding("c"), few_tries(EFFECTS), known=True)
    assert (mine.value, store.calls[1:]) == (("a", "b", "c"), ["swap", "load", "swap"]), "one look at what it lost to"


@pytest.mark.parametrize("last", ["request", "answer"])
def test_a_store_that_stays_away_ends_in_bounded_tries_and_the_last_is_settled_too(last: str) -> None:
    store = Lossy()
    store.fate = lambda kind: "" if kind != "swap" else last if store.calls.count(kind) == MAX_TRIES else "request"
    if last == "answer":
        assert register(store).change(adding("a"), few_tries(EFFECTS)) == ("a",)
    else:
        with pytest.raises(Unavailable, match=rf"list {NAME} could not be swapped in 8 tries: the .* lost; try again"):
            register(store).change(adding("a"), few_tries(EFFECTS))
    assert store.calls.count("swap") == MAX_TRIES
