"""When a group is looked at next: its waits, news of it, and pauses after failures. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.heads import GroupFacts
from coordinator.runtime import GroupRuntime

FIRST_RETRY_S: Final = 0.1
_NEWS_BURST: Final = 5.0
_NEWS_PER_S: Final = 10.0
"""Flows that acknowledge are news too: a busy group is looked at a few times a second, a quiet one at once."""

_REPEAT_LOG_S: Final = 60.0


class Entry:
    """One group's place in the schedule. Changed by the service's main thread alone."""

    def __init__(self, runtime: GroupRuntime, facts: GroupFacts, now_s: float) -> None:
        self.runtime = runtime
        self.facts = facts
        self.due_s = now_s
        self.running = False
        self.failures = 0  # in a row
        self.problem = ""
        self.missing = 0  # looks at heads in a row that did not show it
        self._news = False  # came while it was running
        self._credit = _NEWS_BURST
        self._credit_s = now_s
        self._told_s = now_s - _REPEAT_LOG_S

    def woken(self, now_s: float) -> None:
        """There are news: look at once, unless there were many of late."""
        if self.running:
            self._news = True
            return
        if self.failures:
            return  # its pause is not cut short, or a store in need would be asked all the more
        self._credit = min(_NEWS_BURST, self._credit + (now_s - self._credit_s) * _NEWS_PER_S)
        self._credit_s = now_s
        wait_s = max(0.0, 1.0 - self._credit) / _NEWS_PER_S
        if now_s + wait_s < self.due_s:
            self._credit -= 1.0
            self.due_s = now_s + wait_s

    def stepped(self, next_s: float, now_s: float) -> int:
        """A step has ended well; returns how many had failed before it."""
        self.running = False
        self.due_s = now_s + next_s
        failures, self.failures, self.problem = self.failures, 0, ""
        self._take_news(now_s)
        return failures

    def failed(self, problem: str, now_s: float, most_s: float, uniform: Callable[[float, float], float]) -> bool:
        """A step has failed: a pause, doubling up to `most_s`. Whether this is worth a line in the log."""
        self.running = False
        self._news = False
        self.failures += 1
        pause_s = min(FIRST_RETRY_S * 2 ** min(self.failures - 1, 16), most_s)
        self.due_s = now_s + uniform(pause_s / 2, pause_s)
        tell = problem != self.problem or now_s - self._told_s >= _REPEAT_LOG_S
        if tell:
            self._told_s = now_s
        self.problem = problem
        return tell

    def _take_news(self, now_s: float) -> None:
        if self._news:
            self._news = False
            self.woken(now_s)
