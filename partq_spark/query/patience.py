"""Going on trying while a store does not answer, up to `retryTimeout`: what a query does instead of failing at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from partq_spark.base.errors import Unavailable
from partq_spark.group.effects import Effects

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 1.0
_log = logging.getLogger("partq.flow")


class Patience:
    """Calls again what is unavailable, with growing pauses. Trouble that spans several calls is one trouble."""

    def __init__(self, limit_s: float, effects: Effects, what: str) -> None:
        self._limit_s = limit_s
        self._effects = effects
        self._what = what

    def try_for(self, call: Callable[[], T]) -> T:
        """What `call` returns. Raises its `Unavailable` when `limit_s` is over, anything else at once."""
        since_s: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                result = call()
            except Unavailable as error:
                now_s = self._effects.now_s()
                if since_s is None:
                    since_s = now_s - error.tried_s  # the store's own tries are part of the same trouble
                    _log.warning("%s: nothing is delivered until the store answers again: %s", self._what, error)
                if now_s - since_s >= self._limit_s:
                    raise
                self._effects.sleep(self._effects.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, _MOST_PAUSE_S)
            else:
                if since_s is not None:
                    _log.warning("%s: the store answers again, going on", self._what)
                return result
