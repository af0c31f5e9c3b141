"""A flow's documents with `ownership=store`: its heartbeat, which decides, and its record. The part of `objects` that
reads and writes them; nothing of the group's state, the lease or ownership is known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from partq_spark.base.errors import Conflict, Corrupt, Unavailable
from partq_spark.group.codec import decode_record, encode_record
from partq_spark.group.model import Delivery, FlowRecord, GroupKey
from partq_spark.group.sealing import check_sealed, sealed
from partq_spark.group.stores.api import Beat
from partq_spark.group.stores.objects_ages import Ages
from partq_spark.group.stores.refusals import checked_flow, name_taken, not_bound
from partq_spark.objects.api import Document, ObjectStore

_TRIES: Final = 3
"""How often a document is read again that changed meanwhile. Each has one writer, so that twice is rare already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """A flow's heartbeat as stored. `record` is the token of the instance's record: it changes with every change."""

    instance: str
    count: int
    bound: bool
    record: str

    def metadata(self) -> dict[str, str]:
        """As written."""
        bound = "1" if self.bound else "0"
        return sealed({"instance": self.instance, "count": str(self.count), "bound": bound, "record": self.record})

    @classmethod
    def of(cls, name: str, metadata: Mapping[str, str]) -> Heartbeat:
        """As read from the object `name`; raises `Corrupt`."""
        check_sealed(metadata, f"object {name}", "remove it, its flow binds anew")
        try:
            return cls(
                instance=metadata["instance"],
                count=int(metadata["count"]),
                bound=metadata["bound"] == "1",
                record=metadata["record"],
            )
        except (KeyError, ValueError):
            raise Corrupt(f"object {name} is no heartbeat that partq wrote: remove it, its flow binds anew") from None


@dataclass(kw_only=True, slots=True)
class _Own:
    """What this process knows of a flow that it is: its two documents as it wrote or read them last."""

    instance: str
    beat_etag: str
    count: int
    record_etag: str
    record_token: str
    record: FlowRecord

    def heartbeat(self, count: int) -> dict[str, str]:
        """To be written, with the record as it is now."""
        return Heartbeat(instance=self.instance, count=count, bound=True, record=self.record_token).metadata()


@dataclass(slots=True)
class _Flow:
    """A flow of this process. The heartbeat does not wait for a delivery: it has a lock and a document of its own."""

    beat_lock: threading.Lock
    record_lock: threading.Lock
    own: _Own | None = None


