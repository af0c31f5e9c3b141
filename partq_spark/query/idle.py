"""How often a query that has nothing to do looks for news: soon after some, seldom when there were none for a while.

A look costs about as much as waking up for it; at most 20 a second keep an idle reader process below one percent of a
core, and news that come after a pause wait 25 ms on average.
"""

from __future__ import annotations

from typing import Final

POLL_S: Final = 0.1
"""The default of pollInterval, unless the store may not be looked at so often."""

_SELDOM_S: Final = 0.05
_PART_OF_IDLE: Final = 0.02  # after a second without news a look every 20 ms


class Pace:
    """One reader's. `store_look_s` is how often its store may be looked at, `poll_interval_s` the option."""

    def __init__(self, store_look_s: float, poll_interval_s: float | None, now_s: float) -> None:
        self._store_look_s = store_look_s
        self.poll_s = poll_interval_s if poll_interval_s is not None else max(POLL_S, store_look_s)
        self._news_s = now_s

    def news(self, now_s: float) -> None:
        """There was something to read."""
        self._news_s = now_s

    def look_s(self, now_s: float) -> float:
        """The wait until the next look."""
        return max(self._store_look_s, min(_SELDOM_S, _PART_OF_IDLE * (now_s - self._news_s)))
