"""How often something is tried again, with which pauses, and when it is enough: the one rule for stores, queries and
the coordinator.

`Retry` decides and gets time and chance as arguments; `Backoff` does the sleeping. Pauses double up to a bound, and
chance spreads them, so that those who failed together do not come back together. What may be repeated at all is for
the caller to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from partq_spark.base.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from partq_spark.base.effects import Effects

T = TypeVar("T")
Uniform = Callable[[float, float], float]

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
            raise cause
        self._effects.sleep(pause_s)

    def call(self, operation: Callable[[], T]) -> T:
        """What `operation` returns, called again while what it needs is unavailable."""
        while True:
            try:
                return operation()
            except Unavailable as cause:
                self.pause(cause)
