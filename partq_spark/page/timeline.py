"""Decisions of the last hours as the page shows them: a bounded memory that a coordinator fills, in whose process the
page is served. Without a coordinator there is none, and the page says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

KEPT: Final = timedelta(hours=6)
MOST_KEPT: Final = 5000
MOST_SHOWN: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One line of a coordinator's log: when, what, about what, and why. `group` is `namespace/queue/group`."""

    time: datetime
    group: str
    event: str
    facts: tuple[tuple[str, str], ...]
    reason: str


class Timeline:
    """The last decisions of a coordinator. Safe for use by several threads."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=MOST_KEPT)
        self._lock = threading.Lock()

    def add(self, event: str, facts: Mapping[str, object]) -> None:
        """A line of the log; what concerns no group is not kept."""
        if "group" not in facts:
            return
        told = tuple(
            (name, str(value)) for name, value in facts.items() if name not in ("group", "reason") and value is not None
        )
        now = datetime.now(UTC)
        made = Decision(
            time=now, group=str(facts["group"]), event=event, facts=told, reason=str(facts.get("reason", ""))
        )
        with self._lock:
            self._kept.append(made)
            while self._kept[0].time < now - KEPT:
                self._kept.popleft()

    def of(self, group: str) -> tuple[Decision, ...]:
        """The last decisions about a group, newest first."""
        with self._lock:
            mine = [each for each in self._kept if each.group == group]
        return tuple(reversed(mine[-MOST_SHOWN:]))
