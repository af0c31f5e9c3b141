"""Flows as anybody reads them from a group's documents: every heartbeat by one listing, a record when it has changed.

A heartbeat names the version of its record, so that a record is read again only where it names another one. A record
that no heartbeat names counts for nobody. Nothing is written here (`flows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from partq_spark.base.errors import Corrupt
from partq_spark.group.checksums import digest_of
from partq_spark.group.documents.api import DocumentPlace, Documents, Found, Listed, Listing, Load, Names
from partq_spark.group.model import FlowRecord, GroupKey, Owner
from partq_spark.group.ownership.encoding import (
    BEATS,
    BEATS_IN,
    RECORDS,
    Heartbeat,
    beat_name,
    decode_flow,
    decode_heartbeat,
    owner_of,
    record_name,
)
from partq_spark.group.ownership.values import Beat, FlowsSeen

_TRIES: Final = 3
"""How often a heartbeat is read again whose record is another one by now. A flow binds seldom."""

_AT_ONCE: Final = 100
"""So many records are read in one call: Redis does nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class Hearts:
    """All heartbeats of a group as they were listed last, to tell the next ones that say nothing else without taking
    them apart. `owners` are in the order of the listing, `records_version` changes with any flow's record.
    """

    names: Sequence[str]
    contents: Sequence[str | Mapping[str, str]]
    by_flow: Mapping[str, Heartbeat]
    owners: Sequence[Owner]
    records_version: str


class FlowReader:
    """The flows of all groups, as one user sees them."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._hearts: dict[GroupKey, Hearts] = {}
        self._records: dict[GroupKey, dict[str, tuple[Heartbeat, FlowRecord]]] = {}  # as read last

    def _hearts_in(self, key: GroupKey, listed: Listed) -> Hearts:
        """Every flow's heartbeat. Raises `Corrupt`."""
        known = self._hearts.get(key)
        if known is not None and (listed.names, listed.contents) == (known.names, known.contents):
            return known
        hearts = {
            found.name.removeprefix(BEATS_IN): decode_heartbeat(
                found.value, DocumentPlace(self._documents, key, found.name)
            )
            for found in listed
        }
        lines = (f"{flow} {it.instance} {it.bound} {it.record}" for flow, it in sorted(hearts.items()))
        owners = [Owner(flow, heart.instance) for flow, heart in hearts.items()]
        version = digest_of("\n".join(lines))
        known = self._hearts[key] = Hearts(listed.names, listed.contents, hearts, owners, version)
        return known

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        """All records of the group, by flow name: a listing, and what has changed since it was read last."""
        (listed,) = self._documents.ask(key, Listing(BEATS))
        hearts = self._hearts_in(key, listed).by_flow
        self._read_records(key, hearts)
        records = ((flow, self._record(key, flow, heart)) for flow, heart in sorted(hearts.items()))
        return {flow: record for flow, record in records if record is not None}

    def look_at_flows(self, key: GroupKey) -> FlowsSeen:
        """All flows, and what is wrong with those that cannot be read: for people."""
        (listed,) = self._documents.ask(key, Listing(BEATS, aged=True))
        seen = FlowsSeen({}, {}, {})
        hearts: dict[str, Heartbeat] = {}
        for found in listed:
            flow = found.name.removeprefix(BEATS_IN)
            try:
                hearts[flow] = decode_heartbeat(found.value, DocumentPlace(self._documents, key, found.name))
            except Corrupt as problem:
                seen.damaged[flow] = problem
            else:
                seen.beats_age_s[flow] = max(found.age_s, 0.0)
        with suppress(Corrupt):  # each that this has not read is read below
            self._read_records(key, hearts)
        for flow, heart in hearts.items():
            try:
                record = self._record(key, flow, heart)
            except Corrupt as problem:
                seen.damaged[flow] = problem
            else:
                if record is not None:
                    seen.records[flow] = record
        return seen

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        """One flow's record and heartbeat."""
        return self._read_flow(key, flow)

    def _read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        for _ in range(_TRIES):
            (found,) = self._documents.ask(key, Load(beat_name(flow), aged=True))
            if not isinstance(found, Found):
                return None
            heart = decode_heartbeat(found.value, DocumentPlace(self._documents, key, found.name))
            self._read_records(key, {flow: heart})
            record = self._remembered(key, flow, heart)
            if record is not None:
                return record, Beat(instance=heart.instance, token=found.token, age_s=found.age_s)
        return None  # its record was lost, and nobody can be bound to it

    def _record(self, key: GroupKey, flow: str, heart: Heartbeat) -> FlowRecord | None:
        """The record that the heartbeat refers to, or the present one: bound anew or forgotten since the listing."""
        record = self._remembered(key, flow, heart)
        if record is None:
            record, _ = self._read_flow(key, flow) or (None, None)
        return record

    def _remembered(self, key: GroupKey, flow: str, heart: Heartbeat) -> FlowRecord | None:
        """The record that the heartbeat refers to, if it was read."""
        seen, record = self._records.get(key, {}).get(flow, (None, None))
        if seen is None or record is None or (seen.instance, seen.record) != (heart.instance, heart.record):
            return None
        return record if record.bound == heart.bound else replace(record, bound=heart.bound)

    def _read_records(self, key: GroupKey, hearts: Mapping[str, Heartbeat]) -> None:
        """Read the records that heartbeats refer to and that are not remembered; those that are gone are forgotten."""
        changed = [(flow, heart) for flow, heart in hearts.items() if self._remembered(key, flow, heart) is None]
        records = self._records.setdefault(key, {})
        for first in range(0, len(changed), _AT_ONCE):
            some = changed[first : first + _AT_ONCE]
            answers = self._documents.ask(key, *(Load(record_name(flow, heart.instance)) for flow, heart in some))
            for (flow, heart), found in zip(some, answers, strict=True):
                records.pop(flow, None)
                if isinstance(found, Found):
                    where = DocumentPlace(self._documents, key, found.name)
                    record = decode_flow(found.value, where)
                    if (record.flow, record.instance) != (flow, heart.instance):
                        raise Corrupt(
                            f"{where} holds the record of instance {record.instance} of flow {record.flow!r}: remove"
                            " it, flows bind anew"
                        )
                    records[flow] = heart, record

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        """All heartbeats of the group, by flow name, in one call: for people and tools. A leader renews."""
        (listed,) = self._documents.ask(key, Listing(BEATS, aged=True))
        return {
            owner.flow: Beat(instance=owner.instance, token=found.token, age_s=found.age_s)
            for found, owner in zip(listed, self._hearts_in(key, listed).owners, strict=True)
        }

    def _has_record(self, key: GroupKey, flow: str, heart: Heartbeat) -> bool:
        """Whether a flow can be bound to this heartbeat: its record may be lost."""
        (found,) = self._documents.ask(key, Load(record_name(flow, heart.instance)))
        return found is not None

    def unnamed_records(self, key: GroupKey) -> frozenset[Owner]:
        """Instances that have a record and no heartbeat: a bind under way, or what is left of one that did not come to
        its end, or of a flow whose heartbeat was evicted.
        """
        names, listed = self._documents.ask(key, Names(RECORDS), Listing(BEATS))
        named = self._hearts_in(key, listed).owners
        return frozenset(owner for name in names if (owner := owner_of(name)) is not None).difference(named)
