"""A document that several change, over a store that loses requests and answers: each change is made once, or told."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.base.retry import Backoff, Retry
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.register import MAX_TRIES, Register, few_tries

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


def patient() -> Backoff:
    return Backoff(Retry(first_s=0.0, most_s=0.0, tries=200), EFFECTS)


def crowd(seed: int, change: Callable[[str], Callable[[Numbers | None], Numbers]], *, conditional: bool = True) -> None:
    """Eight changes, each of which may happen within others. Raises `AssertionError` unless each was made once."""
    store = Rough(seed)
    store.conditional = conditional
    left = [f"w{number}" for number in range(8)]

    def one() -> None:
        if left and store.dice.random() < 0.6:
            token = left.pop()
            register(store).change(change(token), patient())

    store.between = one
    while left:
        token = left.pop()
        register(store).change(change(token), patient())
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
