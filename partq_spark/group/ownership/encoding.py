"""What ownership's documents are called and how they are written: names, heartbeats, ownership records, and a state's
token around its body. Pure. Records and leases are written by `group.codec`.

What is refused here names the document and the next step: nothing of it is needed to begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from partq_spark.base.errors import Corrupt
from partq_spark.group.checksums import check_sealed, sealed
from partq_spark.group.codec import decode_lease, decode_record
from partq_spark.group.documents.api import Found, Value
from partq_spark.group.model import FlowRecord, GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership.refusals import checked_flow

STATE: Final = "state"
LEADER: Final = "leader"
BEATS: Final = "beats"
BEATS_IN: Final = f"{BEATS}/"
OWNERSHIP: Final = "ownership"
RECORDS: Final = "flows"

_STATE_BEGIN: Final = b'{"token":"'
_STATE_MIDDLE: Final = b'","state":'
_DAMAGED: Final = "damaged"


def beat_name(flow: str) -> str:
    """Of a flow's heartbeat. Raises `Invalid` for a name that no flow can have."""
    return f"{BEATS}/{checked_flow(flow)}"


def record_name(flow: str, instance: str) -> str:
    """Of the record of one instance of a flow: no two processes ever write the same one."""
    return f"{RECORDS}/{flow}/{instance}"


def owner_of(name: str) -> Owner | None:
    """Whose record has this name; None for what is no record's name."""
    _, flow, instance, *rest = (*name.split("/"), "", "")
    return Owner(flow, instance) if flow and instance and not any(rest) else None


def ownership_name(partition: int) -> str:
    """Of the record of seed 004."""
    return f"{OWNERSHIP}/{partition}"


# ---- the state


def encode_version(token: str, body: bytes) -> bytes:
    """A group's state under a token of its own: it tells whose version this is where an answer was lost."""
    return b"".join((_STATE_BEGIN, token.encode(), _STATE_MIDDLE, body, b"}"))


class StateVersion(NamedTuple):
    """A group's state as stored."""

    token: str
    body: bytes


def decode_version(value: Value, _where: object) -> StateVersion:
    """As read. The body has its own checksum; the token needs none, it only tells versions apart.

    What has no such form is a version that nobody wrote, with a body that nobody can read: flows go on with
    their heartbeats, and the leader, which meets a token that is not its own, begins anew with the checkpoints and
    writes over it.
    """
    content = _body(value)
    token, middle, rest = content.removeprefix(_STATE_BEGIN).partition(_STATE_MIDDLE)
    if not content.startswith(_STATE_BEGIN) or not middle or not token.isascii():
        return StateVersion(_DAMAGED, content)
    return StateVersion(token.decode(), rest[:-1])


# ---- a flow's heartbeat and record


class Heartbeat(NamedTuple):
    """A flow's heartbeat as stored: it decides which instance a flow is. `record` is the token of that instance's
    record, so that a listing of heartbeats tells which records have changed. A beat that says nothing new swaps in the
    same value: what moves is the document's token.
    """

    instance: str
    bound: bool
    record: str

    def fields(self) -> dict[str, str]:
        """As written, sealed."""
        bound = "1" if self.bound else "0"
        return sealed({"instance": self.instance, "bound": bound, "record": self.record})


def decode_heartbeat(value: Value, where: object) -> Heartbeat:
    """As read. Raises `Corrupt`."""
    fields = _fields(value)
    check_sealed(fields, where, "remove it, its flow binds anew")
    try:
        return Heartbeat(fields["instance"], fields["bound"] == "1", fields["record"])
    except KeyError:
        raise Corrupt(f"{where} is no heartbeat that partq wrote: remove it, its flow binds anew") from None


def decode_flow(value: Value, where: object) -> FlowRecord:
    """A flow's record; whether it is bound stands in its heartbeat."""
    return decode_record(_body(value), where)


# ---- the lease, and who has what


def decode_leader(value: Value, where: object) -> Lease:
    """The lease. Raises `Corrupt`."""
    return decode_lease(_body(value), where)


def encode_ownership(record: OwnershipRecord, modified: str, claim: str) -> dict[str, str]:
    """The fields of seed 004, and a checksum. The version is the document's token; `claim`, a random one, tells the
    values of one call from those of every other.
    """
    fields = {
        "namespace": record.key.namespace,
        "queue": record.key.queue,
        "group": record.key.group,
        "partition": str(record.partition),
        "epoch": str(record.epoch),
        "modified": modified,
        "claim": claim,
    }
    if record.owner is not None:
        fields |= {"flow": checked_flow(record.owner.flow), "instance": checked_flow(record.owner.instance)}
    return sealed(fields)


def decode_ownership(found: Found, where: object, key: GroupKey) -> OwnershipRecord:
    """As read. Raises `Corrupt`, also for one that belongs elsewhere."""
    fields = _fields(found.value)
    check_sealed(fields, where, "remove it, it is written anew")
    try:
        partition = int(fields["partition"])
        if (fields["group"], ownership_name(partition)) != (key.group, found.name):
            raise ValueError("it lies in another's place")
        return OwnershipRecord(
            key=key,
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
    return {} if isinstance(value, bytes) else value
