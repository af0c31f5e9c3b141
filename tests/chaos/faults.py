"""What is done to whom and when, drawn from a seed. Pure: nothing is done here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

EVERY_S: Final = (2.0, 6.0)  # from fault to fault
FROZEN_S: Final = (0.5, 6.0)  # beyond the session timeout: too long for the rebalance delay, or not
_DOWN_S: Final = (0.0, 10.0)  # how long a killed driver stays away
_EMPTY_S: Final = (0.0, 1.5)  # how long there is no Redis
_SLOW_S: Final = (3.0, 8.0)
_START_S: Final = 35.0  # until a driver that was started again is sure to take part
_RESTART_S: Final = 8.0  # until a query that was started again in its JVM is: it waits out a session timeout
_REST_S: Final = 3.0  # what a driver gets after a freeze


class Kind(StrEnum):
    """Faults, in the words of the report."""

    READER_KILLED = "readers killed"
    READER_FROZEN = "readers frozen"
    JVM_FROZEN = "JVMs frozen"
    BOTH_FROZEN = "JVMs frozen with their readers"
    LEADER_KILLED = "leading coordinators killed"
    REDIS_EMPTIED = "Redis restarted empty"
    STORE_SLOWED = "times the store was slow"
    DRIVER_KILLED = "drivers killed"


_BAG: Final = {
    Kind.READER_KILLED: 4,
    Kind.READER_FROZEN: 2,
    Kind.JVM_FROZEN: 2,
    Kind.BOTH_FROZEN: 1,
    Kind.LEADER_KILLED: 2,
    Kind.REDIS_EMPTIED: 1,
    Kind.STORE_SLOWED: 2,
}
_LEAST_EVERY_S: Final = {Kind.LEADER_KILLED: 15.0, Kind.REDIS_EMPTIED: 35.0}
"""After each every flow has a whole session timeout anew: if they came more often, nobody would ever expire."""

_OF_NOBODY: Final = frozenset({Kind.LEADER_KILLED, Kind.REDIS_EMPTIED, Kind.STORE_SLOWED})
FREEZING: Final = frozenset({Kind.READER_FROZEN, Kind.JVM_FROZEN, Kind.BOTH_FROZEN})


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault, `at_s` after the beginning. `driver` counts from 0, -1: none; `for_s`: how long it lasts."""

    at_s: float
    kind: Kind
    driver: int
    for_s: float


@dataclass(slots=True)
class _Plan:
    chance: random.Random
    drivers: int
    session_timeout_s: float
    duration_s: float
    kinds: list[Kind]
    bag: list[Kind] = field(default_factory=list)
    busy_until_s: dict[int, float] = field(default_factory=dict)
    due_s: dict[Kind, float] = field(default_factory=dict)

    def faults(self) -> Iterator[Fault]:
        kills_s = self._kills_s()
        at_s = self.chance.uniform(*EVERY_S) / 2
        while at_s < self.duration_s:
            if kills_s and at_s >= kills_s[0]:
                kills_s.pop(0)
                fault: Fault | None = self._kill(at_s)
            else:
                fault = self._drawn(at_s)
            if fault is not None:
                yield fault
            at_s += self.chance.uniform(*EVERY_S)

    def _kills_s(self) -> list[float]:
        """About once a minute, and never so late that it could not come back."""
        minutes = max(1, round(self.duration_s / 60))
        length_s = self.duration_s / minutes
        return [(minute + self.chance.uniform(0.25, 0.5)) * length_s for minute in range(minutes)]

    def _kill(self, at_s: float) -> Fault:
        # What is frozen then is left alone: a frozen reader could not end with its JVM.
        driver = self._free(at_s) or [min(range(self.drivers), key=lambda each: self.busy_until_s[each])]
        return self._fault(max(at_s, self.busy_until_s.get(driver[0], 0.0)), Kind.DRIVER_KILLED, driver)

    def _drawn(self, at_s: float) -> Fault | None:
        """The next of the bag that is possible now: each kind comes as often as it is in the bag, in any order."""
        for _ in range(2):
            for kind in self.bag:
                free = [-1] if kind in _OF_NOBODY else self._free(at_s)
                late = kind in FREEZING and at_s + self.session_timeout_s + FROZEN_S[1] > self.duration_s
                if free and not late and at_s >= self.due_s.get(kind, 0.0):
                    self.bag.remove(kind)
                    return self._fault(at_s, kind, free)
            more = [kind for kind in self.kinds for _ in range(_BAG[kind])]
            self.chance.shuffle(more)
            self.bag += more
        return None

    def _free(self, at_s: float) -> list[int]:
        return [each for each in range(self.drivers) if self.busy_until_s.get(each, 0.0) <= at_s]

    def _fault(self, at_s: float, kind: Kind, drivers: list[int]) -> Fault:
        driver = self.chance.choice(drivers)
        for_s = 0.0
        if kind in FREEZING:
            for_s = self.session_timeout_s + self.chance.uniform(*FROZEN_S)
        elif kind is Kind.DRIVER_KILLED:
            for_s = self.chance.uniform(*_DOWN_S)
        elif kind is Kind.REDIS_EMPTIED:
            for_s = self.chance.uniform(*_EMPTY_S)
        elif kind is Kind.STORE_SLOWED:
            for_s = self.chance.uniform(*_SLOW_S)
        self.due_s[kind] = at_s + _LEAST_EVERY_S.get(kind, 0.0)
        rest_s = {Kind.DRIVER_KILLED: _START_S, Kind.READER_KILLED: _RESTART_S}.get(kind, _REST_S)
        self.busy_until_s[driver] = at_s + for_s + rest_s
        return Fault(at_s=at_s, kind=kind, driver=driver, for_s=for_s)


def plan(
    seed: int, *, duration_s: float, drivers: int, session_timeout_s: float, slow_store: bool
) -> tuple[Fault, ...]:
    """The faults of a run, in their order. The same arguments give the same faults."""
    kinds = [kind for kind in _BAG if slow_store or kind is not Kind.STORE_SLOWED]
    made = _Plan(random.Random(seed), drivers, session_timeout_s, duration_s, kinds)
    return tuple(sorted(made.faults(), key=lambda fault: fault.at_s))
