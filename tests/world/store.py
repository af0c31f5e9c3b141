"""The one object store of a world, in memory, and the way of a process to a store, whichever it is: it takes time, and
calls may fail on it. In bad weather requests and answers are lost, writes land late, and at times nothing answers. A
trap waits for one particular call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import partq
from partq_spark.objects.retrying import Retrying
from tests.support.memory_store import MemoryStore
from tests.support.way import WRITES, Way
from tests.world.interruptions import Interrupter
from tests.world.machine import Host, Machine
from tests.world.scheduler import SECOND_US, Crash

T = TypeVar("T")
_TIME_OUT_S: Final = 0.5  # of one request, as the processes have it
_LATEST_S: Final = 8.0  # that a write lands after its process gave it up
_WRITES: Final = WRITES | {"written"}
Seen = Callable[[str, bytes | Mapping[str, str] | None], None]
Happened = Callable[[str], None]


@dataclass(slots=True)
class Weather:
    """Of one store. `bad`: of so many calls something becomes. Until `down_us` nothing answers, or, if it `refuses`,
    says so at once. `traps` wait for one call, or for the moment after it (`accidents`). `lives`: a write that is under
    way does not land in the store's next life. `doubles`: a way by HTTP, on which some are sent twice.
    """

    way_us: int
    bad: float = 0.0
    down_us: int = 0
    refuses: bool = False
    lives: int = 0
    doubles: bool = False
    traps: list[Any] = field(default_factory=list)


class Journey:
    """Of the process that runs. `sender`: whose call takes effect, also long after it."""

    def __init__(self, machine: Machine, interrupter: Interrupter, happened: Happened, weather: Weather) -> None:
        self._machine, self._weather, self._interrupter, self._happened = machine, weather, interrupter, happened
        self.sender = ""

    def make(self, what: str, effect: Callable[[], T], *, is_write: bool) -> T:
        """`what`: the call, in words that traps know."""
        host, weather, scheduler = self._machine.host, self._weather, self._machine.scheduler
        if not host.process.alive:
            raise Crash
        self._travel()
        fate = self._fate(host, what, is_write)
        if scheduler.now_us < weather.down_us:
            fate = "outage"
        if fate == "late":
            lives = weather.lives
            late_us = round(host.rng.uniform(0.1, _LATEST_S) * SECOND_US)
            scheduler.push(lambda: self._land(host, effect, lives), late_us)
        if fate in ("outage", "request lost", "late"):
            raise self._lost(fate, what)
        result = self._carried_out(host, effect)
        if fate == "twice":  # as a proxy on the way may send it: the second answer arrives
            self._happened(fate)
            result = self._carried_out(host, effect)
        if fate == "answer lost":
            raise self._lost(fate, what)
        self._trapped(host, f"after {what}")
        self._travel()
        return result

    def _fate(self, host: Host, what: str, is_write: bool) -> str:
        if fate := self._trapped(host, what):
            return fate
        draw = host.rng.random() / (self._weather.bad or 1e-9)
        if draw < 0.4:
            return "request lost"
        if is_write and draw < 1.0:
            return "late" if draw < 0.6 else "twice" if draw < 0.7 and self._weather.doubles else "answer lost"
        return ""

    def _trapped(self, host: Host, what: str) -> str:
        return next((fate for trap in list(self._weather.traps) if (fate := trap.fate(host.process, what))), "")

    def _carried_out(self, host: Host, effect: Callable[[], T]) -> T:
        self.sender = host.process.name
        with self._interrupter.elsewhere():
            return effect()

    def _travel(self) -> None:
        if self._weather.way_us:
            self._machine.scheduler.sleep_us(self._machine.host.rng.randint(0, self._weather.way_us))

    def _lost(self, fate: str, what: str) -> partq.Unavailable:
        self._happened(fate)
        if not (fate == "outage" and self._weather.refuses):
            self._machine.sleep(_TIME_OUT_S)
        return partq.Unavailable(f"{what}: {fate} (simulated)")

    def _land(self, host: Host, effect: Callable[[], object], lives: int) -> None:
        if self._weather.lives == lives:
            with suppress(partq.PartqError):
                self._carried_out(host, effect)
                self._happened("landed late")


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

    def delete(self, name: str) -> None:
        there = name in self._objects
        super().delete(name)
        if there:
            self._seen(name, None)


class Road(Way):
    """The way of the process that runs to the objects."""

    store: TrueStore

    def __init__(self, store: TrueStore, journey: Journey) -> None:
        super().__init__(store)
        self._journey = journey

    def opened(self, retry_timeout_s: float) -> Retrying:
        """As processes have it, which try again."""
        return Retrying(self, retry_timeout_s)

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
