"""A group's documents: small named values, each changed only on condition that nobody changed it since it was read.
They are kept in Redis (`redis`), or as objects beside the queue (`ObjectDocuments`).

Here is the contract; `ownership` says what is written into documents and what it means, and opens them. What is asked
of documents are *operations*, which are carried out in the order given, each whatever became of those before it.
Nothing is promised about several documents together: others may see the first operation done and the second not yet.
Nothing is tried again inside. An answer that did not come is `Unavailable`: then each operation may have been done, and
reading tells. Every call is bounded in time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from partq_spark.base.effects import store_effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Document, ObjectStore, Unchanged

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

Written = bytes | Mapping[str, str]
Value = Written | str
"""A *body*, a JSON object as bytes; or *fields*, which listings tell: keys `[a-z_]+`, values printable ASCII. Fields
may come back as the JSON text in which a store keeps them (`ownership.versions` reads both), which is equal where they
are: a leader's looks bring thousands, of which little has changed.

A writer puts something random into each value that it must not take for another one: where requests may be sent twice
on their way, a swap counts as done if the very value lies there.
"""

FOLDERS: Final = ("state", "leader", "beats", "ownership")
"""A document's name is one of these, or begins with one and a slash."""


class Reincarnated(Unavailable):
    """The store was restarted, and may have lost changes or have jumped back in time: bind or lead anew from what the
    checkpoints say. Nothing was changed.
    """


class Found(NamedTuple):
    """One version of a document. `name` is that below its folder, `token` another one after every swap, also where the
    value stayed. `age_s` is how long ago it was written, by the store's own clock, for people.
    """

    name: str
    token: str
    value: Value
    age_s: float


class Audience(StrEnum):
    """Who waits for news of a group."""

    COORDINATORS = "news"
    FLOWS = "changed"


class DocumentOperation(Generic[T]):
    """One thing that is asked of the documents of a group."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Load(DocumentOperation[Found | Unchanged | None]):
    """Read a document: None if there is none, `UNCHANGED` if its token is `known`. `aged`: its age is of interest."""

    name: str
    known: str | None = None
    aged: bool = False


@dataclass(frozen=True, slots=True)
class Listing(DocumentOperation[Sequence[Found]]):
    """All documents with fields below a folder, in any order."""

    folder: str


@dataclass(frozen=True, slots=True)
class Swap(DocumentOperation[str | None]):
    """Replace the document whose token is `expected` (None: there must be none): its new token, or None if the
    condition did not hold.
    """

    name: str
    value: Written
    expected: str | None


@dataclass(frozen=True, slots=True)
class Remove(DocumentOperation[bool]):
    """Remove the document whose token is `expected`. False: it is another one by now. One that is gone already counts
    as removed.
    """

    name: str
    expected: str


@dataclass(frozen=True, slots=True)
class Announce(DocumentOperation[None]):
    """Wake the group's flows, or coordinators. A lost call costs time only."""

    audience: Audience


class Documents(ABC):
    """Implementations are safe for use by several threads. One object serves one user, a session or a coordinator with
    all of its groups, because which life of the store it knows is that user's.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The store's address, free of secrets: what `--ownership` takes."""

    @property
    @abstractmethod
    def look_interval_s(self) -> float:
        """How often a waiting process may look for news without being a burden."""

    @property
    def lives(self) -> int:
        """How often this user met another life of the store: it was restarted or replaced, and may have lost changes or
        have jumped back in time. The call that meets one raises `Reincarnated` and does nothing; what was known before
        that counts for nothing. The server is asked for its life whenever a connection is made anew, so that no call
        that follows a restart goes by unnoticed. Constant where that cannot happen.
        """
        return 0

    def look_at_place(self) -> None:  # noqa: B027 - it may be in the store itself
        """Whether the object store is still the one that it was: it may have been removed and made anew, and where the
        documents lie elsewhere, its id tells them from others'. Only reads. Raises `Corrupt`, `Unavailable`.
        """

    @overload
    def ask(self, group: GroupKey, one: DocumentOperation[A], two: DocumentOperation[B], /) -> tuple[A, B]: ...

    @overload
    def ask(self, group: GroupKey, /, *operations: DocumentOperation[A]) -> tuple[A, ...]: ...

    @abstractmethod
    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> tuple[Any, ...]:
        """Carry out `operations` on the group's documents, one after the other, in one round trip where that is
        possible.

        The answers, one for each operation. Raises `Unavailable` (`Reincarnated`: nothing was done), `Corrupt` where
        what is there was not written by this module.
        """

    @abstractmethod
    def drop(self, group: GroupKey) -> None:
        """Remove all documents of a group."""

    @abstractmethod
    def where(self, group: GroupKey, name: str) -> str:
        """A document in messages: what somebody would look at, or remove."""

    @abstractmethod
    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        """Wait until something was announced, at most `timeout_s`; the groups concerned, empty when the time is over.
        None: it cannot be known, look at all of them. By one thread at a time; what happened between two calls is not
        lost.

        Documents that were opened for one group serve a flow and hear what is announced to the flows of that group.
        Otherwise they serve coordinators and hear what is announced to those of all groups.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back connections; the documents are not used afterwards."""


