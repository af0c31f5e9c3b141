"""How long something has stood still, by the clock of the process that looks (OWN-05). Pure: the time is an argument.

A flow's heartbeat gets another version with every beat, the lease of another coordinator counts. No timestamps of
others are read: what counts is how long ago this process saw the value change, and a process that did not look cannot
know. Nothing here knows what a flow is, and what follows from its silence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_LATE_LOOK_S: Final = 1.0
"""What a late look counts: little of the shortest session timeout, 5 s."""


class FailureDetector(Generic[K]):
    """Remembers when each watched value was last seen to change.

    What counts is what was really observed: from the time when the answer came that showed the value for the first
    time, to the time before the last look was sent that showed it still. An answer that was long on its way, or a
    watcher that did other things since, makes nobody silent.

    When the watcher itself did not look for more than `frozen_after_s` seconds, it was stopped, its machine slept, or
    the store was away, and then the watched could not move either: of all that time at most a second counts. It counts
    for something, so that what is only ever looked at late is found silent in the end.
    """

    __slots__ = ("_asked_s", "_frozen_after_s", "_heard_s", "_longest_since_s", "_seen")

    def __init__(self, frozen_after_s: float) -> None:
        self._frozen_after_s = frozen_after_s
        self._asked_s = 0.0
        self._heard_s: float | None = None
        self._longest_since_s = 0.0
        self._seen: dict[K, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[K, Hashable], *, asked_s: float, heard_s: float) -> bool:
        """Take in what the store showed: the clock before it was asked, and after the answer came.

        Names that are missing are forgotten. True if this look came so late that the time before it hardly counts.
        """
        gap_s = 0.0 if self._heard_s is None else heard_s - self._heard_s
        late = gap_s > self._frozen_after_s
        uncounted_s = gap_s - min(_LATE_LOOK_S, self._frozen_after_s / 3) if late else 0.0
        self._asked_s, self._heard_s = asked_s, heard_s
        seen, fresh = self._seen, dict[K, tuple[Hashable, float]]()
        self._seen = fresh
        longest_since_s = heard_s
        for name, value in values.items():
            before = seen.get(name)
            if before is None or before[0] != value:
                fresh[name] = (value, heard_s)
                continue
            since_s = before[1] + uncounted_s
            fresh[name] = (value, since_s)
            longest_since_s = min(longest_since_s, since_s)
        self._longest_since_s = longest_since_s
        return late

    def longest_still_s(self) -> float:
        """For how many seconds the stillest of them all was seen not to change."""
        return max(0.0, self._asked_s - self._longest_since_s)

    def still_s(self, name: K) -> float:
        """For how many seconds the value was seen not to change; 0.0 for a name that is not watched."""
        seen = self._seen.get(name)
        return 0.0 if seen is None else max(0.0, self._asked_s - seen[1])
