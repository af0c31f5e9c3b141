"""Ownership in this process's memory: the whole contract, with nothing durable and nothing shared between processes.

For simulations and fast tests; `open_ownership` does not offer it. `MemoryServer` is what Redis is to the other store:
any number of users open a `MemoryOwnership` each, and a test may flush it, restart it or set it back. Deterministic:
time and randomness are handed in, and nothing else is asked for. The only wait is in `wait_news`; who schedules by
himself uses `take_news` instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from partq_spark.group.effects import new_token
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, OwnershipRecord
from partq_spark.group.stores.api import Beat, LeaseDocument, Pulse, StateDocument
from partq_spark.group.stores.refusals import (
    checked_flow,
    checked_note,
    lease_changed,
    name_taken,
    not_bound,
    only_group,
    reincarnated,
    state_changed,
)
from partq_spark.objects.api import UNCHANGED, Unchanged


@dataclass(frozen=True, kw_only=True, slots=True)
class _Beat:
    instance: str
    count: int
    at_s: float


@dataclass(kw_only=True, slots=True)
class _Group:
    """What is stored of one group. All values are frozen, so that a copy of the maps is a copy of everything."""

    token: str | None = None
    body: bytes = b""
    written_s: float = 0.0
    records: dict[str, FlowRecord] = field(default_factory=dict)
    beats: dict[str, _Beat] = field(default_factory=dict)
    version: str = ""
    lease: Lease | None = None
    renewed_s: float = 0.0
    ownership: dict[int, OwnershipRecord] = field(default_factory=dict)

    def copy(self) -> _Group:
        return replace(self, records=dict(self.records), beats=dict(self.beats), ownership=dict(self.ownership))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of everything stored at one moment, for `MemoryServer.restore`."""

    groups: Mapping[GroupKey, _Group]


class MemoryServer:
    """What all users share.

    `now_s` gives seconds and is used for ages and for `modified` alone; `token` makes versions and incarnations.
    `before` and `after` are called with a verb's name around every call and may raise: `before` loses the request,
    `after` loses the answer of something that took place.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.time, token: Callable[[], str] = new_token) -> None:
        self.now_s = now_s
        self.token = token
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None
        self.changed = threading.Condition()
        self.groups: dict[GroupKey, _Group] = {}
        self.lives = 0
        self._incarnation = token()
        self._news = 0
        self._news_of_group: dict[GroupKey, int] = {}
        self._news_for_flows: dict[GroupKey, int] = {}

    def open(self, group: GroupKey | None = None) -> MemoryOwnership:
        """A store for one user; with `group`, for a flow of it (see `open_ownership`)."""
        return MemoryOwnership(self, group=group)

    @property
    def incarnation(self) -> str:
        """The present life. Setting it is a restart that lost nothing; every user notices."""
        return self._incarnation

    @incarnation.setter
    def incarnation(self, value: str) -> None:
        with self.changed:
            self._incarnation = value
            self.lives += 1
            self.changed.notify_all()

    def snapshot(self) -> Snapshot:
        """What is stored now."""
        with self.changed:
            return Snapshot({key: group.copy() for key, group in self.groups.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Restarted with an old copy: everything since then is undone, and the incarnation is a new one."""
        with self.changed:
            self.groups = {key: group.copy() for key, group in snapshot.groups.items()}
            self.incarnation = self.token()

    def restart_empty(self) -> None:
        """Restarted without data."""
        self.restore(Snapshot({}))

    def flush(self) -> None:
        """FLUSHALL: everything is gone, the incarnation stays, and nobody is told."""
        with self.changed:
            self.groups = {}

    def post(self, key: GroupKey, *, coordinator: bool, flows: bool) -> None:
        """News of a group; called with the lock held."""
        self._news += 1
        if coordinator:
            self._news_of_group[key] = self._news
        if flows:
            self._news_for_flows[key] = self._news
        self.changed.notify_all()

    def news_after(self, seen: int, group: GroupKey | None) -> tuple[int, frozenset[GroupKey]]:
        """Groups with news since `seen`, and the number of the last news; called with the lock held."""
        if group is not None:
            return self._news, frozenset({group} if self._news_for_flows.get(group, 0) > seen else ())
        return self._news, frozenset(key for key, number in self._news_of_group.items() if number > seen)


