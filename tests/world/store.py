"""The one object store of a world, in memory, and the way of the processes to it. What is written into the documents of
groups is told to the world, at the instant at which it takes effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from tests.support.way import WRITES, Way
from tests.world.journey import Journey
from tests.world.machine import Machine

T = TypeVar("T")
_WRITES: Final = WRITES | {"written"}
Seen = Callable[[str, bytes | Mapping[str, str] | None], None]


class TrueStore(MemoryStore):
    """What is really there. `seen` hears of every document that is changed, and of every object that is deleted (None),
    at its instant.
    """

    def __init__(self, machine: Machine, rng: random.Random, *, url: str, seen: Seen) -> None:
        super().__init__(clock=machine.true_unix_s, rng=rng, url=url)
        self._seen = seen

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        etag = super().swap(name, content, expected=expected)
        self._seen(name, content)
        return etag

    def delete(self, name: str) -> bool:
        done = super().delete(name)
        if done:
            self._seen(name, None)
        return done


class Road(Way):
    """The way of the process that runs to the objects."""

    store: TrueStore

    def __init__(self, store: TrueStore, journey: Journey) -> None:
        super().__init__(store)
        self._journey = journey

    def opened(self, retry_timeout_s: float) -> Retrying:
        """As processes have it, which try again."""
        return Retrying(self, retry_timeout_s)

    def time_us(self) -> int | None:
        return self.store.time_us()

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        return self.call("list", prefix, lambda: iter(list(items())))

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        return self._journey.make(f"{kind} {kind_of(name)}", effect, is_write=kind in _WRITES)


def kind_of(name: str) -> str:
    """What an object is: "head", "checkpoint", and of a group's documents "state", "leader", "beats", "flows"."""
    rest = name.split("/")[2:]
    match rest:
        case ["_head.json"]:
            return "head"
        case [_, "ownership", what, *_]:
            return what if not what.isdecimal() else "ownership"
        case [_, "checkpoint", *_]:
            return "checkpoint"
        case [what, *_]:
            return what.removeprefix("_")
    return name
