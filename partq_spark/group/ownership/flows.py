"""Flows in a group's documents, as they are written: each has a heartbeat, which decides, and a record of what it
delivered.

`beats/<flow>` are fields: instance, bound, and the token of the instance's record. A flow lives while this document's
own token moves. To bind is to swap it, after the record was written. `flows/<flow>/<instance>` is the record, a body,
because 1,000 deliveries do not fit in fields. What changes a record is told by the heartbeat that follows it, so that
one listing of heartbeats tells which records have to be read (`flow_reader`). Nothing of leases and ownership records
is known here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from partq_spark.base.errors import Unavailable
from partq_spark.group.codec import encode_record
from partq_spark.group.documents.api import (
    Announce,
    Audience,
    DocumentOperation,
    DocumentPlace,
    Documents,
    Found,
    Load,
    Remove,
)
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Owner
from partq_spark.group.ownership.encoding import (
    STATE,
    Heartbeat,
    StateVersion,
    beat_name,
    decode_flow,
    decode_heartbeat,
    decode_version,
    record_name,
)
from partq_spark.group.ownership.flow_reader import FlowReader
from partq_spark.group.ownership.refusals import checked_flow, checked_note, name_taken, not_bound, restless
from partq_spark.group.ownership.register import DocumentRegister, Seen
from partq_spark.group.ownership.values import Beat

_TRIES: Final = 3
"""How often a document is read again that changed meanwhile. Each has one writer, so that twice is rare already."""

_MOST_UNUSED: Final = 64
"""More than one process can leave behind between two binds that went well."""

_TO_COORDINATORS: Final = Announce(Audience.COORDINATORS)


@dataclass(frozen=True, slots=True)
class _Own:
    """One instance that this process is: its two documents. The heartbeat does not wait for a delivery: each has a
    lock of its own, which is held while the document is written.
    """

    instance: str
    heart: DocumentRegister[Heartbeat]
    record: DocumentRegister[FlowRecord]
    beating: AbstractContextManager[object]
    recording: AbstractContextManager[object]

    def doubt(self) -> None:
        """Both are read again: another connection of the same instance, or an earlier call, may have changed them."""
        self.heart.forget()
        self.record.forget()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A call that may end without an answer. What it read of the heartbeat is not kept then: an object store takes
        an earlier beat that lands after the reading for the next beat, which must not be a later call's.
        """
        try:
            yield
        except Unavailable:
            self.heart.forget()
            raise


