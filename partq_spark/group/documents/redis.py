"""Documents in Redis: what goes into the script and what comes out of it, and how keys and channels are named.

`redis_client` has the connections. Nothing is tried again.
Fields are stored as a JSON object, and a body as it is, so that people read both with `redis-cli`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from partq_spark.base.effects import new_token
from partq_spark.base.errors import Corrupt
from partq_spark.group.documents.api import (
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

_CHANNEL: Final = re.compile(r"partq:\{([^/{}]+)/([^/{}]+)/([^/{}]+)/([^/{}]+)\}:\w+")
_TOKEN: Final = re.compile(r"([0-9A-Za-z]+) ")
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

    def __repr__(self) -> str:
        return f"RedisDocuments({self.url!r})"

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

    def _at(self, group: GroupKey) -> _Place:
        """Where the group's keys are. Raises as `store_id`."""
        return _Place(self._known_store_id(), group)

    def _known_store_id(self) -> str:
        self._store_id = self._store_id or store_id(self._store)
        return self._store_id

    def where(self, group: GroupKey, name: str) -> str:
        return self._at(group).shown(name)

    # ---- operations

    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> Any:
        place = self._at(group)
        call = _Call(place)
        for operation in operations:
            call.add(operation)
        keys = [place.key(folder) for folder in call.folders or ("state",)]
        changes = any(isinstance(operation, Swap | Remove) for operation in operations)
        replies = self._client.call(keys, *call.arguments, changes=changes)
        answered = zip(operations, call.tokens, replies, strict=True)
        return tuple(_answer(place, operation, token, reply) for operation, token, reply in answered)

    def drop(self, group: GroupKey) -> None:
        place = self._at(group)
        self._client.call([place.key(folder) for folder in FOLDERS], "drop", changes=True)

    # ---- news

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        channels = self._listening().wait(timeout_s)
        if channels is None:
            return None
        found = (_group_of(channel, self._known_store_id()) for channel in channels)
        return frozenset(key for key in found if key is not None)

    def _listening(self) -> Listener:
        if self._listener is None:
            if self._group is None:
                # Of all stores: Redis compares a pattern with the user's rights letter by letter.
                self._listener = Listener(self._client, "PSUBSCRIBE", f"partq:*:{Audience.COORDINATORS}")
            else:
                self._listener = Listener(self._client, "SUBSCRIBE", self._at(self._group).key(Audience.FLOWS))
        return self._listener


class _Place(NamedTuple):
    """Where a group's keys are: several stores may share one Redis, and have groups of the same name."""

    store_id: str
    group: GroupKey

    def key(self, folder: str) -> str:
        """A key, or a channel."""
        return f"partq:{{{self.store_id}/{self.group}}}:{folder}"

    def shown(self, name: str) -> str:
        """A document in messages."""
        folder, field = _split(name)
        key = self.key(folder)
        return f'Redis key {key}, field {field} (HDEL "{key}" "{field}" "{field}{_VERSION}" removes it)'


def _split(name: str) -> tuple[str, str]:
    """The folder of a document, and its field in the folder's hash."""
    folder, _, rest = name.partition("/")
    return folder, rest or name


def _group_of(channel: str, store_id: str) -> GroupKey | None:
    """Whose news came over a channel; None if it is another store's group."""
    match = _CHANNEL.fullmatch(channel)
    return GroupKey(*match.groups()[1:]) if match is not None and match[1] == store_id else None


class _Call:
    """The arguments of one run of the script. `tokens` has a new one for each swap."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self.folders: dict[str, int] = {}  # and where their keys stand
        self.arguments: list[str | bytes | int] = []
        self.tokens: list[str] = []

    def add(self, operation: DocumentOperation[Any]) -> None:
        token = ""
        match operation:
            case Load(name=name, known=known):
                self.arguments += ["load", *self._field(name), known or ""]
            case Listing(folder=folder):
                self.arguments += ["list", self._place_of(folder)]
            case Swap(name=name, value=value, expected=expected):
                token = new_token()
                content = value if isinstance(value, bytes) else msgspec.json.encode(value)
                self.arguments += ["swap", *self._field(name), expected or "", token, content]
            case Remove(name=name, expected=expected):
                self.arguments += ["remove", *self._field(name), expected or ""]
            case Announce(audience=audience):
                self.arguments += ["announce", self._place.key(audience)]
        self.tokens.append(token)

    def _place_of(self, folder: str) -> int:
        return self.folders.setdefault(folder, len(self.folders) + 1)

    def _field(self, name: str) -> tuple[int, str]:
        folder, field = _split(name)
        return self._place_of(folder), field


def _answer(place: _Place, operation: DocumentOperation[Any], token: str, reply: Reply) -> object:
    match operation:
        case Load():
            return _loaded(operation.name, reply)
        case Listing(folder=folder):
            return _listed(place, folder, *reply)
        case Swap():
            return token if reply == 1 else None
        case Remove():
            return bool(reply)
    return None


def _loaded(name: str, reply: Reply) -> Found | Unchanged | None:
    if reply is None:
        return None
    if reply == 1:
        return UNCHANGED
    head, _, content = reply.partition(b"\n")
    line, _, now = head.decode(errors="replace").rpartition(" ")
    return Found(name, _token_in(line), content, _age_s(line, int(now)))


def _listed(place: _Place, folder: str, content: bytes, now: bytes) -> Sequence[Found]:
    try:
        lines = content.decode().split("\n") if content else []
        rows = dict(zip(lines[::2], lines[1::2], strict=True))
    except ValueError:
        raise Corrupt(
            f"{place.key(folder)} holds what partq did not write, or is damaged: remove it, flows bind anew"
        ) from None
    now_ms = int(now)
    return [
        Found(f"{folder}/{field}", _token_in(line), value, _age_s(line, now_ms))
        for field, value in rows.items()
        if (line := rows.get(field + _VERSION)) is not None and not field.endswith(_VERSION)
    ]


def _token_in(line: str) -> str:
    """The token in a version, as the script finds it; empty if there is none, and then the next swap is free."""
    match = _TOKEN.match(line)
    return match[1] if match is not None else ""


def _age_s(line: str, now_ms: int) -> float:
    """How long ago a version was written; a damaged one does not tell."""
    written_ms = line.rpartition(" ")[2]
    return max(0, now_ms - int(written_ms)) / 1000 if written_ms.isdecimal() else 0.0
