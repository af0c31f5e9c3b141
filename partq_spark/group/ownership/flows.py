"""Flows in a group's documents: each has a heartbeat, `beats/<flow>`, which decides which instance the flow is, and
says what the flow has to say. A flow lives while the document's own token moves.

One listing tells a leader everything about all flows. Nothing of leases and ownership records is known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from partq_spark.base.errors import Corrupt
from partq_spark.group.documents.api import (
    Announce,
    Audience,
    DocumentOperation,
    DocumentPlace,
    Documents,
    Found,
    Listed,
    Listing,
    Load,
    Remove,
    Swap,
    Value,
)
from partq_spark.group.model import FlowRecord, GroupKey, Owner
from partq_spark.group.ownership.encoding import (
    BEATS,
    BEATS_IN,
    STATE,
    Beat,
    FlowsSeen,
    StateVersion,
    beat_name,
    checked_flow,
    decode_flow,
    decode_version,
    encode_flow,
    name_taken,
    not_bound,
    restless,
)
from partq_spark.objects.api import Unchanged

_TRIES: Final = 3
"""How often a document is read again that changed meanwhile. Each has one writer, so that twice is rare already."""

_TO_COORDINATORS: Final = Announce(Audience.COORDINATORS)


@dataclass(frozen=True, slots=True)
class _Own:
    """One instance that this process is. `beating` is held while its heartbeat is written: two threads do so."""

    instance: str
    heart: DocumentRegister[FlowRecord]
    beating: AbstractContextManager[object]


@dataclass(frozen=True, slots=True)
class Hearts:
    """All heartbeats of a group as they were listed last; those that say nothing else are not taken apart again.
    `owners` are in the order of the listing.
    """

    contents: Mapping[str, str | Mapping[str, str]]
    records: Mapping[str, FlowRecord]
    owners: Sequence[Owner]


class Flows:
    """The flows of all groups, as one user sees and changes them. `lock` makes locks."""

    def __init__(self, documents: Documents, *, lock: Callable[[], AbstractContextManager[object]]) -> None:
        self._documents = documents
        self._lock = lock
        self._making = threading.Lock()
        self._states: dict[GroupKey, DocumentRegister[StateVersion]] = {}
        self._own: dict[tuple[GroupKey, str], _Own] = {}
        self._hearts: dict[GroupKey, Hearts] = {}

    def _state(self, key: GroupKey) -> DocumentRegister[StateVersion]:
        """The register of a group's state, body and all: what a heartbeat meets is what `read_state` tells."""
        found = self._states.get(key)
        return found or self._states.setdefault(key, DocumentRegister(self._documents, key, STATE, decode_version))

    # ---- read by anybody

    def _hearts_in(self, key: GroupKey, listed: Listed) -> Hearts:
        """What every flow says. Raises `Corrupt`."""
        known = self._hearts.get(key) or Hearts({}, {}, ())
        contents = dict(zip(listed.names, listed.contents, strict=True))
        if contents == known.contents and len(contents) == len(listed.names):
            return known
        records: dict[str, FlowRecord] = {}
        for found in listed:
            flow = found.name.removeprefix(BEATS_IN)
            if known.contents.get(found.name) == contents[found.name]:
                records[flow] = known.records[flow]
            else:
                records[flow] = decode_flow(found.value, DocumentPlace(self._documents, key, found.name), flow)
        owners = [Owner(flow, record.instance) for flow, record in records.items()]
        known = self._hearts[key] = Hearts(contents, records, owners)
        return known

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        """What all flows of the group say, by name, by one listing."""
        (listed,) = self._documents.ask(key, Listing(BEATS))
        return self._hearts_in(key, listed).records

    def look_at_flows(self, key: GroupKey) -> FlowsSeen:
        """All flows, and what is wrong with those that cannot be read: for people."""
        (listed,) = self._documents.ask(key, Listing(BEATS, aged=True))
        seen = FlowsSeen({}, {}, {})
        for found in listed:
            flow = found.name.removeprefix(BEATS_IN)
            try:
                seen.records[flow] = decode_flow(found.value, DocumentPlace(self._documents, key, found.name), flow)
            except Corrupt as problem:
                seen.damaged[flow] = problem
            else:
                seen.beats[flow] = Beat(seen.records[flow].instance, found.token, max(found.age_s, 0.0))
        return seen

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        """What one flow says, and its heartbeat."""
        (found,) = self._documents.ask(key, Load(beat_name(flow), aged=True))
        if not isinstance(found, Found):
            return None
        record = decode_flow(found.value, DocumentPlace(self._documents, key, found.name), flow)
        return record, Beat(instance=record.instance, token=found.token, age_s=found.age_s)

    # ---- written by their flow

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        """The first heartbeat of a new instance, `record` (bound); news for the coordinator.

        Allowed where there is no heartbeat of that name, or it is still exactly at `replaces`, also if its flow has
        unbound. An instance that takes over a name must have watched that the former instance is still. Raises
        `Conflict` otherwise, and nothing was changed. Repeating a bind whose answer was lost succeeds and changes
        nothing.
        """
        checked_flow(record.instance)
        own = self._made(key, record.flow, record.instance)
        former = own.heart.read()
        if former is not None:
            if former.value.bound and former.value.instance == record.instance:
                return  # an earlier try, whose answer was lost
            if replaces is None or replaces.token != former.token:
                raise name_taken(key, record.flow)
        if own.heart.swap(former, record, encode_flow(record), _TO_COORDINATORS) is None:
            if (now := own.heart.read()) is not None and now.value.instance == record.instance:
                return  # an earlier try, which was late
            raise name_taken(key, record.flow)  # the former instance's heart beats, or somebody else was faster

    def _made(self, key: GroupKey, flow: str, instance: str) -> _Own:
        """What is known of an instance that is, or is to be, in this process."""
        with self._making:
            found = self._own.get((key, flow))
            if found is None or found.instance != instance:
                heart = DocumentRegister(self._documents, key, beat_name(flow), partial(decode_flow, flow=flow))
                found = self._own[key, flow] = _Own(instance, heart, self._lock())
            return found

    def beat(self, key: GroupKey, record: FlowRecord) -> str | None:
        """One heartbeat, one call: what the flow says now, then a look at the state; returns the state's token (None:
        no state). News for the coordinator where it has closed a partition since the last one.

        Raises `Fenced` if the flow is not bound to this instance any more, or was forgotten.
        """
        own = self._made(key, record.flow, record.instance)
        state = self._state(key)
        with own.beating:
            for _ in range(_TRIES):
                heart = own.heart.known()
                if heart is None or heart.value.instance != record.instance or not heart.value.bound:
                    own.heart.forget()
                    break
                look = state.look()
                news = (_TO_COORDINATORS,) if record.closes != heart.value.closes else ()
                answers = own.heart.swap(heart, record, encode_flow(record), look.operation, *news)
                if answers is not None:
                    seen = state.saw(look, answers[0])
                    return None if seen is None else seen.value.token
        raise not_bound(key, record.flow, record.instance)  # taken over, or moved by a call whose answer was lost

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        """The flow is not bound any more; news for the coordinator. Another instance is left alone."""
        own = self._made(key, flow, instance)
        with own.beating:
            own.heart.forget()
            for _ in range(_TRIES):
                heart = own.heart.read()
                if heart is None or heart.value.instance != instance or not heart.value.bound:
                    return
                left = replace(heart.value, bound=False)
                if own.heart.swap(heart, left, encode_flow(left), _TO_COORDINATORS) is not None:
                    return
        raise restless(key, flow)

    # ---- removed by the leader

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        """Remove the heartbeat of this instance: by the leader, when no partition names the flow. Another instance is
        left alone.

        False: the state's token is not `state_token` any more, and nothing was done: another leader may have given the
        flow partitions again.

        In this order: the heartbeat is read, the state is looked at, and the heartbeat is removed if it is still the
        one that was read: a flow that lives on under a later state has moved it.
        """
        name, state = beat_name(flow), self._state(key)
        for _ in range(_TRIES):
            look = state.look()
            found, answer = self._documents.ask(key, Load(name), look.operation)
            seen = state.saw(look, answer)
            if seen is None or seen.value.token != state_token:
                return False
            if not isinstance(found, Found):
                return True
            if decode_flow(found.value, DocumentPlace(self._documents, key, name), flow).instance != instance:
                return True
            (removed,) = self._documents.ask(key, Remove(name, found.token))
            if removed:
                return True
        raise restless(key, flow)

    def _forget_group(self, key: GroupKey) -> None:
        """Its documents are gone."""
        self._states.pop(key, None)
        self._hearts.pop(key, None)
        for place in list(self._own):  # other groups' threads change it meanwhile
            if place[0] == key:
                self._own.pop(place, None)


