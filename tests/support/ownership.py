"""Ownership in memory for tests: a server whose verbs can fail before or after they took effect, and what is stored."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from partq_spark.group.documents import ObjectDocuments
from partq_spark.group.model import FlowRecord, GroupKey
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.objects import ObjectStore
from tests.support.documents import MemoryDocuments, MemoryServer


class OwnershipServer(MemoryServer):
    """`before` and `after` are called with a verb's name around every call and may raise: `before` loses the request,
    `after` loses the answer of something that took place.
    """

    before: Callable[[str], None] = staticmethod(lambda _: None)
    after: Callable[[str], None] = staticmethod(lambda _: None)

    def open(self, group: GroupKey | None = None) -> MemoryOwnership:
        """A store for one user; with `group`, for a flow of it (see `open_ownership`)."""
        return MemoryOwnership(self, group=group)

    def state_of(self, key: GroupKey) -> StateDocument | None:
        """What is stored, asked by nobody."""
        found = Ownership(MemoryDocuments(self)).read_state(key)
        assert found is None or isinstance(found, StateDocument)
        return found

    def records_of(self, key: GroupKey) -> dict[str, FlowRecord]:
        """What is stored, asked by nobody."""
        return dict(Ownership(MemoryDocuments(self)).read_flows(key))


class MemoryOwnership(Ownership):
    """One user's view of the server."""

    def __init__(self, server: OwnershipServer, *, group: GroupKey | None = None) -> None:
        super().__init__(MemoryDocuments(server, group=group))
        self.server = server


def _hooked(verb: str) -> Callable[..., Any]:
    really = getattr(Ownership, verb)

    def call(self: MemoryOwnership, *arguments: Any, **named: Any) -> Any:
        self.server.before(verb)
        result = really(self, *arguments, **named)
        if verb != "wait_news":
            self.server.after(verb)
        return result

    return call


for _verb, _ in inspect.getmembers(Ownership, inspect.isfunction):
    if not _verb.startswith("_") and _verb != "close":
        setattr(MemoryOwnership, _verb, _hooked(_verb))


def in_objects(store: ObjectStore) -> Ownership:
    """Ownership beside the queue, by another user."""
    return Ownership(ObjectDocuments(store))