# --- as objects beside the queue (`ownership=store`) ------------------------------------------------------------------

# Below `<namespace>/<queue>/<group>/ownership/`. Each operation is one request or, for a listing, one for each page.
# Fields are metadata, bodies are bodies. The records of seed 004 (`ownership/<partition>`) lie directly in that folder,
# the others below it under their own names. There are no messages: `wait` waits a little and says that all groups have
# to be looked at.

_RECORDS: Final = "ownership/"


class ObjectDocuments(Documents):
    """Documents in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._effects = store_effects()

    @property
    def url(self) -> str:
        return "store"

    @property
    def look_interval_s(self) -> float:
        return max(0.1, self._store.look_interval_s)

    def close(self) -> None:
        """Nothing: the object store is its owner's to close."""

    def where(self, group: GroupKey, name: str) -> str:
        return f"object {_object(group, name)} of {self._store.url}"

    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> Any:
        return tuple(self._answer(group, operation) for operation in operations)

    def _answer(self, group: GroupKey, operation: DocumentOperation[Any]) -> object:
        match operation:
            case Load():
                return self._load(_object(group, operation.name), operation)
            case Listing(folder=folder):
                return list(self._list(group, folder))
            case Swap():
                return self._swap(_object(group, operation.name), operation)
            case Remove(name=name, expected=expected):
                return self._remove(_object(group, name), expected)
        return None  # there is nobody to announce anything to: everybody looks

    def _load(self, name: str, operation: Load) -> Found | Unchanged | None:
        found = self._store.load(name, known=operation.known)
        if not isinstance(found, Document):
            return found
        # Only a listing tells ages.
        infos = self._store.list(name) if operation.aged else ()
        age_s = next((info.age_s for info in infos if info.name == name), 0.0)
        return Found(name=operation.name.rpartition("/")[2], token=found.etag, value=_content(found), age_s=age_s)

    def _list(self, group: GroupKey, folder: str) -> Iterator[Found]:
        records = f"{folder}/" == _RECORDS
        prefix = _object(group, f"{folder}/")
        for info in self._store.list(prefix, values=True):
            rest = info.name.removeprefix(prefix)
            if records and not rest.isdecimal():
                break  # names come in order, digits first
            yield Found(rest, info.etag, info.metadata, info.age_s)

    def _swap(self, name: str, operation: Swap) -> str | None:
        try:
            return self._store.swap(name, operation.value, expected=operation.expected)
        except Conflict:
            found = self._store.load(name)
            # One's own success, which something in between has sent again.
            return found.etag if isinstance(found, Document) and _content(found) == operation.value else None

    def _remove(self, name: str, expected: str) -> bool:
        try:
            self._store.remove(name, expected=expected)
        except Conflict:
            return self._store.load(name, known=expected) is None
        return True

    def drop(self, group: GroupKey) -> None:
        for info in list(self._store.list(_object(group, ""))):
            self._store.delete(info.name)

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        self._effects.sleep(max(0.0, min(timeout_s, self.look_interval_s)))
        return None


def _object(group: GroupKey, name: str) -> str:
    return f"{group}/ownership/{name.removeprefix(_RECORDS)}"


def _content(found: Document) -> Value:
    return found.metadata or found.body
