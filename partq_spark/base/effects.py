"""What partq takes from the outside world: the time, waiting, chance. Simulations give their own.

Code that decides gets the time as an argument; code that acts takes it from here, so that nothing else has to be
replaced for a process to be simulated. Threads that wait for each other, and sockets, keep their own time-outs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar


def boot_time_s() -> float:
    """Seconds of a clock that runs on while the machine sleeps: a lease must not survive a suspended laptop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def wall_time_us() -> int:
    """Unix time in microseconds: for what people read, and for ages that a store's clock confirms (`log.clocks`)."""
    return time.time_ns() // 1000


def new_token() -> str:
    """16 random hex digits: tells one instance, state or term from every other."""
    return secrets.token_hex(8)


_CHANCE: Final = secrets.SystemRandom()


def by_chance(least: float, most: float) -> float:
    """A number between both, by the system's chance: it takes no memory, and forked processes do not share it."""
    return _CHANCE.uniform(least, most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """`now_s` is one process' own clock, never compared with another's (OWN-05); `time_us` is Unix time."""

    now_s: Callable[[], float] = boot_time_s
    time_us: Callable[[], int] = wall_time_us
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = by_chance
    token: Callable[[], str] = new_token

    def while_awake(self) -> Effects:
        """For a caller that waits for a store to come back: time in which the machine sleeps is no outage. A clock that
        somebody gave stays.
        """
        return replace(self, now_s=time.monotonic) if self.now_s is boot_time_s else self


def store_effects() -> Effects:
    """The effects of a caller that only waits for stores (`Effects.while_awake`)."""
    return Effects().while_awake()


# --- several calls side by side ---------------------------------------------------------------------------------------

# Several calls of a store side by side: where each takes a while, and none depends on another.


A = TypeVar("A")
B = TypeVar("B")


class RunAll(Protocol):
    """`map` over some work; the answers come in the order of the work."""

    def __call__(self, each: Callable[[A], B], work: Sequence[A], /) -> Iterable[B]: ...


def in_a_row(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
    """One after the other, in the calling thread."""
    return [each(item) for item in work]


def side_by_side(threads: Executor) -> RunAll:
    """By these threads; a single piece without another thread."""

    def run(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        if len(work) <= 1:
            return in_a_row(each, work)
        begun = [threads.submit(each, item) for item in work]
        for one in begun:
            one.exception()  # all have ended when one has failed: none writes down later what holds no more
        return [one.result() for one in begun]

    return run