# --- one document, and how this process saw it last -------------------------------------------------------------------

# A register: one document that is changed by compare-and-swap, and how this process saw it last.
#
# What is known of it is dropped whenever it is in doubt: a condition that did not hold, an answer that did not come.
# The next use then reads it. So an unknown outcome is never taken for one's own success, nor for a failure.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """One version of a document, and what it says."""

    token: str
    value: T


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """A question for a document: `operation` is to be asked, and its answer given to `saw` with this look."""

    operation: Load
    seen: Seen[T] | None
    changes: int


class DocumentRegister(Generic[T]):
    """Safe for use by several threads: what a thread read is not kept if another one has swapped meanwhile."""

    def __init__(self, documents: Documents, group: GroupKey, name: str, decode: Callable[[Value, object], T]) -> None:
        self.name = name
        self._documents = documents
        self._group = group
        self._decode = decode
        self._lock = threading.Lock()  # never held during a call
        self._seen: Seen[T] | None = None
        self._changes = 0

    @property
    def seen(self) -> Seen[T] | None:
        """The last version that was read or written, unless there is doubt."""
        return self._seen

    def forget(self) -> None:
        """Doubt it."""
        self._keep(None)

    def _keep(self, seen: Seen[T] | None) -> None:
        with self._lock:
            self._changes += 1
            self._seen = seen

    def look(self) -> Look[T]:
        """To be asked together with other operations; costs little where nothing has changed."""
        with self._lock:
            seen = self._seen
            return Look(Load(self.name, known=None if seen is None else seen.token), seen, self._changes)

    def saw(self, look: Look[T], answer: Found | Unchanged | None) -> Seen[T] | None:
        """What the answer to a look says; None: there is no document."""
        found = self._decoded(answer) if isinstance(answer, Found) else None
        if isinstance(answer, Unchanged):
            found = look.seen
        with self._lock:
            if self._changes == look.changes:
                self._seen = found
        return found

    def _decoded(self, found: Found) -> Seen[T]:
        return Seen(found.token, self._decode(found.value, DocumentPlace(self._documents, self._group, self.name)))

    def read(self) -> Seen[T] | None:
        """The document as it is now; None: there is none."""
        look = self.look()
        (answer,) = self._documents.ask(self._group, look.operation)
        return self.saw(look, answer)

    def known(self) -> Seen[T] | None:
        """As it was seen last, read only where there is doubt."""
        return self._seen or self.read()

    def swap(
        self, expected: Seen[T] | None, value: T, encoded: Value, *then: DocumentOperation[Any]
    ) -> tuple[Any, ...] | None:
        """Replace the version `expected` (None: there must be none) and ask `then`, whose answers come. None: the
        condition did not hold, and nothing was done.
        """
        operation = Swap(self.name, encoded, None if expected is None else expected.token)
        try:
            token, *answers = self._documents.ask(self._group, operation, *then)
        except BaseException:
            # Also because an object store takes an earlier beat that lands after the reading for the next one, which
            # must not be a later call's.
            self.forget()
            raise
        if token is None:
            self.forget()
            return None
        self._keep(Seen(token, value))
        return tuple(answers)
