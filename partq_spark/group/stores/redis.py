"""Ownership in Redis: each verb of the contract is one script and one round trip.

Only what goes into the scripts and what comes out of them lives here; `redis_scripts` has the scripts and the shape of
what is stored, `redis_client` the connections. Nothing is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from partq_spark.base.errors import Unavailable
from partq_spark.group.codec import decode_lease, encode_lease, encode_record
from partq_spark.group.effects import new_token
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, OwnershipRecord
from partq_spark.group.stores import redis_scripts
from partq_spark.group.stores.api import Beat, LeaseDocument, Pulse, Reincarnated, StateDocument
from partq_spark.group.stores.redis_client import Listener, RedisClient
from partq_spark.group.stores.redis_rows import (
    NOTE,
    Place,
    Row,
    age_s,
    claim_text,
    delivery_rows,
    group_of,
    pairs,
    parse_beat,
    parse_delivery,
    parse_ownership,
    parse_record,
    parse_row,
    reading,
    rfc_3339,
)
from partq_spark.group.stores.redis_scripts import Script
from partq_spark.group.stores.refusals import (
    checked_flow,
    checked_note,
    lease_changed,
    name_taken,
    not_bound,
    only_group,
    state_changed,
)
from partq_spark.objects.api import UNCHANGED, Unchanged

_CLAIMS_AT_ONCE: Final = 1000
"""Redis does nothing else while a script runs; 1,000 claims take it about 2 ms."""

_log = logging.getLogger("partq.flow")

_READ_STATE: Final = Script(redis_scripts.READ_STATE)
_SWAP_STATE: Final = Script(redis_scripts.SWAP_STATE)
_READ_FLOWS: Final = Script(redis_scripts.READ_FLOWS)
_READ_FLOW: Final = Script(redis_scripts.READ_FLOW)
_READ_BEATS: Final = Script(redis_scripts.READ_BEATS)
_BIND: Final = Script(redis_scripts.BIND)
_BEAT: Final = Script(redis_scripts.BEAT)
_DELIVER: Final = Script(redis_scripts.DELIVER)
_REPORT: Final = Script(redis_scripts.REPORT)
_NOTE: Final = Script(redis_scripts.NOTE)
_UNBIND: Final = Script(redis_scripts.UNBIND)
_FORGET_FLOW: Final = Script(redis_scripts.FORGET_FLOW)
_READ_LEASE: Final = Script(redis_scripts.READ_LEASE)
_TAKE_LEASE: Final = Script(redis_scripts.TAKE_LEASE)
_RENEW_LEASE: Final = Script(redis_scripts.RENEW_LEASE)
_RELEASE_LEASE: Final = Script(redis_scripts.RELEASE_LEASE)
_LIST_OWNERSHIP: Final = Script(redis_scripts.LIST_OWNERSHIP)
_CLAIM_OWNERSHIP: Final = Script(redis_scripts.CLAIM_OWNERSHIP)
_ANNOUNCE: Final = Script(redis_scripts.ANNOUNCE)
_DROP_GROUP: Final = Script(redis_scripts.DROP_GROUP)


class RedisOwnership:
    """One user's view of a Redis; with `group`, a flow's of that group. `store_id` finds out which object store this
    is; it is asked when it is needed first, and with every question for the incarnation.

    `wait_news` may take one attempt to connect longer than it was allowed to, where the subscription was lost.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        store_id: Callable[[], str],
        group: GroupKey | None = None,
        token: Callable[[], str] = new_token,
    ) -> None:
        self._client = client
        self._find_store_id = store_id
        self._store_id = ""
        self._token = token
        self._read: dict[GroupKey, dict[str, Row]] = {}  # as `read_flows` found it last, and what it meant
        self._group = group
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        return f"RedisOwnership({self.url!r})"

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def look_interval_s(self) -> float:
        return 0.1

    def incarnation(self) -> str:
        life = self._client.incarnation()
        self._store_id = self._find_store_id()
        return life

    def close(self) -> None:
        self._client.close()
        if self._listener is not None:
            self._listener.close()

    def _at(self, key: GroupKey) -> Place:
        """Where the group's keys are. Raises as `store_id`."""
        return Place(self._known_store_id(), key)

    def _known_store_id(self) -> str:
        if not self._store_id:
            self._store_id = self._find_store_id()
        return self._store_id

    # ---- the state

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        found = self._client.call(_READ_STATE, [self._at(key).name("state")], known or "")
        if found is None:
            return None
        if found == 1:
            return UNCHANGED
        token, body, written, now = found
        with reading(self._at(key), "state"):
            return StateDocument(token=token.decode(), body=body, age_s=age_s(written, now))

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        keys = [self._at(key).name("state")]
        if not self._client.call(_SWAP_STATE, keys, expected or "", token, body, self._at(key).name("changed")):
            raise state_changed(key, expected)

    # ---- flow records

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        rows, beats, now = self._client.call(_READ_FLOWS, self._at(key).names("beats", "flows"))
        with reading(self._at(key), "beats"):
            bound = {flow: parse_beat(flow, beat, int(now))[1] for flow, beat in pairs(beats)}
        known = self._read.get(key, {})
        read: dict[str, Row] = {}
        deliveries: dict[str, dict[int, Delivery]] = {}
        notes: dict[str, str] = {}
        flows: list[tuple[str, FlowRecord]] = []
        with reading(self._at(key), "flows"):
            for name, text in pairs(rows):
                if name.endswith(" "):
                    continue  # which partitions the flow has
                one = known.get(name)
                if one is None or one.text != text:
                    one = parse_row(self._at(key), name, text)
                read[name] = one
                _, flow, partition, value = one
                if isinstance(value, FlowRecord):
                    flows.append((flow, value))
                elif isinstance(value, str):
                    notes[flow] = value
                elif flow in deliveries:
                    deliveries[flow][partition] = value
                else:
                    deliveries[flow] = {partition: value}
        self._read[key] = read
        return {
            flow: replace(
                record, bound=bound.get(flow, False), deliveries=deliveries.get(flow, {}), note=notes.get(flow, "")
            )
            for flow, record in flows
        }

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        found = self._client.call(_READ_FLOW, self._at(key).names("beats", "flows"), flow)
        if found is None:
            return None
        body, beat, now, note, *rest = found
        with reading(self._at(key), "flows"):
            rows = zip(rest[::2], rest[1::2], strict=True)
            deliveries = {
                int(partition): parse_delivery(f"{flow} {int(partition)}", value.decode()) for partition, value in rows
            }
        with reading(self._at(key), "beats"):
            seen, bound = parse_beat(flow, beat.decode(), int(now)) if beat else (None, False)
        with reading(self._at(key), "flows"):
            record = parse_record(self._at(key), flow, body, bound=bound, deliveries=deliveries, note=note.decode())
        return record, seen or Beat(instance=record.instance, count=0, age_s=0.0)

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        rows, now = self._client.call(_READ_BEATS, self._at(key).names("beats"))
        with reading(self._at(key), "beats"):
            return {flow: parse_beat(flow, beat, int(now))[0] for flow, beat in pairs(rows)}

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        done = self._client.call(
            _BIND,
            self._at(key).names("beats", "flows", "version"),
            checked_flow(record.flow),
            checked_flow(record.instance),
            self._token(),
            self._at(key).name("news"),
            "" if replaces is None else replaces.instance,
            "" if replaces is None else replaces.count,
            encode_record(replace(record, deliveries={}, note="")),
            *delivery_rows(record.flow, record.deliveries),
        )
        if not done:
            raise name_taken(key, record.flow)

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        token = self._client.call(_BEAT, self._at(key).names("beats", "flows", "state"), flow, instance)
        if token == 0:
            raise not_bound(key, flow, instance)
        return None if token is None else _token_in(self._at(key), token)

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        keys = self._at(key).names("beats", "flows", "version", "state")
        done = self._client.call(
            _DELIVER, keys, flow, instance, _sequence(), self._token(), state_token, *delivery_rows(flow, deliveries)
        )
        self._check_done(done, key, flow, instance)
        return bool(done == 2)

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        keys = self._at(key).names("beats", "flows", "version")
        done = self._client.call(
            _REPORT,
            keys,
            flow,
            instance,
            _sequence(),
            self._token(),
            self._at(key).name("news"),
            *delivery_rows(flow, deliveries),
        )
        self._check_done(done, key, flow, instance)

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        keys = self._at(key).names("beats", "flows", "version")
        done = self._client.call(
            _NOTE, keys, flow, instance, _sequence(), self._token(), f"{flow} {NOTE}", checked_note(text)
        )
        self._check_done(done, key, flow, instance)

    def _check_done(self, done: int, key: GroupKey, flow: str, instance: str) -> None:
        if done == 0:
            raise not_bound(key, flow, instance)
        if done == 3:
            raise Unavailable(
                f"ownership {self.url}: a call of flow {flow!r} of group {key} was overtaken by a later one and changed"
                " nothing: call again"
            )

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        keys = self._at(key).names("beats", "flows", "version")
        self._client.call(_UNBIND, keys, flow, instance, self._token(), self._at(key).name("news"))

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        keys = self._at(key).names("beats", "flows", "version", "state")
        return bool(self._client.call(_FORGET_FLOW, keys, flow, instance, self._token(), state_token))

    # ---- the lease

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        found = self._client.call(_READ_LEASE, [self._at(key).name("leader")])
        if found is None:
            return None
        body, renewed, now, token, beat = found
        lease = decode_lease(body, self._at(key).shown("leader"))
        with reading(self._at(key), "leader"):
            if (lease.token.encode(), b"%d" % lease.beat) != (token, beat):
                raise ValueError("the scripts compare others than the lease has, and nobody could take it")
            return LeaseDocument(lease=lease, age_s=age_s(renewed, now))

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        token, beat = ("", "") if expected is None else (expected.token, str(expected.beat))
        keys = [self._at(key).name("leader")]
        if not self._client.call(_TAKE_LEASE, keys, token, beat, lease.token, lease.beat, encode_lease(lease)):
            raise lease_changed(key, "taking")

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        keys = self._at(key).names("leader", "state", "version", "beats")
        found = self._client.call(_RENEW_LEASE, keys, lease.token, lease.beat, encode_lease(lease))
        if found == 0:
            raise lease_changed(key, "renewing")
        token, version, text, now = found
        with reading(self._at(key), "beats"):
            lines = text.decode().split("\n") if text else []
            rows = zip(lines[::2], lines[1::2], strict=True)
            beats = {flow: parse_beat(flow, beat, int(now))[0] for flow, beat in rows}
        return Pulse(
            state_token=None if token is None else _token_in(self._at(key), token),
            records_version="" if version is None else version.decode(errors="replace"),  # only compared
            beats=beats,
        )

    def release_lease(self, key: GroupKey, token: str) -> None:
        self._client.call(_RELEASE_LEASE, [self._at(key).name("leader")], token)

    # ---- who has what

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        rows = self._client.call(_LIST_OWNERSHIP, [self._at(key).name("ownership")])
        with reading(self._at(key), "ownership"):
            records = [parse_ownership(key, partition, line) for partition, line in pairs(rows)]
        return {record.partition: record for record in sorted(records, key=lambda record: record.partition)}

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        given = tuple(records)
        if not given:
            return {}
        key = only_group(given)
        wanted = {record.partition: record for record in given}
        claimed: dict[int, OwnershipRecord] = {}
        partitions = list(wanted)
        for first in range(0, len(partitions), _CLAIMS_AT_ONCE):
            some = {
                partition: replace(wanted[partition], version=self._token())
                for partition in partitions[first : first + _CLAIMS_AT_ONCE]
            }
            rows: Iterator[tuple[str, str, str, str]] = (
                (str(number), wanted[number].version, won.version, claim_text(won)) for number, won in some.items()
            )
            try:
                time_ms, *won = self._client.call(_CLAIM_OWNERSHIP, [self._at(key).name("ownership")], *chain(*rows))
            except Reincarnated:
                raise
            except Unavailable as error:
                _log.warning("group %s: %d partitions count as not claimed: %s", key, len(partitions) - first, error)
                break
            modified = rfc_3339(int(time_ms))
            claimed |= {int(number): replace(some[int(number)], modified=modified) for number in won}
        return claimed

    # ---- news

    def announce(self, key: GroupKey) -> None:
        state, *channels = self._at(key).names("state", "news", "changed")
        self._client.call(_ANNOUNCE, [state], *channels)

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        channels = self._listening().wait(timeout_s)
        if channels is None:
            return None
        found = (group_of(channel, self._known_store_id()) for channel in channels)
        return frozenset(key for key in found if key is not None)

    def _listening(self) -> Listener:
        if self._listener is None:
            if self._group is None:
                # Of all stores: Redis compares a pattern with the user's rights letter by letter.
                self._listener = Listener(self._client, "PSUBSCRIBE", "partq:*:news")
            else:
                self._listener = Listener(self._client, "SUBSCRIBE", self._at(self._group).name("changed"))
        return self._listener

    def drop_group(self, key: GroupKey) -> None:
        self._read.pop(key, None)
        self._client.call(_DROP_GROUP, self._at(key).names("state", "flows", "beats", "version", "leader", "ownership"))


def _token_in(place: Place, token: bytes) -> str:
    with reading(place, "state"):
        return token.decode()


def _sequence() -> int:
    """Orders the calls of one process; in microseconds, because Lua's numbers are exact up to 2^53."""
    return time.monotonic_ns() // 1000
