"""What ownership's documents are called and how they are written: names, what flows say with their heartbeats,
ownership records, and a state's token around its body. Pure. Leases are written by `group.codec`.

What is refused here names the document and the next step: nothing of it is needed to begin anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from partq_spark.base.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.group.codec import decode_lease
from partq_spark.group.documents import Found, Value
from partq_spark.group.model import FlowRecord, GroupKey, Lease, Owner, OwnershipRecord, Progress

T = TypeVar("T")

STATE: Final = "state"
LEADER: Final = "leader"
BEATS: Final = "beats"
OWNERSHIP: Final = "ownership"

MOST_MAPPING: Final = 6_000
"""Characters: an object's metadata has room for 8 kB. What does not fit comes to the flow at the next epoch, marked."""

MOST_PROGRESS: Final = 4_000
_NO_ROOM: Final = "-"
_STATE_BEGIN: Final = b'{"token":"'
_STATE_MIDDLE: Final = b'","state":'
_DAMAGED: Final = "damaged"
_TEXTS: Final = msgspec.json.Decoder(dict[str, str])


def beat_name(flow: str) -> str:
    """Of a flow's heartbeat. Raises `Invalid` for a name that no flow can have."""
    return f"{BEATS}/{checked_flow(flow)}"


# ---- the state


def encode_version(token: str, body: bytes) -> bytes:
    """A group's state under a token of its own: it tells whose version this is where an answer was lost."""
    return b"".join((_STATE_BEGIN, token.encode(), _STATE_MIDDLE, body, b"}"))


class StateDocument(NamedTuple):
    """One version of a group's state. `age_s` as in `Seen`."""

    token: str
    body: bytes
    age_s: float = 0.0


def decode_version(found: Found, _where: str) -> StateDocument:
    """As read. The body has its own checksum; the token needs none, it only tells versions apart.

    What has no such form is a version that nobody wrote, with a body that nobody can read: flows go on with
    their heartbeats, and the leader, which meets a token that is not its own, begins anew with the checkpoints and
    writes over it.
    """
    content = _body(found.value)
    token, middle, rest = content.removeprefix(_STATE_BEGIN).partition(_STATE_MIDDLE)
    if not content.startswith(_STATE_BEGIN) or not middle or not token.isascii():
        return StateDocument(_DAMAGED, content)
    return StateDocument(token.decode(), rest[:-1])


# ---- what a flow says with its heartbeat


def encode_flow(record: FlowRecord) -> dict[str, str]:
    """The fields of a heartbeat, sealed. It decides which instance a flow is. One that says nothing new is written all
    the same: what moves is the document's token.
    """
    fields = {
        "instance": record.instance,
        "bound": "1" if record.bound else "0",
        "queue_id": record.queue_id,
        "timeout": f"{record.session_timeout_s:g}",
        "closes": str(record.closes),
        "note": record.note,
        "mapping": _runs({p: str(epoch) for p, epoch in record.mapping.items()}, MOST_MAPPING),
        "progress": _all_runs({p: f"{it.delivered}/{it.acknowledged}" for p, it in (record.progress or {}).items()}),
    }
    return sealed({name: text for name, text in fields.items() if text})


def decode_flow(found: Found, where: str) -> FlowRecord:
    """As read. Raises `Corrupt`."""
    fields = _fields(found.value)
    check_sealed(fields, where, "remove it, its flow binds anew")
    try:
        return FlowRecord(
            flow=found.name,
            instance=fields["instance"],
            queue_id=fields["queue_id"],
            bound=fields["bound"] == "1",
            session_timeout_s=float(fields["timeout"]),
            mapping={p: int(epoch) for p, epoch in _run_values(fields.get("mapping", ""))},
            closes=int(fields["closes"]),
            note=fields.get("note", ""),
            progress=_progress(fields.get("progress", "")),
        )
    except (KeyError, ValueError, TypeError):
        raise Corrupt(f"{where} is no heartbeat that partq wrote: remove it, its flow binds anew") from None


def _runs(values: Mapping[int, str], most: int) -> str:
    """Values by partition, short: `0:5*3,7;9:5` has 5 for the partitions 0 to 2 and 9, and 7 for 3. What is beyond
    `most` characters is left out.
    """
    parts: list[str] = []
    length = 0
    after, last, times = -1, "", 0
    for number in sorted(values):
        if number == after and values[number] == last:
            times += 1
            part = f"{parts[-1].partition('*')[0]}*{times}"
            length += len(part) - len(parts.pop())
        else:
            part = f"{',' if number == after else f';{number}:'}{values[number]}"
            length, last, times = length + len(part), values[number], 1
        if length > most:
            break
        parts.append(part)
        after = number + 1
    return "".join(parts)[1:]