class MemoryOwnership:
    """One user's view of a `MemoryServer`."""

    def __init__(self, server: MemoryServer, *, group: GroupKey | None = None) -> None:
        self._server = server
        self._group_alone = group
        self._known: str | None = None
        with server.changed:
            self._lives = server.lives
            self._seen, _ = server.news_after(0, None)

    def __repr__(self) -> str:
        return "MemoryOwnership()"

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def look_interval_s(self) -> float:
        return 0.01

    def close(self) -> None:
        """Nothing is kept open."""

    def incarnation(self) -> str:
        server = self._server
        server.before("incarnation")
        with server.changed:
            self._known = server.incarnation
        server.after("incarnation")
        return self._known

    @contextmanager
    def _call(self, verb: str, key: GroupKey) -> Iterator[_Group]:
        """The group under the lock, empty if there is none, unless the server lives anew."""
        server = self._server
        server.before(verb)
        with server.changed:
            if self._known is None:
                self._known = server.incarnation
            elif self._known != server.incarnation:
                raise reincarnated(self.url, self._known, server.incarnation)
            group = server.groups.get(key)
            if group is not None:
                yield group
            else:
                group = _Group()
                yield group
                if group != _Group():
                    server.groups[key] = group
        server.after(verb)

    # ---- the state

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        with self._call("read_state", key) as group:
            if group.token is None:
                return None
            if group.token == known:
                return UNCHANGED
            return StateDocument(token=group.token, body=group.body, age_s=self._server.now_s() - group.written_s)

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        with self._call("swap_state", key) as group:
            if group.token != expected:
                raise state_changed(key, expected)
            group.token, group.body, group.written_s = token, body, self._server.now_s()
            self._server.post(key, coordinator=False, flows=True)

    # ---- flow records

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        with self._call("read_flows", key) as group:
            return dict(group.records)

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        with self._call("read_flow", key) as group:
            record = group.records.get(flow)
            return None if record is None else (record, self._seen_beat(group.beats[flow]))

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        with self._call("read_beats", key) as group:
            return {flow: self._seen_beat(beat) for flow, beat in group.beats.items()}

    def _seen_beat(self, beat: _Beat) -> Beat:
        return Beat(instance=beat.instance, count=beat.count, age_s=self._server.now_s() - beat.at_s)

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        checked_flow(record.flow)
        checked_flow(record.instance)
        with self._call("bind", key) as group:
            found = group.records.get(record.flow)
            if found is not None and found.bound and found.instance == record.instance:
                return
            if found is not None:
                at = group.beats[record.flow]
                if replaces is None or (at.instance, at.count) != (replaces.instance, replaces.count):
                    raise name_taken(key, record.flow)
            group.beats[record.flow] = _Beat(instance=record.instance, count=0, at_s=self._server.now_s())
            self._write(key, group, replace(record, note=""))

    def _write(self, key: GroupKey, group: _Group, record: FlowRecord, *, news: bool = True) -> None:
        group.records[record.flow] = record
        group.version = self._server.token()
        if news:
            self._server.post(key, coordinator=True, flows=False)

    def _beaten(self, key: GroupKey, group: _Group, flow: str, instance: str) -> FlowRecord:
        """Move the heartbeat; the record, if it is still this instance's."""
        record = group.records.get(flow)
        if record is None or record.instance != instance or not record.bound:
            raise not_bound(key, flow, instance)
        count = group.beats[flow].count + 1
        group.beats[flow] = _Beat(instance=instance, count=count, at_s=self._server.now_s())
        return record

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        with self._call("beat", key) as group:
            self._beaten(key, group, flow, instance)
            return group.token

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        with self._call("deliver", key) as group:
            record = self._beaten(key, group, flow, instance)
            if group.token != state_token:
                return False
            merged = replace(record, deliveries={**record.deliveries, **deliveries})
            self._write(key, group, merged, news=False)
            return True

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        with self._call("report", key) as group:
            record = self._beaten(key, group, flow, instance)
            self._write(key, group, replace(record, deliveries={**record.deliveries, **deliveries}))

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        checked_note(text)
        with self._call("note", key) as group:
            record = self._beaten(key, group, flow, instance)
            self._write(key, group, replace(record, note=text), news=False)

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        with self._call("unbind", key) as group:
            record = group.records.get(flow)
            if record is not None and record.instance == instance and record.bound:
                self._write(key, group, replace(record, bound=False))

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        with self._call("forget_flow", key) as group:
            if group.token != state_token:
                return False
            record = group.records.get(flow)
            if record is not None and record.instance == instance:
                del group.records[flow], group.beats[flow]
                group.version = self._server.token()
            return True

    # ---- the lease

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        with self._call("read_lease", key) as group:
            if group.lease is None:
                return None
            return LeaseDocument(lease=group.lease, age_s=self._server.now_s() - group.renewed_s)

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        with self._call("take_lease", key) as group:
            if _place(group.lease) != _place(expected):
                raise lease_changed(key, "taking")
            group.lease, group.renewed_s = lease, self._server.now_s()

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        with self._call("renew_lease", key) as group:
            if group.lease is None or group.lease.token != lease.token or group.lease.beat >= lease.beat:
                raise lease_changed(key, "renewing")
            group.lease, group.renewed_s = lease, self._server.now_s()
            return Pulse(
                state_token=group.token,
                records_version=group.version,
                beats={flow: self._seen_beat(beat) for flow, beat in group.beats.items()},
            )

    def release_lease(self, key: GroupKey, token: str) -> None:
        with self._call("release_lease", key) as group:
            if group.lease is not None and group.lease.token == token:
                group.lease = None

    # ---- who has what

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        with self._call("list_ownership", key) as group:
            return dict(sorted(group.ownership.items()))

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        wanted = tuple(records)
        if not wanted:
            return {}
        key = only_group(wanted)
        claimed = {}
        with self._call("claim_ownership", key) as group:
            modified = datetime.fromtimestamp(self._server.now_s(), UTC).isoformat(timespec="milliseconds")
            for record in wanted:
                found = group.ownership.get(record.partition)
                if record.version == ("" if found is None else found.version):
                    won = replace(record, version=self._server.token(), modified=modified)
                    group.ownership[record.partition] = claimed[record.partition] = won
        return claimed

    # ---- news

    def announce(self, key: GroupKey) -> None:
        with self._call("announce", key):
            self._server.post(key, coordinator=True, flows=True)

    def take_news(self) -> frozenset[GroupKey] | None:
        """What `wait_news` would return at once, without waiting."""
        server = self._server
        with server.changed:
            self._seen, groups = server.news_after(self._seen, self._group_alone)
            if self._lives != server.lives:
                self._lives = server.lives
                return None
            return groups

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        deadline_s = time.monotonic() + timeout_s
        self._server.before("wait_news")
        with self._server.changed:
            while True:
                news = self.take_news()
                left_s = deadline_s - time.monotonic()
                if news is None or news or left_s <= 0:
                    return news
                self._server.changed.wait(left_s)

    def drop_group(self, key: GroupKey) -> None:
        with self._call("drop_group", key):
            self._server.groups.pop(key, None)


def _place(lease: Lease | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.token, lease.beat)
