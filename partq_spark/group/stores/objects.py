"""Ownership as objects beside the queue (`ownership=store`): documents changed by compare-and-swap, no server needed.

Below `<namespace>/<queue>/<group>/ownership/`:

- `state` and `leader`: bodies;
- `beats/<flow>`: metadata with instance, count, bound and the token of the instance's record. It decides which
  instance a flow is: to bind is to swap this one document, after the record was written;
- `flows/<flow>/<instance>`: the record with its deliveries, a body, because 1,000 deliveries do not fit in metadata.
  No two processes ever write the same one;
- `<partition>`: metadata, the record of seed 004.

A heartbeat is one write and one conditional read; a delivery two writes and one conditional read, a report two writes.
A flow that beats every 2.5 s, and delivers and reports once a second, makes 5.8 requests a second, 4.4 of them writes,
to three blobs of its own and one that it only reads; the leader makes one write, one listing and one conditional read
for each group and look, and reads the records whose token has changed. Azure documents 500 requests a second for one
blob and 20,000 for one account, so that one account carries some 3,000 such flows; what the writes cost in money comes
sooner. Use Redis for more than a few flows. No blob is written by two processes in turn, except `leader` and `state`
when the leader changes, and so no write meets a conflict in ordinary times.

There are no messages: `wait_news` waits a little and says that all have to be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import xxhash

from partq_spark.base.errors import Conflict, Corrupt, Unavailable
from partq_spark.group.codec import decode_lease, encode_lease
from partq_spark.group.effects import new_token
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.sealing import check_sealed, sealed
from partq_spark.group.stores.api import Beat, LeaseDocument, Pulse, StateDocument
from partq_spark.group.stores.objects_ages import Ages
from partq_spark.group.stores.objects_flows import FlowDocuments
from partq_spark.group.stores.refusals import checked_note, lease_changed, only_group, state_changed
from partq_spark.objects.api import UNCHANGED, Document, ObjectStore, Unchanged

_STATE_BEGIN: Final = b'{"token":"'
_STATE_MIDDLE: Final = b'","state":'


class ObjectsOwnership:
    """Ownership in an object store; `now_s` is this process's clock, for ages between two looks."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        token: Callable[[], str] = new_token,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._token = token
        self._sleep = sleep
        self._ages = Ages(store, now_s)
        self._states: dict[GroupKey, tuple[str, str]] = {}  # token, ETag
        self._leases: dict[GroupKey, tuple[Lease, str]] = {}
        self._flows = FlowDocuments(store, token, self._ages)
        self._claims: dict[tuple[GroupKey, int], tuple[str, str]] = {}  # version, ETag

    def __repr__(self) -> str:
        return f"ObjectsOwnership({self._store.url!r})"

    @property
    def url(self) -> str:
        return "store"

    @property
    def look_interval_s(self) -> float:
        return max(0.1, self._store.look_interval_s)

    def incarnation(self) -> str:
        """Blobs do not jump back, so that there is one life only."""
        return "store"

    def close(self) -> None:
        """Nothing: the object store is its owner's to close."""

    # ---- the state

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        name = _folder(key) + "state"
        seen = self._states.get(key)
        found = self._store.load(name, known=seen[1] if seen is not None and seen[0] == known else None)
        if found is None:
            self._states.pop(key, None)
            return None
        if isinstance(found, Unchanged):
            return UNCHANGED
        token, body = self._state(key, name, found)
        return (
            UNCHANGED
            if token == known
            else StateDocument(token=token, body=body, age_s=self._ages.of(name, found.etag))
        )

    def _state(self, key: GroupKey, name: str, found: Document) -> tuple[str, bytes]:
        token, middle, body = found.body.removeprefix(_STATE_BEGIN).partition(_STATE_MIDDLE)
        # The body has its own checksum; the token needs none, it only tells one version from another.
        if not found.body.startswith(_STATE_BEGIN) or not middle or not token.isascii():
            raise Corrupt(f"object {name} of {self._store.url} is no group's state: remove it, owners are found anew")
        self._states[key] = token.decode(), found.etag
        return token.decode(), body[:-1]

    def _state_token(self, key: GroupKey) -> str | None:
        """The token of the state, one conditional request."""
        name = _folder(key) + "state"
        seen = self._states.get(key)
        found = self._store.load(name, known=None if seen is None else seen[1])
        if isinstance(found, Unchanged):
            return None if seen is None else seen[0]
        if found is None:
            self._states.pop(key, None)
            return None
        return self._state(key, name, found)[0]

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        etag = None
        if expected is not None:
            seen = self._states.get(key)
            if seen is None or seen[0] != expected:
                self._state_token(key)
                seen = self._states.get(key)
            if seen is None or seen[0] != expected:
                raise state_changed(key, expected)
            etag = seen[1]
        content = b"".join((_STATE_BEGIN, token.encode(), _STATE_MIDDLE, body, b"}"))
        try:
            self._states[key] = token, self._store.swap(_folder(key) + "state", content, expected=etag)
        except Conflict:
            if self._state_token(key) != token:  # else one's own success, which something in between sent again
                raise state_changed(key, expected) from None

    # ---- flow records

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        return self._flows.read_flows(key)

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        return self._flows.read_flow(key, flow)

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        """One listing."""
        return {
            flow: Beat(instance=beat.instance, count=beat.count, age_s=age_s)
            for flow, beat, age_s in self._flows.beats(key)
        }

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        self._flows.bind(key, record, replaces=replaces)

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        self._flows.move(key, flow, instance)
        return self._state_token(key)

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        return self._flows.deliver(
            key, flow, instance, deliveries, unchanged=lambda: self._state_token(key) == state_token
        )

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        self._flows.report(key, flow, instance, deliveries)

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        self._flows.note(key, flow, instance, checked_note(text))

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        self._flows.unbind(key, flow, instance)

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        return self._flows.forget_flow(key, flow, instance, unchanged=lambda: self._state_token(key) == state_token)

    # ---- the lease

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        name = _folder(key) + "leader"
        found = self._lease(key)
        return None if found is None else LeaseDocument(lease=found[0], age_s=self._ages.of(name, found[1]))

    def _lease(self, key: GroupKey) -> tuple[Lease, str] | None:
        """The lease and its ETag, one request."""
        name = _folder(key) + "leader"
        seen = self._leases.get(key)
        found = self._store.load(name, known=None if seen is None else seen[1])
        if found is None:
            self._leases.pop(key, None)
            return None
        if isinstance(found, Document):
            seen = decode_lease(found.body, f"object {name} of {self._store.url}"), found.etag
            self._leases[key] = seen
        return seen

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        found = self._lease(key)
        if (found and (found[0].token, found[0].beat)) != (expected and (expected.token, expected.beat)):
            raise lease_changed(key, "taking")
        self._swap_lease(key, lease, found[1] if found else None, "taking")

    def _swap_lease(self, key: GroupKey, lease: Lease, etag: str | None, doing: str) -> None:
        try:
            etag = self._store.swap(_folder(key) + "leader", encode_lease(lease), expected=etag)
        except Conflict:
            self._leases.pop(key, None)
            found = self._lease(key)  # one's own success, if something in between has sent it again
            if found is None or (found[0].token, found[0].beat) != (lease.token, lease.beat):
                self._leases.pop(key, None)
                raise lease_changed(key, doing) from None
            return
        except BaseException:
            self._leases.pop(key, None)
            raise
        self._leases[key] = lease, etag

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        """One write, one listing and one conditional read."""
        try:
            self._renew(key, lease, self._leases.get(key))
        except Conflict:  # also where an earlier renewal came through whose answer was lost
            self._renew(key, lease, self._lease(key))
        beats = {}
        digest = xxhash.xxh3_64()
        for flow, beat, age_s in self._flows.beats(key):
            beats[flow] = Beat(instance=beat.instance, count=beat.count, age_s=age_s)
            digest.update(f"{flow} {beat.instance} {beat.bound} {beat.record}\n".encode())
        return Pulse(state_token=self._state_token(key), records_version=digest.hexdigest(), beats=beats)

    def _renew(self, key: GroupKey, lease: Lease, found: tuple[Lease, str] | None) -> None:
        if found is None or found[0].token != lease.token or found[0].beat >= lease.beat:
            raise lease_changed(key, "renewing")
        self._swap_lease(key, lease, found[1], "renewing")

    def release_lease(self, key: GroupKey, token: str) -> None:
        found = self._lease(key)
        if found is not None and found[0].token == token:
            self._leases.pop(key, None)
            try:
                self._store.remove(_folder(key) + "leader", expected=found[1])
            except Conflict:
                pass  # somebody else's by now

    # ---- who has what

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        folder = _folder(key)
        found = {}
        for info in self._store.list(folder):
            number = info.name.removeprefix(folder)
            if not number.isdecimal():
                break  # names come in order, digits first
            found[int(number)] = _ownership(key, int(number), info.name, info.metadata)
        return dict(sorted(found.items()))

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        """`modified` is by this process's clock: a blob's own time is known only after it was written."""
        wanted = tuple(records)
        if wanted:
            only_group(wanted)
        claimed = {}
        for record in wanted:
            won = replace(record, version=self._token(), modified=datetime.now(UTC).isoformat(timespec="milliseconds"))
            try:
                self._claim(record, won)
            except (Conflict, Unavailable):
                self._claims.pop((record.key, record.partition), None)  # an unknown outcome counts as not claimed
            else:
                claimed[record.partition] = won
        return claimed

    def _claim(self, record: OwnershipRecord, won: OwnershipRecord) -> None:
        place = record.key, record.partition
        name = _folder(record.key) + str(record.partition)
        etag = None
        if record.version:
            version, etag = self._claims.get(place, ("", ""))
            if version != record.version:
                found = self._store.load(name)
                if not isinstance(found, Document) or found.metadata.get("version") != record.version:
                    raise Conflict(f"ownership {name} was claimed since it was read: list it again")
                etag = found.etag
        self._claims[place] = won.version, self._store.swap(name, _claim_metadata(won), expected=etag)

    # ---- news

    def announce(self, key: GroupKey) -> None:
        """There is nobody to tell: everybody looks."""

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        self._sleep(max(0.0, min(timeout_s, self.look_interval_s)))
        return None

    def drop_group(self, key: GroupKey) -> None:
        for info in list(self._store.list(_folder(key))):
            self._store.delete(info.name)
        self._states.pop(key, None)
        self._leases.pop(key, None)
        self._flows.drop_group(key)
        for place in [place for place in self._claims if place[0] == key]:
            del self._claims[place]


def _folder(key: GroupKey) -> str:
    return f"{key}/ownership/"


def _claim_metadata(record: OwnershipRecord) -> dict[str, str]:
    found = {
        "namespace": record.key.namespace,
        "queue": record.key.queue,
        "group": record.key.group,
        "partition": str(record.partition),
        "epoch": str(record.epoch),
        "version": record.version,
        "modified": record.modified,
    }
    if record.owner is not None:
        found |= {"flow": record.owner.flow, "instance": record.owner.instance}
    return sealed(found)


def _ownership(key: GroupKey, partition: int, name: str, metadata: Mapping[str, str]) -> OwnershipRecord:
    check_sealed(metadata, f"object {name}", "remove it, it is written anew")
    try:
        return OwnershipRecord(
            key=key,
            partition=partition,
            owner=Owner(metadata["flow"], metadata["instance"]) if "flow" in metadata else None,
            epoch=int(metadata["epoch"]),
            version=metadata["version"],
            modified=metadata["modified"],
        )
    except (KeyError, ValueError):
        raise Corrupt(f"object {name} has metadata that partq did not write: remove it, it is written anew") from None
