"""How long something has stood still, by the clock of the one who looks (OWN-05). Pure: the time is an argument.

Heartbeats of flows and the lease of another coordinator are counters. Nobody's timestamps are read: what counts is how
long ago this process saw a counter move, and a process that did not look cannot know. What is a flow, and what follows
from its silence, is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping


class Stillness:
    """Remembers when each watched value was last seen to change.

    Whoever is watched gets a full period anew when the watcher itself did not look for more than `frozen_after_s`
    seconds: it was stopped, its machine slept, or the store was away, and then the watched could not move either.
    """

    __slots__ = ("_frozen_after_s", "_longest_since_s", "_looked_s", "_seen")

    def __init__(self, frozen_after_s: float) -> None:
        self._frozen_after_s = frozen_after_s
        self._looked_s: float | None = None
        self._longest_since_s = math.inf
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[str, Hashable], now_s: float) -> bool:
        """Take in what the store showed. `now_s` is read after the answer came, so that nobody is charged for its way.

        Names that are missing are forgotten. True if this look came so late that everybody begins anew.
        """
        late = self._looked_s is not None and now_s - self._looked_s > self._frozen_after_s
        self._looked_s = now_s
        seen = {} if late else self._seen
        self._seen = fresh = {}
        longest_since_s = now_s
        for name, value in values.items():
            before = seen.get(name)
            if before is None or before[0] != value:
                fresh[name] = (value, now_s)
                continue
            fresh[name] = before
            longest_since_s = min(longest_since_s, before[1])
        self._longest_since_s = longest_since_s
        return late

    def longest_still_s(self, now_s: float) -> float:
        """For how many seconds the stillest of them all was not seen to change; at most 0.0 if none is watched."""
        return now_s - self._longest_since_s

    def still_s(self, name: str, now_s: float) -> float:
        """For how many seconds the value was not seen to change; 0.0 for a name that is not watched."""
        seen = self._seen.get(name)
        return 0.0 if seen is None else now_s - seen[1]
