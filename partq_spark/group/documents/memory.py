"""Documents in this process's memory: the whole contract, with nothing durable and nothing shared between processes.

For simulations and fast tests; `open_ownership` does not offer it. `MemoryServer` is what Redis is elsewhere: any
number of users open `MemoryDocuments`, and a test may flush it, restart it or set it back. Deterministic: time and
randomness are handed in, and nothing else is asked for. The only wait is in `wait`; a simulation uses `take_news`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from partq_spark.base.effects import new_token
from partq_spark.group.documents.api import (
    Announce,
    Audience,
    DocumentOperation,
    Documents,
    Found,
    Listed,
    Listing,
    Load,
    Names,
    Remove,
    Swap,
    Value,
    reincarnated,
)
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import UNCHANGED, Unchanged


class Stored(NamedTuple):
    """One document, and when it was written."""

    token: str
    value: Value
    at_s: float


@dataclass(frozen=True, slots=True)
class DocumentsSnapshot:
    """A copy of everything stored at one moment, for `MemoryServer.restore`."""

    groups: Mapping[GroupKey, Mapping[str, Stored]]


class MemoryServer:
    """What all users share. `now_s` gives seconds and is used for ages alone; `token` makes tokens and incarnations."""

    def __init__(self, *, now_s: Callable[[], float] = time.time, token: Callable[[], str] = new_token) -> None:
        self.now_s = now_s
        self.token = token
        self.changed = threading.Condition()
        self.groups: dict[GroupKey, dict[str, Stored]] = {}
        self.lives = 0
        self._incarnation = token()
        self._news = 0
        self._news_of: dict[tuple[Audience, GroupKey], int] = {}

    @property
    def incarnation(self) -> str:
        """The present life. Setting it is a restart that lost nothing; every user notices."""
        return self._incarnation

    @incarnation.setter
    def incarnation(self, value: str) -> None:
        with self.changed:
            self._incarnation = value
            self.lives += 1
            self.changed.notify_all()

    def snapshot(self) -> DocumentsSnapshot:
        """What is stored now."""
        with self.changed:
            return DocumentsSnapshot({key: dict(group) for key, group in self.groups.items()})

    def restore(self, snapshot: DocumentsSnapshot) -> None:
        """Restarted with an old copy: everything since then is undone, and the incarnation is a new one."""
        with self.changed:
            self.groups = {key: dict(group) for key, group in snapshot.groups.items()}
            self.incarnation = self.token()

    def restart_empty(self) -> None:
        """Restarted without data."""
        self.restore(DocumentsSnapshot({}))

    def flush(self) -> None:
        """FLUSHALL: everything is gone, the incarnation stays, and nobody is told."""
        with self.changed:
            self.groups = {}

    def carry_out(self, key: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> list[Any]:
        """The answers of the operations that were reached; called with the lock held."""
        group = self.groups.get(key, {})
        answers: list[Any] = []
        for operation in operations:
            answers.append(self._do(key, group, operation))
            if answers[-1] is operation.NOT_DONE and _ends(operation):
                break
        if group:
            self.groups[key] = group
        else:
            self.groups.pop(key, None)
        return answers

    def _do(self, key: GroupKey, group: dict[str, Stored], operation: DocumentOperation[Any]) -> object:
        match operation:
            case Load(name=name, known=known):
                return self._load(group, name, known)
            case Listing():
                return self._listed(group, operation)
            case Names(folder=folder):
                return tuple(name for name in group if name.startswith(f"{folder}/"))
            case Swap(name=name, value=value, expected=expected):
                return self._swap(group, name, value, expected)
            case Remove(name=name, expected=expected):
                found = group.get(name)
                if is_removed := found is None or expected in (None, found.token):
                    group.pop(name, None)
                return is_removed
            case Announce(audience=audience):
                self._news += 1
                self._news_of[audience, key] = self._news
                self.changed.notify_all()
                return None
        raise TypeError(f"{operation!r} is no operation")

    def _load(self, group: dict[str, Stored], name: str, known: str | None) -> Found | Unchanged | None:
        found = group.get(name)
        if found is None:
            return None
        return UNCHANGED if found.token == known else self._found(name, found)

    def _listed(self, group: dict[str, Stored], listing: Listing) -> Listed:
        """With fields as text, as Redis has them: what leaders do with it is what simulations have to drive."""
        inside = [self._found(name, found) for name, found in group.items() if name.startswith(f"{listing.folder}/")]
        found = [each for each in inside if not isinstance(each.value, bytes)]
        return Listed(
            names=[each.name for each in found],
            tokens=[each.token for each in found],
            contents=[msgspec.json.encode(each.value).decode() for each in found],
            ages_s=[each.age_s for each in found] if listing.aged else (),
        )

    def _swap(self, group: dict[str, Stored], name: str, value: Value, expected: str | None) -> str | None:
        found = group.get(name)
        if expected != (None if found is None else found.token):
            return None
        group[name] = Stored(self.token(), value, self.now_s())
        return group[name].token

    def _found(self, name: str, found: Stored) -> Found:
        return Found(name=name, token=found.token, value=found.value, age_s=self.now_s() - found.at_s)

    def news_after(self, seen: int, group: GroupKey | None) -> tuple[int, frozenset[GroupKey]]:
        """Groups with news since `seen`, and the number of the last news; called with the lock held."""
        wanted = Audience.COORDINATORS if group is None else Audience.FLOWS
        return self._news, frozenset(
            key
            for (audience, key), number in self._news_of.items()
            if number > seen and audience is wanted and group in (None, key)
        )


def _ends(operation: DocumentOperation[Any]) -> bool:
    return isinstance(operation, Remove) or (isinstance(operation, Swap) and not operation.optional)


class MemoryDocuments(Documents):
    """One user's view of a `MemoryServer`; with `group`, a flow's of that group."""

    def __init__(self, server: MemoryServer, *, group: GroupKey | None = None) -> None:
        self._server = server
        self._group_alone = group
        self._known: str | None = None
        with server.changed:
            self._lives = server.lives
            self._seen, _ = server.news_after(0, None)

    def __repr__(self) -> str:
        return "MemoryDocuments()"

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def look_interval_s(self) -> float:
        return 0.01

    def close(self) -> None:
        """Nothing is kept open."""

    def incarnation(self) -> str:
        with self._server.changed:
            self._known = self._server.incarnation
        return self._known

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        with self._server.changed:
            self._check_life()
            return self._server.carry_out(group, operations)

    def drop(self, group: GroupKey) -> None:
        with self._server.changed:
            self._check_life()
            self._server.groups.pop(group, None)

    def _check_life(self) -> None:
        found = self._server.incarnation
        if self._known is None:
            self._known = found
        elif self._known != found:
            raise reincarnated(self.url, self._known, found)

    def where(self, group: GroupKey, name: str) -> str:
        return f"document {name} of group {group}"

    def take_news(self) -> frozenset[GroupKey] | None:
        """What `wait` would return at once, without waiting."""
        server = self._server
        with server.changed:
            self._seen, groups = server.news_after(self._seen, self._group_alone)
            if self._lives != server.lives:
                self._lives = server.lives
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
