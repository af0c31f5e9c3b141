"""Documents of groups in memory, in place of a Redis: each call is one, and the server may be flushed, restarted or set
back. Deterministic: time and chance are handed in. The only wait is in `wait`; a simulation uses `take_news`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from partq_spark.group.documents import Announce, Audience, DocumentOperation, ObjectDocuments, Reincarnated
from partq_spark.group.model import GroupKey
from tests.support.memory_store import MemoryStore

Copy = Mapping[str, Any]


class MemoryServer:
    """What all users share."""

    def __init__(self, *, now_s: Callable[[], float] = time.time, rng: random.Random | None = None) -> None:
        self.now_s = now_s
        self.store = MemoryStore(clock=now_s, rng=rng or random.Random())
        self.changed = threading.Condition()
        self.lives = 0
        self._news = 0
        self._news_of: dict[tuple[Audience, GroupKey], int] = {}

    def snapshot(self) -> Copy:
        """What is stored now."""
        return dict(self.store._objects)

    def restart(self) -> None:
        """Nothing is lost, and every user notices."""
        with self.changed:
            self.lives += 1
            self.changed.notify_all()

    def restore(self, copy: Copy) -> None:
        """Restarted with an old copy: everything since then is undone."""
        self.store._objects = dict(copy)
        self.restart()

    def restart_empty(self) -> None:
        """Restarted without data."""
        self.restore({})

    def flush(self) -> None:
        """FLUSHALL: everything is gone, and nobody is told."""
        self.store._objects = {}

    def announce(self, audience: Audience, group: GroupKey) -> None:
        self._news += 1
        self._news_of[audience, group] = self._news
        self.changed.notify_all()

    def news_after(self, seen: int, group: GroupKey | None) -> tuple[int, frozenset[GroupKey]]:
        """Groups with news since `seen`, and the number of the last news."""
        wanted = Audience.COORDINATORS if group is None else Audience.FLOWS
        found = (key for (who, key), number in list(self._news_of.items()) if number > seen and who is wanted)
        return self._news, frozenset(key for key in found if group in (None, key))


class MemoryDocuments(ObjectDocuments):
    """One user's view of the server; with `group`, a flow's of that group."""

    def __init__(self, server: MemoryServer, *, group: GroupKey | None = None) -> None:
        super().__init__(server.store)
        self._server = server
        self._group_alone = group
        self._life: int | None = None
        self._lives = 0
        self._heard_life = server.lives
        self._heard, _ = server.news_after(0, None)

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def look_interval_s(self) -> float:
        return 0.01

    @property
    def lives(self) -> int:
        return self._lives

    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> Any:
        with self._server.changed:
            self._check_life()
            answers = super().ask(group, *operations)
            for operation in operations:
                if isinstance(operation, Announce):
                    self._server.announce(operation.audience, group)
            return answers

    def drop(self, group: GroupKey) -> None:
        with self._server.changed:
            self._check_life()
            super().drop(group)

    def _check_life(self) -> None:
        found, known = self._server.lives, self._life
        self._life = found
        if known not in (None, found):
            self._lives += 1
            raise Reincarnated(f"{self.url} was restarted or replaced")

    def take_news(self) -> frozenset[GroupKey] | None:
        """What `wait` would return at once, without waiting."""
        self._heard, groups = self._server.news_after(self._heard, self._group_alone)
        if self._heard_life != self._server.lives:
            self._heard_life = self._server.lives
            return None
        return groups

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        deadline_s = time.monotonic() + timeout_s
        with self._server.changed:
            while True:
                news = self.take_news()
                left_s = deadline_s - time.monotonic()
                if news is None or news or left_s <= 0:
                    return news
                self._server.changed.wait(left_s)
