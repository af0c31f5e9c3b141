"""Documents in Redis: what goes into the script and what comes out of it, and how keys and channels are named.

`redis_client` has the connections. Nothing is tried again.
Fields are stored as a JSON object, and a body as it is, so that people read both with `redis-cli`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from partq_spark.base.effects import new_token
from partq_spark.base.errors import Corrupt
from partq_spark.group.documents import (
    FOLDERS,
    Announce,
    Audience,
    DocumentOperation,
    Documents,
    Found,
    Listing,
    Load,
    Remove,
    Swap,
)
from partq_spark.group.documents.redis_client import Listener, RedisClient, Reply
from partq_spark.group.documents.urls import known_id, store_id
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import UNCHANGED, ObjectStore, Unchanged

_CHANNEL: Final = re.compile(r"partq:\{[^/{}]+/([^/{}]+)/([^/{}]+)/([^/{}]+)\}:\w+")
_VERSION: Final = " version"


class RedisDocuments(Documents):
    """One user's view of a Redis, for the groups of an object store; with `group`, a flow's of that group.

    `wait` may take one attempt to connect longer than it was allowed to, where the subscription was lost.
    """

    def __init__(self, client: RedisClient, store: ObjectStore, *, group: GroupKey | None = None) -> None:
        self._client = client
        self._store = store
        self._store_id = ""
        self._group = group
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def look_interval_s(self) -> float:
        return 0.1

    @property
    def lives(self) -> int:
        return self._client.lives

    def look_at_place(self) -> None:
        self._store_id = known_id(self._store) or self._store_id

    def close(self) -> None:
        self._client.close()
        if self._listener is not None:
            self._listener.close()

    def _key(self, group: GroupKey, folder: str) -> str:
        """Of a folder, or the name of a channel. Several stores may share one Redis, and have groups of the same name.
        Raises as `store_id`.
        """
        self._store_id = self._store_id or store_id(self._store)
        return f"partq:{{{self._store_id}/{group}}}:{folder}"

    def where(self, group: GroupKey, name: str) -> str:
        folder, field = _split(name)
        key = self._key(group, folder)
        return f'Redis key {key}, field {field} (HDEL "{key}" "{field}" "{field}{_VERSION}" removes it)'

    # ---- operations

    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> Any:
        asked = [self._asked(group, operation) for operation in operations]
        words = [word for said, _ in asked for word in said]
        changes = any(isinstance(operation, Swap | Remove) for operation in operations)
        replies = self._run(group, *words, changes=changes)
        return tuple(answer(reply) for (_, answer), reply in zip(asked, replies, strict=True))

    def drop(self, group: GroupKey) -> None:
        self._run(group, "drop", changes=True)

    def _run(self, group: GroupKey, *words: str | bytes | int, changes: bool) -> Reply:
        return self._client.call([self._key(group, folder) for folder in FOLDERS], *words, changes=changes)

    def _asked(
        self, group: GroupKey, operation: DocumentOperation[Any]
    ) -> tuple[Sequence[str | bytes | int], Callable[[Reply], object]]:
        """What the script is told, and what its reply means."""
        match operation:
            case Load(name=name, known=known):
                folder, field = _place(name)
                return ("load", folder, field, known or ""), partial(_loaded, field)
            case Listing(folder=folder):
                key = self._key(group, folder)
                return ("list", _place(folder)[0]), lambda reply: _listed(key, *reply)
            case Swap(name=name, value=value, expected=expected):
                token, content = new_token(), value if isinstance(value, bytes) else msgspec.json.encode(value)
                said = "swap", *_place(name), expected or "", token, content
                return said, lambda reply: token if reply == 1 else None
            case Remove(name=name, expected=expected):
                return ("remove", *_place(name), expected), bool
            case Announce(audience=audience):
                return ("announce", self._key(group, audience)), lambda _: None
        raise NotImplementedError(operation)

    # ---- news

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        channels = self._listening().wait(timeout_s)
        if channels is None:
            return None
        matches = (match for channel in channels if (match := _CHANNEL.fullmatch(channel)) is not None)
        groups = {match.string: GroupKey(*match.groups()) for match in matches}
        return frozenset(key for channel, key in groups.items() if channel.startswith(self._key(key, "")))

    def _listening(self) -> Listener:
        if self._listener is None:
            if self._group is None:
                # Of all stores: Redis compares a pattern with the user's rights letter by letter.
                self._listener = Listener(self._client, "PSUBSCRIBE", f"partq:*:{Audience.COORDINATORS}")
            else:
                self._listener = Listener(self._client, "SUBSCRIBE", self._key(self._group, Audience.FLOWS))
        return self._listener


def _split(name: str) -> tuple[str, str]:
    """The folder of a document, and its field in the folder's hash."""
    folder, _, rest = name.partition("/")
    return folder, rest or name


def _place(name: str) -> tuple[int, str]:
    """The number of its folder's key, and its field."""
    folder, field = _split(name)
    return FOLDERS.index(folder) + 1, field


def _loaded(name: str, reply: Reply) -> Found | Unchanged | None:
    if reply is None:
        return None
    if reply == 1:
        return UNCHANGED
    head, _, content = reply.partition(b"\n")
    line, _, now = head.decode(errors="replace").rpartition(" ")
    token, age_s = _version_in(line, int(now))
    return Found(name, token, content, age_s)


def _listed(key: str, content: bytes, now: bytes) -> Sequence[Found]:
    try:
        # Of a value that is damaged its reader says so.
        lines = content.decode(errors="backslashreplace").split("\n") if content else []
        rows = dict(zip(lines[::2], lines[1::2], strict=True))
    except ValueError:
        raise Corrupt(f"{key} holds what partq did not write, or is damaged: remove it, flows bind anew") from None
    now_ms, found = int(now), list[Found]()
    for field, line in rows.items():
        if field.endswith(_VERSION) and (value := rows.get(name := field.removesuffix(_VERSION))) is not None:
            token, age_s = _version_in(line, now_ms)
            found.append(Found(name, token, value, age_s))
    return found


def _version_in(line: str, now_ms: int) -> tuple[str, float]:
    """The token of a version, as the script finds it, and how many seconds ago it was written. Of one that is damaged
    empty, and then the next swap is free.
    """
    token, space, at_ms = line.partition(" ")
    if not (space and token.isalnum() and token.isascii()):
        return "", 0.0
    return token, max(0, now_ms - int(at_ms)) / 1000 if at_ms.isascii() and at_ms.isdecimal() else 0.0
