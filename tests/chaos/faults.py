"""What is done to whom and when, drawn from a seed. Pure: nothing is done here."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVERY_S: Final = (2.0, 6.0)  # from fault to fault
FROZEN_S: Final = (0.5, 6.0)  # beyond the session timeout: too long for the rebalance delay, or not


class Kind(StrEnum):
    """Faults, in the words of the report."""

    READER_KILLED = "readers killed"
    READER_FROZEN = "readers frozen"
    JVM_FROZEN = "JVMs frozen"
    BOTH_FROZEN = "JVMs frozen with their readers"
    LEADER_KILLED = "leading coordinators killed"
    REDIS_EMPTIED = "Redis restarted empty"
    STORE_SLOWED = "times the store was slow"
    STORE_FROZEN = "times the store stood still"
    DRIVER_KILLED = "drivers killed"


_BAG: Final = {
    Kind.READER_KILLED: 4,
    Kind.READER_FROZEN: 2,
    Kind.JVM_FROZEN: 2,
    Kind.BOTH_FROZEN: 1,
    Kind.LEADER_KILLED: 2,
    Kind.REDIS_EMPTIED: 1,
    Kind.STORE_SLOWED: 2,
    Kind.STORE_FROZEN: 1,
    Kind.DRIVER_KILLED: 1,  # so about once a minute
}
_LEAST_EVERY_S: Final = {Kind.LEADER_KILLED: 15.0, Kind.REDIS_EMPTIED: 35.0}
"""After each every flow has a whole session timeout anew: if they came more often, nobody would ever expire."""

_OF_SERVERS: Final = frozenset({Kind.STORE_SLOWED, Kind.STORE_FROZEN})
_OF_NOBODY: Final = _OF_SERVERS | {Kind.LEADER_KILLED, Kind.REDIS_EMPTIED}
FREEZING: Final = frozenset({Kind.READER_FROZEN, Kind.JVM_FROZEN, Kind.BOTH_FROZEN})

_LASTING_S: Final = {
    **dict.fromkeys(FREEZING, FROZEN_S),
    Kind.DRIVER_KILLED: (0.0, 10.0),  # how long it stays away
    Kind.REDIS_EMPTIED: (0.0, 1.5),  # how long there is none
    **dict.fromkeys(_OF_SERVERS, (3.0, 8.0)),
}
_REST_S: Final = {Kind.DRIVER_KILLED: 35.0, Kind.READER_KILLED: 8.0}
"""Until one that was started again is sure to take part; a query in its JVM waits out a session timeout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault, `at_s` after the beginning. `driver` counts from 0, -1: none; `for_s`: how long it lasts."""

    at_s: float
    kind: Kind
    driver: int
    for_s: float


def plan(
    seed: int, *, duration_s: float, drivers: int, session_timeout_s: float, store_served: bool
) -> tuple[Fault, ...]:
    """The faults of a run, in their order: of a bag with as many of each kind as it should come, each time the first
    one that is possible then. The same arguments give the same faults.
    """
    chance = random.Random(seed)
    bag: list[Kind] = []
    free_s = dict.fromkeys([*range(drivers), -1], 0.0)  # from when on each may be struck
    due_s: dict[Kind, float] = {}
    faults: list[Fault] = []
    at_s = chance.uniform(*EVERY_S) / 2
    while at_s < duration_s:
        if len(set(bag)) < 3:
            more = [kind for kind, number in _BAG.items() for _ in range(number)]
            chance.shuffle(more)
            bag += [kind for kind in more if store_served or kind not in _OF_SERVERS]
        free = [each for each in range(drivers) if free_s[each] <= at_s]
        for kind in bag:
            late = kind in FREEZING and at_s + session_timeout_s + FROZEN_S[1] > duration_s
            able = [-1] if kind in _OF_NOBODY else free
            if able and not late and at_s >= due_s.get(kind, 0.0):
                bag.remove(kind)
                driver = chance.choice(able)
                for_s = chance.uniform(*_LASTING_S.get(kind, (0.0, 0.0)))
                for_s += session_timeout_s if kind in FREEZING else 0.0
                due_s[kind] = at_s + _LEAST_EVERY_S.get(kind, 0.0)
                free_s[driver] = at_s + for_s + _REST_S.get(kind, 3.0)
                faults.append(Fault(at_s=at_s, kind=kind, driver=driver, for_s=for_s))
                break
        at_s += chance.uniform(*EVERY_S)
    return tuple(faults)
