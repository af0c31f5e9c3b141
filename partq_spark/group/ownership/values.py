"""What ownership tells beside the values of a group: versions, heartbeats, ages. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from partq_spark.base.errors import Corrupt
from partq_spark.group.model import FlowRecord, Lease, Owner

HEAD: Final = "_head"
"""In place of a group in what is announced: the queue's head has changed. No group has a name with this beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDocument:
    """One version of a group's state. `age_s` is how long ago it was written, by the store's own clock, for people; 0
    where the caller asked with the version that it knows.
    """

    token: str
    body: bytes
    age_s: float


class Beat(NamedTuple):
    """A flow's heartbeat: it lives while `token` moves. `age_s` is by the store's own clock, for people."""

    instance: str
    token: str
    age_s: float


class FlowsSeen(NamedTuple):
    """A group's flows for people, by name: what they say, their heartbeats, and what is wrong with those that cannot be
    read.
    """

    records: dict[str, FlowRecord]
    beats: dict[str, Beat]
    damaged: dict[str, Corrupt]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseDocument:
    """The lease as stored. `age_s` is how long ago it was renewed, by the store's own clock, for people."""

    lease: Lease
    age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """What a leader sees in one look, cheap enough for every second and every group: what the flows say, and the token
    of each heartbeat.
    """

    state_token: str | None
    flows: Mapping[str, FlowRecord]
    beats: Mapping[Owner, str]
