"""What partq takes from the outside world: the time, waiting, chance; the one rule by which stores, queries and the
coordinator try something again, which takes all three; and points in time, as people write them (RFC 3339) and as the
log keeps them (Unix microseconds).

Code that decides gets the time as an argument; code that acts takes it from here, so that nothing else has to be
replaced for a process to be simulated. Threads that wait for each other, and sockets, keep their own time-outs.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from partq_spark.base.errors import Conflict, Invalid, Unavailable

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Uniform = Callable[[float, float], float]


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
    uniform: Uniform = by_chance
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


class RunAll(Protocol):
    """`map` over some work; the answers come in the order of the work."""

    def __call__(self, each: Callable[[A], B], work: Sequence[A], /) -> Iterable[B]: ...


def in_a_row(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
    """One after the other, in the calling thread."""
    return [each(item) for item in work]


def begun_by(threads: Executor, each: Callable[..., B], *given: Any) -> Future[B]:
    """By one of these threads; at the end of the process, when none takes anything more and what was sent is still
    published, by the calling one.
    """
    try:
        return threads.submit(each, *given)
    except RuntimeError:
        done: Future[B] = Future()
    done.set_result(each(*given))
    return done


def side_by_side(threads: Executor) -> RunAll:
    """By these threads; a single piece without another thread."""

    def run(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        if len(work) <= 1:
            return in_a_row(each, work)
        begun = [begun_by(threads, each, item) for item in work]
        for one in begun:
            one.exception()  # all have ended when one has failed: none writes down later what holds no more
        return [one.result() for one in begun]

    return run


# --- trying again -----------------------------------------------------------------------------------------------------

# `Retry` decides and gets time and chance as arguments; `Backoff` does the sleeping. Pauses double up to a bound, and
# chance spreads them, so that those who failed together do not come back together. What may be repeated at all is for
# the caller to know.

RETRY_TIMEOUT_S: Final = 120.0
"""For so long a store that does not answer is tried again, where nobody says otherwise."""

LONGEST_WAIT_S: Final = 366 * 24 * 3600.0
"""What a caller may say at most: a year, which no wait needs and every clock can count."""

_LEAST_S: Final = 0.001
"""Less than that is nothing to wait for; and a clock that is not so fine would never reach the end."""


@dataclass(kw_only=True, slots=True)
class Retry:
    """One trouble, until it is over: `timeout_s` after `since_s` (None: after its first failure began), or after
    `tries` failures.

    Pauses begin at `first_s` and end at `most_s`; `least` is the part of each that chance leaves. Conflicts are tried
    again for `conflicts_s` at least: they are no outage, for the store answers, and somebody got on.
    """

    first_s: float
    most_s: float
    timeout_s: float = math.inf
    tries: float = math.inf
    least: float = 0.5
    conflicts_s: float = 0.0
    since_s: float | None = None
    failures: int = 0

    def failed(self, began_s: float) -> None:
        """A try that began at `began_s` has failed."""
        self.failures += 1
        if self.since_s is None:
            self.since_s = began_s

    def succeeded(self) -> None:
        """What comes next has all the time again."""
        self.failures, self.since_s = 0, None

    def tried_s(self, now_s: float) -> float:
        """For how long it has been tried."""
        return 0.0 if self.since_s is None else now_s - self.since_s

    def pause_s(self, now_s: float, uniform: Uniform, *, conflict: bool = False) -> float | None:
        """The wait before the next try, after one has `failed`; None: none is left."""
        timeout_s = max(self.timeout_s, self.conflicts_s) if conflict else self.timeout_s
        left_s = timeout_s - self.tried_s(now_s)
        if left_s < _LEAST_S or self.failures >= self.tries:
            return None
        # bounded, for a float overflows at 2 ** 1024
        whole_s = min(self.first_s * 2.0 ** min(self.failures - 1, 60), self.most_s)
        return min(left_s, uniform(self.least * whole_s, whole_s))


class Backoff:
    """Sleeps between the tries of one operation, as `retry` says."""

    def __init__(self, retry: Retry, effects: Effects) -> None:
        self.retry = retry
        self._effects = effects

    def pause(self, cause: Exception, *, tried_s: float = 0.0) -> None:
        """Sleep until the next try, or raise `cause` if none is left. `tried_s`: for so long it was tried below."""
        now_s = self._effects.now_s()
        self.retry.failed(now_s - tried_s)
        pause_s = self.retry.pause_s(now_s, self._effects.uniform, conflict=isinstance(cause, Conflict))
        if pause_s is None:
            raise self._given_up(cause, now_s)
        self._effects.sleep(pause_s)

    def _given_up(self, cause: Exception, _now_s: float) -> Exception:
        """What is raised after the last try."""
        return cause

    def call(self, operation: Callable[[], T]) -> T:
        """What `operation` returns, called again while what it needs is unavailable. The time of a try that ran into a
        time-out counts.
        """
        while True:
            began_s = self._effects.now_s()
            try:
                return operation()
            except Unavailable as cause:
                self.pause(cause, tried_s=self._effects.now_s() - began_s)


# --- points in time ---------------------------------------------------------------------------------------------------

# Pure integers: no floating point, no time zone but the one written down.

EXAMPLE_TIME = "2026-11-20T08:30:00Z"

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT(\d\d):\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-](\d\d):(\d\d))", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_rfc3339(text: str) -> int:
    """The Unix time in microseconds of an RFC 3339 timestamp; raises `Invalid` with an example for anything else.

    Date, time and offset (`Z` or `+01:00`) must all be there. Digits beyond the microsecond round up, so that "at or
    after" and "before" mean to the microsecond what they say. Leap seconds (`:60`) are refused, as Unix time has none.
    """
    match = _RFC3339.fullmatch(text.strip().upper())
    if match is None:
        raise _refused(text)
    local, hour, fraction, zone, offset_hours, offset_minutes = match.groups("00")
    if max(hour, offset_hours) > "23" or offset_minutes > "59":  # which Python takes, or some of it
        raise _refused(text, "hours end at 23, and the minutes of an offset at 59")
    try:
        moment = datetime.fromisoformat(local + zone)
    except ValueError as error:
        raise _refused(text, str(error)) from None
    micros = -(-int(fraction.ljust(9, "0")) // 1000)
    return (moment - EPOCH) // _MICROSECOND + micros


def format_rfc3339(time_us: int) -> str:
    """`time_us` (Unix, microseconds) in UTC with all six digits, so that texts sort as times do."""
    return (EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def as_datetime(time_us: int) -> datetime:
    """A Unix time in microseconds as a `datetime` in UTC."""
    return EPOCH + timedelta(microseconds=time_us)


def unix_us(moment: datetime) -> int:
    """The Unix time in microseconds of a `datetime`. Raises `Invalid` for one without a time zone."""
    if moment.tzinfo is None:
        raise Invalid(f"{moment!r} has no time zone: give one, for example tzinfo=datetime.UTC")
    return (moment - EPOCH) // _MICROSECOND


def _refused(text: str, why: str = "") -> Invalid:
    shown = ascii(text if len(text) <= 60 else text[:60] + "…")
    return Invalid(
        f"{shown} is not an RFC 3339 timestamp{f' ({why})' if why else ''}: give date, time and offset, such as "
        f"{EXAMPLE_TIME} or 2026-11-20T09:30:00.250+01:00"
    )
