"""What reaches the service's main thread: what became of steps and looks, news, and the wish to end. Nothing is decided
here.
"""

from __future__ import annotations

import queue as queues
import time
from dataclasses import dataclass
from typing import Final

from partq_spark.group.model import GroupKey

TURN_S: Final = 2.5
"""The longest wait without a sign of life."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A piece of work for a group has ended; `error` is empty if it went well."""

    key: GroupKey
    next_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Looked:
    """Heads were looked at; `error` is empty if that was possible."""

    queue: str | None  # None: all of them
    error: str


@dataclass(frozen=True, slots=True)
class News:
    """What the ownership store told of groups."""

    groups: frozenset[GroupKey] | None  # None: of any
    error: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """For the store's incarnation, at the beginning."""

    problem: Exception | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The process is to end."""


Message = Stepped | Looked | News | Asked | Stop


class Inbox:
    """Messages for one thread. `turned_s` (CLOCK_MONOTONIC) is when that thread was last seen at work."""

    def __init__(self) -> None:
        # Putting into it takes no lock that an interrupted thread could hold, so that a signal handler may.
        self._messages: queues.SimpleQueue[Message] = queues.SimpleQueue()
        self.turned_s = time.monotonic()

    def put(self, message: Message) -> None:
        """By any thread, and by signal handlers."""
        self._messages.put(message)

    def get(self, wait_s: float) -> Message | None:
        """The next message; None when the time is over."""
        deadline_s = time.monotonic() + wait_s
        while True:
            self.turned_s = now_s = time.monotonic()
            try:
                return self._messages.get(timeout=max(0.0, min(deadline_s - now_s, TURN_S)))
            except queues.Empty:
                if time.monotonic() >= deadline_s:
                    return None
