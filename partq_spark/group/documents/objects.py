"""Documents as objects beside the queue (`ownership=store`), below `<namespace>/<queue>/<group>/ownership/`.

Each operation is one request or, for a listing, one for each page. Fields are metadata, bodies are bodies. The records
of seed 004 (`ownership/<partition>`) lie directly in that folder, the others below it under their own names. There are
no messages: `wait` waits a little and says that all groups have to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from partq_spark.base.effects import Effects, store_effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.documents.api import (
    Announce,
    DocumentOperation,
    Documents,
    Found,
    Listed,
    Listing,
    Load,
    Remove,
    Swap,
    Value,
)
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Document, ObjectInfo, ObjectStore, Unchanged

_RECORDS: Final = "ownership/"


class ObjectDocuments(Documents):
    """Documents in an object store; `now_s` is this process's clock, for ages between two looks."""

    def __init__(self, store: ObjectStore, effects: Effects | None = None) -> None:
        self._store = store
        self._effects = effects if effects is not None else store_effects()
        self._written: dict[str, tuple[str, float]] = {}  # ETag, and when it was written by our clock

    def __repr__(self) -> str:
        return f"ObjectDocuments({self._store.url!r})"

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

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        answers: list[Any] = []
        for operation in operations:
            match operation:
                case Load():
                    answers.append(self._load(_object(group, operation.name), operation))
                case Listing():
                    answers.append(_listed(list(self._list(group, operation.folder)), aged=operation.aged))
                case Swap():
                    answers.append(self._swap(_object(group, operation.name), operation))
                    if answers[-1] is None and not operation.optional:
                        break
                case Remove():
                    answers.append(self._remove(_object(group, operation.name), operation.expected))
                    if not answers[-1]:
                        break
                case Announce():
                    answers.append(None)  # there is nobody to tell: everybody looks
        return answers

    def _load(self, name: str, operation: Load) -> Found | Unchanged | None:
        found = self._store.load(name, known=operation.known)
        if not isinstance(found, Document):
            return found
        age_s = self._age_s(name, found.etag) if operation.aged else 0.0
        return Found(name=operation.name, token=found.etag, value=_content(found), age_s=age_s)

    def _age_s(self, name: str, etag: str) -> float:
        """The age of an object that was just read, without comparing clocks: the store is asked the first time; from
        then on a change that this process sees counts as new when it is seen.
        """
        seen = self._written.get(name)
        if seen is None:
            infos = self._store.list(name)
            seen = etag, self._effects.now_s() - next((info.age_s for info in infos if info.name == name), 0.0)
        elif seen[0] != etag:
            seen = etag, self._effects.now_s()
        self._written[name] = seen
        return max(0.0, self._effects.now_s() - seen[1])

    def _list(self, group: GroupKey, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Names of documents, and what the store says of them."""
        records = f"{folder}/" == _RECORDS
        prefix = _object(group, f"{folder}/")
        for info in self._store.list(prefix):
            rest = info.name.removeprefix(prefix)
            if records and not rest.isdecimal():
                break  # names come in order, digits first
            yield f"{folder}/{rest}", info

    def _swap(self, name: str, operation: Swap) -> str | None:
        try:
            try:
                return self._store.swap(name, operation.value, expected=operation.expected)
            except Conflict:
                found = self._store.load(name)
                # One's own success, which something in between has sent again.
                return found.etag if isinstance(found, Document) and _content(found) == operation.value else None
        except Unavailable:
            if not operation.optional:
                raise
            return None

    def _remove(self, name: str, expected: str | None) -> bool:
        if expected is None:
            self._store.delete(name)
            return True
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


def _listed(found: Sequence[tuple[str, ObjectInfo]], *, aged: bool) -> Listed:
    return Listed(
        names=[name for name, _ in found],
        tokens=[info.etag for _, info in found],
        contents=[info.metadata for _, info in found],
        ages_s=[info.age_s for _, info in found] if aged else (),
    )


def _object(group: GroupKey, name: str) -> str:
    return f"{group}/ownership/{name.removeprefix(_RECORDS)}"


def _content(found: Document) -> Value:
    return found.metadata or found.body