class FlowDocuments:
    """Heartbeats and records of all groups; the verbs are those of `OwnershipStore`, and so is what they raise."""

    def __init__(self, store: ObjectStore, token: Callable[[], str], ages: Ages) -> None:
        self._store = store
        self._token = token
        self._ages = ages
        self._flows: dict[tuple[GroupKey, str], _Flow] = {}
        self._records: dict[tuple[GroupKey, str], tuple[Heartbeat, FlowRecord]] = {}  # as read last

    # ---- read by anybody

    def beats(self, key: GroupKey) -> Iterator[tuple[str, Heartbeat, float]]:
        """Every flow's heartbeat and its age in seconds, one listing."""
        folder = _beat_name(key, "")
        for info in self._store.list(folder):
            yield info.name.removeprefix(folder), Heartbeat.of(info.name, info.metadata), info.age_s

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        """One listing, and one request for each record that has changed since it was read last."""
        found = {}
        for flow, listed, _ in self.beats(key):
            beat: Heartbeat | None = listed
            for _ in range(_TRIES):
                record = None if beat is None else self._record(key, flow, beat)
                if beat is None or record is not None:
                    break
                beat, _, _ = self._beat(key, flow)
            else:
                raise self._record_gone(key, flow)
            if record is not None:
                found[flow] = record
        return found

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        for _ in range(_TRIES):
            beat, etag, name = self._beat(key, flow)
            if beat is None:
                return None
            record = self._record(key, flow, beat)
            if record is not None:
                return record, Beat(instance=beat.instance, count=beat.count, age_s=self._ages.of(name, etag))
        raise self._record_gone(key, flow)

    def _record_gone(self, key: GroupKey, flow: str) -> Corrupt:
        return Corrupt(
            f"flow {flow!r} of group {key} has a heartbeat in {self._store.url} that refers to a record that is not"
            f" there: remove {_beat_name(key, flow)}, the flow binds anew"
        )

    def _beat(self, key: GroupKey, flow: str) -> tuple[Heartbeat | None, str, str]:
        """The heartbeat, its ETag and its object's name."""
        name = _beat_name(key, checked_flow(flow))
        found = self._store.load(name)
        if not isinstance(found, Document):
            return None, "", name
        return Heartbeat.of(name, found.metadata), found.etag, name

    def _record(self, key: GroupKey, flow: str, beat: Heartbeat) -> FlowRecord | None:
        """The record that the heartbeat refers to; None if it is gone: bound anew or forgotten since."""
        known = self._records.get((key, flow))
        if known is not None and (known[0].instance, known[0].record) == (beat.instance, beat.record):
            return replace(known[1], bound=beat.bound)
        name = _record_name(key, flow, beat.instance)
        found = self._store.load(name)
        if not isinstance(found, Document):
            self._records.pop((key, flow), None)
            return None
        record = decode_record(found.body, f"object {name} of {self._store.url}")
        self._records[key, flow] = beat, record
        return replace(record, bound=beat.bound)

    # ---- written by their flow

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        checked_flow(record.instance)
        record = replace(record, note="")
        former, etag, name = self._beat(key, record.flow)
        if former is not None:
            if former.bound and former.instance == record.instance:
                return  # an earlier try, whose answer was lost
            if replaces is None or (former.instance, former.count) != (replaces.instance, replaces.count):
                raise name_taken(key, record.flow)
        own = _Own(
            instance=record.instance,
            beat_etag="",
            count=0,
            record_etag=self._write_first(key, record),
            record_token=self._token(),
            record=record,
        )
        try:
            own.beat_etag = self._store.swap(name, own.heartbeat(0), expected=etag if former is not None else None)
        except Conflict:  # the former instance's heart beats, or somebody else was faster
            raise name_taken(key, record.flow) from None
        self._flow(key, record.flow).own = own
        if former is not None and former.instance != record.instance:
            self._delete_record(_record_name(key, record.flow, former.instance))

    def _write_first(self, key: GroupKey, record: FlowRecord) -> str:
        """Write a new instance's record, also where an earlier try's answer was lost; nobody refers to it yet."""
        name = _record_name(key, record.flow, record.instance)
        content = encode_record(record)
        try:
            return self._store.swap(name, content, expected=None)
        except Conflict:
            found = self._store.load(name)
        try:
            return self._store.swap(name, content, expected=found.etag if isinstance(found, Document) else None)
        except Conflict:
            raise name_taken(key, record.flow) from None

    def _delete_record(self, name: str) -> None:
        try:
            self._store.delete(name)
        except Unavailable:
            pass  # nothing refers to it any more; it goes with the group

    def _flow(self, key: GroupKey, flow: str) -> _Flow:
        return self._flows.setdefault((key, flow), _Flow(threading.Lock(), threading.Lock()))

    def _own(self, key: GroupKey, flow: str, instance: str) -> _Own:
        """This instance's documents; read where they are not known, or not for sure. Raises `Fenced`."""
        known = self._flow(key, flow).own
        if known is not None and known.instance == instance:
            return known
        beat, beat_etag, _ = self._beat(key, flow)
        if beat is None or beat.instance != instance or not beat.bound:
            raise not_bound(key, flow, instance)
        name = _record_name(key, flow, instance)
        record = self._store.load(name)
        if not isinstance(record, Document):
            raise not_bound(key, flow, instance)
        own = _Own(
            instance=instance,
            beat_etag=beat_etag,
            count=beat.count,
            record_etag=record.etag,
            record_token=self._token(),  # what was read may be a write whose heartbeat never came: all read it again
            record=decode_record(record.body, f"object {name} of {self._store.url}"),
        )
        self._flow(key, flow).own = own
        return own

    def move(self, key: GroupKey, flow: str, instance: str) -> None:
        """Move the heartbeat, with the token of the record as it is now. Raises as `beat`."""
        name = _beat_name(key, checked_flow(flow))
        entry = self._flow(key, flow)
        with entry.beat_lock:
            for _ in range(_TRIES):
                own = self._own(key, flow, instance)
                try:
                    own.beat_etag = self._store.swap(name, own.heartbeat(own.count + 1), expected=own.beat_etag)
                    own.count += 1
                    return
                except Conflict:
                    entry.own = None  # taken over, or an earlier write came through whose answer was lost
                except BaseException:
                    entry.own = None
                    raise
        raise not_bound(key, flow, instance)

    def _write(
        self,
        key: GroupKey,
        flow: str,
        instance: str,
        deliveries: Mapping[int, Delivery],
        note: str | None = None,
    ) -> FlowRecord:
        """Merge `deliveries` into the record, and replace its note unless that is None; returns the record as it was.
        The heartbeat has to tell of it yet.
        """
        entry = self._flow(key, flow)
        for _ in range(_TRIES):
            own = self._own(key, flow, instance)
            before = own.record
            said = before.note if note is None else note
            merged = replace(before, deliveries={**before.deliveries, **deliveries}, note=said)
            try:
                self._swap_record(key, own, merged)
                return before
            except Conflict:
                entry.own = None
            except BaseException:
                entry.own = None
                raise
        raise not_bound(key, flow, instance)

    def _swap_record(self, key: GroupKey, own: _Own, record: FlowRecord) -> None:
        name = _record_name(key, record.flow, own.instance)
        own.record_etag = self._store.swap(name, encode_record(record), expected=own.record_etag)
        own.record, own.record_token = record, self._token()
        entry = self._flow(key, record.flow)
        if entry.own is not own:
            # A heartbeat that failed meanwhile has read both documents anew, and others may have kept the former record
            # under its token: the next heartbeat needs another one.
            entry.own = None

    def deliver(
        self,
        key: GroupKey,
        flow: str,
        instance: str,
        deliveries: Mapping[int, Delivery],
        unchanged: Callable[[], bool],
    ) -> bool:
        """In three steps, in this order: the record, the heartbeat that tells of it, and whether the state is still
        the same, which `unchanged` asks of the store. A state that is swapped in after the third finds the first two
        done.
        """
        with self._flow(key, flow).record_lock:
            before = self._write(key, flow, instance, deliveries)
            self.move(key, flow, instance)
            if unchanged():
                return True
            self._put_back(key, flow, instance, before)  # or others would wait for what is never delivered
            self.move(key, flow, instance)
            return False

    def _put_back(self, key: GroupKey, flow: str, instance: str, before: FlowRecord) -> None:
        own = self._own(key, flow, instance)
        try:
            self._swap_record(key, own, before)
        except Conflict:
            raise not_bound(key, flow, instance) from None
        except BaseException:
            self._flow(key, flow).own = None
            raise

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        with self._flow(key, flow).record_lock:
            self._write(key, flow, instance, deliveries)
            self.move(key, flow, instance)

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        with self._flow(key, flow).record_lock:
            self._write(key, flow, instance, {}, text)
            self.move(key, flow, instance)

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        entry = self._flow(key, flow)
        with entry.beat_lock:
            entry.own = None
            for _ in range(_TRIES):
                beat, etag, name = self._beat(key, flow)
                if beat is None or beat.instance != instance or not beat.bound:
                    return
                try:
                    self._store.swap(name, replace(beat, bound=False).metadata(), expected=etag)
                    return
                except Conflict:
                    continue
        raise _restless(key, flow)

    def forget_flow(self, key: GroupKey, flow: str, instance: str, unchanged: Callable[[], bool]) -> bool:
        """In this order: the heartbeat is read, the state is looked at, and the heartbeat is removed if it is still the
        one that was read: a flow that lives on under a later state has moved it.
        """
        for _ in range(_TRIES):
            beat, etag, name = self._beat(key, flow)
            if not unchanged():
                return False
            if beat is not None and beat.instance != instance:
                return True
            try:
                if beat is not None:
                    self._store.remove(name, expected=etag)
                break
            except Conflict:
                continue
        else:
            raise _restless(key, flow)
        self._records.pop((key, flow), None)
        self._delete_record(_record_name(key, flow, instance))
        return True

    def drop_group(self, key: GroupKey) -> None:
        """Forget what is known of the group's flows; their objects are gone."""
        for place in [place for place in self._flows if place[0] == key]:
            del self._flows[place]
        for place in [place for place in self._records if place[0] == key]:
            del self._records[place]


def _restless(key: GroupKey, flow: str) -> Unavailable:
    return Unavailable(f"heartbeat of flow {flow!r} of group {key} changed {_TRIES} times while it was read: try again")


def _beat_name(key: GroupKey, flow: str) -> str:
    return f"{key}/ownership/beats/{flow}"


def _record_name(key: GroupKey, flow: str, instance: str) -> str:
    return f"{key}/ownership/flows/{flow}/{instance}"
