"""Documents as objects beside the queue (`ownership=store`), below `<namespace>/<queue>/<group>/ownership/`.

Each operation is one request or, for a listing, one for each page. Fields are metadata, bodies are bodies. The records
of seed 004 (`ownership/<partition>`) lie directly in that folder, the others below it under their own names. There are
no messages: `wait` waits a little and says that all groups have to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from partq_spark.base.effects import store_effects
from partq_spark.base.errors import Conflict
from partq_spark.group.documents import (
    DocumentOperation,
    Documents,
    Found,
    Listing,
    Load,
    Remove,
    Swap,
    Value,
)
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Document, ObjectStore, Unchanged

_RECORDS: Final = "ownership/"


class ObjectDocuments(Documents):
    """Documents in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._effects = store_effects()

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
        return Found(name=operation.name, token=found.etag, value=_content(found), age_s=age_s)

    def _list(self, group: GroupKey, folder: str) -> Iterator[Found]:
        records = f"{folder}/" == _RECORDS
        prefix = _object(group, f"{folder}/")
        for info in self._store.list(prefix, values=True):
            rest = info.name.removeprefix(prefix)
            if records and not rest.isdecimal():
                break  # names come in order, digits first
            yield Found(f"{folder}/{rest}", info.etag, info.metadata, info.age_s)

    def _swap(self, name: str, operation: Swap) -> str | None:
        try:
            return self._store.swap(name, operation.value, expected=operation.expected)
        except Conflict:
            found = self._store.load(name)
            # One's own success, which something in between has sent again.
            return found.etag if isinstance(found, Document) and _content(found) == operation.value else None

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


def _object(group: GroupKey, name: str) -> str:
    return f"{group}/ownership/{name.removeprefix(_RECORDS)}"


def _content(found: Document) -> Value:
    return found.metadata or found.body