def _all_runs(values: Mapping[int, str]) -> str:
    """All of them or, where they do not fit, a sign of that: half of it would look like the whole."""
    text = _runs(values, 2 * MOST_PROGRESS)
    return text if len(text) <= MOST_PROGRESS else _NO_ROOM


def _progress(text: str) -> Mapping[int, Progress] | None:
    """Raises `ValueError`, `TypeError`."""
    if text == _NO_ROOM:
        return None
    return {p: Progress(*map(int, it.split("/"))) for p, it in _run_values(text)}


def _run_values(text: str) -> Iterator[tuple[int, str]]:
    """Raises `ValueError`."""
    for run in text.split(";") if text else ():
        first, _, values = run.partition(":")
        number = int(first)
        for value in values.split(","):
            single, _, times = value.partition("*")
            for _ in range(min(int(times or 1), MOST_MAPPING)):
                yield number, single
                number += 1


# ---- the lease, and who has what


def decode_leader(found: Found, where: str) -> Lease:
    """The lease. Raises `Corrupt`."""
    return decode_lease(_body(found.value), where)


def encode_ownership(key: GroupKey, record: OwnershipRecord, claim: str) -> dict[str, str]:
    """The fields of seed 004, and a checksum. The version is the document's token; `claim`, a random one, tells the
    values of one call from those of every other.
    """
    fields = {
        **key._asdict(),
        "partition": str(record.partition),
        "epoch": str(record.epoch),
        "modified": record.modified,
        "claim": claim,
    }
    if record.owner is not None:
        fields |= {"flow": checked_flow(record.owner.flow), "instance": checked_flow(record.owner.instance)}
    return sealed(fields)


def decode_ownership(found: Found, where: str, group: str) -> OwnershipRecord:
    """As read. Raises `Corrupt`, also for one that belongs elsewhere."""
    fields = _fields(found.value)
    check_sealed(fields, where, "remove it, it is written anew")
    try:
        partition = int(fields["partition"])
        if (fields["group"], str(partition)) != (group, found.name):
            raise ValueError("it lies in another's place")
        return OwnershipRecord(
            partition=partition,
            owner=Owner(fields["flow"], fields["instance"]) if "flow" in fields else None,
            epoch=int(fields["epoch"]),
            version=found.token,
            modified=fields["modified"],
        )
    except (KeyError, ValueError):
        raise Corrupt(f"{where} has metadata that partq did not write: remove it, it is written anew") from None


def _body(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""


def _fields(value: Value) -> Mapping[str, str]:
    """None where the text is no JSON object of texts."""
    if isinstance(value, Mapping):
        return value
    try:
        return _TEXTS.decode(value)
    except ValueError:
        return {}


# --- what is told of them ---------------------------------------------------------------------------------------------

# What ownership tells beside the values of a group: versions, heartbeats, ages. Nothing is decided here.


HEAD: Final = "_head"
"""In place of a group in what is announced: the queue's head has changed. No group has a name with this beginning."""


class Seen(NamedTuple, Generic[T]):
    """One version of a document, and what it says: of a lease; of a heartbeat, whose flow lives while `token`
    moves. `age_s` is how long ago it was written, by the store's own clock, for people; 0 where nobody asked.
    """

    token: str
    value: T
    age_s: float = 0.0


class FlowsSeen(NamedTuple):
    """A group's flows for people, by name: what they say with their heartbeats, and what is wrong with those that
    cannot be read.
    """

    beats: dict[str, Seen[FlowRecord]]
    damaged: dict[str, Corrupt]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """What a leader sees in one look, cheap enough for every second and every group: the flows' heartbeats, by name."""

    state_token: str | None
    flows: Mapping[str, Seen[FlowRecord]]


# --- what is refused --------------------------------------------------------------------------------------------------


def name_taken(key: GroupKey, flow: str) -> Conflict:
    """`bind` found another instance, whose heartbeat has moved since it was read."""
    return Conflict(
        f"flow {flow!r} of group {key} is or was bound by another process: watch its heartbeat before taking over"
    )


def restless(key: GroupKey, flow: str) -> Unavailable:
    """The heartbeat was another one at each try."""
    return Unavailable(f"heartbeat of flow {flow!r} of group {key} changed whenever it was read: try again")


def lease_changed(key: GroupKey, doing: str) -> Conflict:
    """The lease is not where the caller expected it."""
    return Conflict(f"lease of group {key} is not where it was expected when {doing} it: read it before leading")


_FLOW: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,127}", re.ASCII)


def checked_flow(name: str) -> str:
    """The name of a flow or an instance itself, if it can be stored; raises `Invalid` otherwise."""
    if _FLOW.fullmatch(name) is None:
        raise Invalid(
            f"flow name {name[:80]!r} is not allowed: use 1 to 128 of A-Z, a-z, 0-9, '.', '_', '=', '-', not beginning"
            " with a dot"
        )
    return name
