"""The one object store of a world, in memory, and each process' way to it: some way off, and in bad weather requests
and answers are lost, writes land late, and at times nothing answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.objects.memory import MemoryStore
from tests.support.scheduler import SECOND_US, Crash
from tests.support.way import WRITES, Way
from tests.world.machine import Machine

T = TypeVar("T")
_WRITES: Final = WRITES | {"written"}
_TIME_OUT_S: Final = 0.5  # of one request, as the processes have it
_LATEST_S: Final = 8.0  # that a write lands after its process gave it up

Seen = Callable[[str, Mapping[str, str]], None]


class TrueStore(MemoryStore):
    """What is really there. `seen` hears of every document of metadata that is changed, at its instant."""

    def __init__(self, machine: Machine, rng: random.Random, *, url: str, seen: Seen) -> None:
        super().__init__(clock=machine.unix_s, rng=rng, url=url)
        self._seen = seen

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        etag = super().swap(name, content, expected=expected)
        if not isinstance(content, bytes):
            self._seen(name, content)
        return etag


@dataclass(slots=True)
class Weather:
    """`bad`: of so many calls something becomes. Until `down_us` nothing answers."""

    way_us: int
    bad: float = 0.0
    down_us: int = 0


class Road(Way):
    """The way of the processes to the store: of the one that runs."""

    store: TrueStore

    def __init__(self, store: TrueStore, machine: Machine, weather: Weather, happened: Callable[[str], None]) -> None:
        super().__init__(store)
        self._machine, self._weather, self._happened = machine, weather, happened

    def time_us(self) -> int | None:
        return self.store.time_us()

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        return self.call("list", prefix, lambda: iter(list(items())))

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        host, weather, scheduler = self._machine.host, self._weather, self._machine.scheduler
        if not host.process.alive:
            raise Crash
        self._travel()
        if scheduler.now_us < weather.down_us:
            raise self._lost("outage", kind)
        draw = host.rng.random() / (weather.bad or 1e-9)
        if draw < 0.4:
            raise self._lost("request lost", kind)
        if draw < 0.6 and kind in _WRITES:
            late_us = round(host.rng.uniform(0.1, _LATEST_S) * SECOND_US)
            scheduler.push(lambda: self._land(effect), late_us)
            raise self._lost("late", kind)
        result = effect()
        if draw < 1.0 and kind in _WRITES:
            raise self._lost("answer lost", kind)
        self._travel()
        return result

    def _travel(self) -> None:
        if self._weather.way_us:
            self._machine.scheduler.sleep_us(self._machine.host.rng.randint(0, self._weather.way_us))

    def _lost(self, what: str, kind: str) -> Unavailable:
        self._happened(what)
        self._machine.sleep(_TIME_OUT_S)
        return Unavailable(f"{kind}: {what} (simulated)")

    def _land(self, effect: Callable[[], object]) -> None:
        with suppress(PartqError):
            effect()
            self._happened("landed late")