class Flows(FlowReader):
    """The flows of all groups, as one user sees and changes them. `lock` makes locks."""

    def __init__(self, documents: Documents, *, lock: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__(documents)
        self._lock = lock
        self._making = threading.Lock()
        self._states: dict[GroupKey, DocumentRegister[StateVersion]] = {}
        self._own: dict[tuple[GroupKey, str], _Own] = {}
        self._unused: dict[tuple[GroupKey, str], deque[str]] = {}  # instances whose records may be there for nobody

    def _state(self, key: GroupKey) -> DocumentRegister[StateVersion]:
        """The register of a group's state, body and all: what a heartbeat meets is what `read_state` tells."""
        found = self._states.get(key)
        return found or self._states.setdefault(key, DocumentRegister(self._documents, key, STATE, decode_version))

    # ---- written by their flow

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        """Write `record` (bound, with a new instance) and its first heartbeat; news for the coordinator.

        Allowed where there is no record of that name, or its heartbeat is still exactly at `replaces`, also if its flow
        has unbound. An instance that takes over a name must have watched that the former
        instance is still, and has put the deliveries to be kept into `record` as they were at that heartbeat. Raises
        `Conflict` otherwise, and nothing was changed. Repeating a bind whose answer was lost succeeds and changes
        nothing. A flow that binds has no `note` yet: the one in `record` is dropped.
        """
        checked_flow(record.instance)
        record = replace(record, note="")
        own = self._made(key, record.flow, record.instance)
        former = own.heart.read()
        if former is not None:
            if former.value.bound and former.value.instance == record.instance:
                return  # an earlier try, whose answer was lost
            at = None if replaces is None else replaces.token
            if at != former.token and self._has_record(key, record.flow, former.value):
                raise name_taken(key, record.flow)
        unused = self._unused.setdefault((key, record.flow), deque(maxlen=_MOST_UNUSED))
        unused.append(record.instance)
        # Also where an earlier try's answer was lost; nobody refers to the record yet.
        if (
            own.record.swap(None, record, encode_record(record)) is None
            and own.record.swap(own.record.read(), record, encode_record(record)) is None
        ):
            raise name_taken(key, record.flow)
        written = own.record.known()
        token = "" if written is None else written.token
        heart = Heartbeat(instance=record.instance, bound=True, record=token)
        if own.heart.swap(former, heart, heart.fields(), _TO_COORDINATORS) is None:
            if (now := own.heart.read()) is not None and now.value.instance == record.instance:
                return  # an earlier try, which was late
            unused.pop()
            self._are_removed(key, record.flow, (record.instance,))
            raise name_taken(key, record.flow)  # the former instance's heart beats, or somebody else was faster
        unused.pop()
        if former is not None and former.value.instance != record.instance:
            unused.append(former.value.instance)
        # Also of earlier tries: what is still on its way of them fails now, because the heartbeat has moved.
        if self._are_removed(key, record.flow, unused):
            unused.clear()

    def _are_removed(self, key: GroupKey, flow: str, instances: Iterable[str]) -> bool:
        """Remove records that no heartbeat names. False: they may still be there."""
        try:
            self.remove_records(key, (Owner(flow, instance) for instance in instances))
        except Unavailable:
            return False
        return True

    def _made(self, key: GroupKey, flow: str, instance: str) -> _Own:
        """What is known of an instance that is, or is to be, in this process."""
        with self._making:
            found = self._own.get((key, flow))
            if found is None or found.instance != instance:
                found = self._own[key, flow] = _Own(
                    instance,
                    DocumentRegister(self._documents, key, beat_name(flow), decode_heartbeat),
                    DocumentRegister(self._documents, key, record_name(flow, instance), decode_flow),
                    self._lock(),
                    self._lock(),
                )
            return found

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        """One heartbeat, one call: moves it, then looks at the state; returns the state's token (None: no state).

        Raises `Fenced` if the record is no longer this instance's, was forgotten or is not bound.
        """
        return self._beat(key, flow, instance)

    def _beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        state = self._state(key)
        look = state.look()
        (answer,) = self._move(key, flow, instance, look.operation)
        seen = state.saw(look, answer)
        return None if seen is None else seen.value.token

    def _move(self, key: GroupKey, flow: str, instance: str, *then: DocumentOperation[Any]) -> tuple[Any, ...]:
        """Move the heartbeat, with the token of the record as it is now, and ask `then`. Raises `Fenced`."""
        own = self._made(key, flow, instance)
        with own.beating, own.attempt():
            for _ in range(_TRIES):
                heart, record = self._known(key, flow, own)
                moved = heart.value._replace(record=record.token)
                answers = own.heart.swap(heart, moved, moved.fields(), *then)
                if answers is not None:
                    return answers
                own.doubt()  # taken over, or moved by a call whose answer was lost
        raise not_bound(key, flow, instance)

    def _known(self, key: GroupKey, flow: str, own: _Own) -> tuple[Seen[Heartbeat], Seen[FlowRecord]]:
        """This instance's documents; read where they are not known for sure. Raises `Fenced`."""
        heart = own.heart.known()
        if heart is None or heart.value.instance != own.instance or not heart.value.bound:
            own.doubt()
            raise not_bound(key, flow, own.instance)
        record = own.record.known()
        if record is None:
            raise not_bound(key, flow, own.instance)
        return heart, record

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        """Store `deliveries` (merged by partition) whatever the state is: acknowledgements, or less than was
        announced. News for the coordinator. Partitions not in `deliveries` stay. Counts as a heartbeat. Raises as
        `beat` does.

        A `deliver` or `report` that was held up on its way until a later one of the same process had arrived changes
        nothing: it would undo what was said since.
        """
        self._write(key, flow, instance, lambda record: _merged(record, deliveries), _TO_COORDINATORS)

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        """Put `text` (at most 200 printable characters; empty: nothing) into the record, for people. Counts as a
        heartbeat. No news: nobody decides by it. Raises as `beat` does, and `Invalid` for any other text; one that was
        overtaken by a later call changes nothing.
        """
        self._write(key, flow, instance, lambda record: replace(record, note=checked_note(text)))

    def _write(
        self,
        key: GroupKey,
        flow: str,
        instance: str,
        change: Callable[[FlowRecord], FlowRecord],
        *then: DocumentOperation[Any],
    ) -> None:
        """Change the record, then let the heartbeat tell of it, then ask `then`."""
        own = self._made(key, flow, instance)
        with own.recording, own.attempt():
            self._change(key, flow, own, change)
            self._move(key, flow, instance, *then)

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        """Store `deliveries` (merged by partition), on condition that the state's token is still `state_token`.

        False: the state has changed, nothing may be delivered, look again. What makes a handoff safe is this: when
        True was returned, a coordinator that swaps in a later state and then reads the records sees these deliveries.
        Counts as a heartbeat. Raises as `beat` does. After `Unavailable` the deliveries may be in the record: a flow
        that does not deliver them after all says so with `report`.

        In three steps, in this order: the record, the heartbeat that tells of it, and a look at the state. A state
        that is swapped in after the third finds the first two done.
        """
        own = self._made(key, flow, instance)
        with own.recording, own.attempt():
            before = self._change(key, flow, own, lambda record: _merged(record, deliveries))
            if self._beat(key, flow, instance) == state_token:
                return True
            # Or others would wait for what is never delivered.
            self._change(key, flow, own, lambda record: _put_back(record, before, deliveries))
            self._move(key, flow, instance)
            return False

    def _change(self, key: GroupKey, flow: str, own: _Own, change: Callable[[FlowRecord], FlowRecord]) -> FlowRecord:
        """Swap the record; returns it as it was. The heartbeat has to tell of it yet."""
        for _ in range(_TRIES):
            _, record = self._known(key, flow, own)
            changed = change(record.value)
            if own.record.swap(record, changed, encode_record(changed)) is not None:
                return record.value
            own.doubt()
        raise not_bound(key, flow, own.instance)

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        """Mark the record as not bound; news for the coordinator. Another instance's record is left alone."""
        own = self._made(key, flow, instance)
        with own.beating:
            own.doubt()
            for _ in range(_TRIES):
                heart = own.heart.read()
                if heart is None or heart.value.instance != instance or not heart.value.bound:
                    return
                left = heart.value._replace(bound=False)
                if own.heart.swap(heart, left, left.fields(), _TO_COORDINATORS) is not None:
                    return
        raise restless(key, flow)

    # ---- removed by the leader

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        """Remove the record and heartbeat of this instance: by the leader, when no partition names the flow. A record
        of another instance is left alone.

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
                break
            if decode_heartbeat(found.value, DocumentPlace(self._documents, key, name)).instance != instance:
                return True
            (removed,) = self._documents.ask(key, Remove(name, found.token))
            if removed:
                break
        else:
            raise restless(key, flow)
        self._records.get(key, {}).pop(flow, None)
        self._documents.ask(key, Remove(record_name(flow, instance), None))
        return True

    def remove_records(self, key: GroupKey, owners: Iterable[Owner]) -> None:
        """Remove records that no heartbeat has named for so long that none will."""
        self._documents.ask(key, *(Remove(record_name(*owner), None) for owner in sorted(owners)))

    def _forget_group(self, key: GroupKey) -> None:
        """Its documents are gone."""
        self._states.pop(key, None)
        self._hearts.pop(key, None)
        self._records.pop(key, None)
        kept: dict[tuple[GroupKey, str], Any]
        for kept in (self._own, self._unused):
            for place in list(kept):  # other groups' threads change it meanwhile
                if place[0] == key:
                    kept.pop(place, None)


def _merged(record: FlowRecord, deliveries: Mapping[int, Delivery]) -> FlowRecord:
    """The record with these deliveries; partitions that are not among them stay."""
    return replace(record, deliveries={**record.deliveries, **deliveries})


def _put_back(record: FlowRecord, before: FlowRecord, deliveries: Mapping[int, Delivery]) -> FlowRecord:
    """The record with the entries of these deliveries as they were."""
    others = {partition: entry for partition, entry in record.deliveries.items() if partition not in deliveries}
    former = {partition: entry for partition, entry in before.deliveries.items() if partition in deliveries}
    return replace(record, deliveries={**others, **former})
