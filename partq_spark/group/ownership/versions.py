"""What ownership's documents are called, and how a version of them is told from another one: names, a state's token
around its body, what was seen when. Pure. How they are written stands where they are changed: heartbeats in `flows`,
ownership records in the package itself; states and leases in `group.codec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from partq_spark.base.errors import Corrupt
from partq_spark.group.codec import decode_lease
from partq_spark.group.documents import Found, Value
from partq_spark.group.model import FlowRecord, Lease

T = TypeVar("T")

STATE: Final = "state"
LEADER: Final = "leader"
BEATS: Final = "beats"
OWNERSHIP: Final = "ownership"

_STATE_BEGIN: Final = b'{"token":"'
_STATE_MIDDLE: Final = b'","state":'
_DAMAGED: Final = "damaged"
_TEXTS: Final = msgspec.json.Decoder(dict[str, str])


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


# ---- what other documents say


def decode_leader(found: Found, where: str) -> Lease:
    """The lease. Raises `Corrupt`."""
    return decode_lease(_body(found.value), where)


def _body(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""


def read_fields(value: Value) -> Mapping[str, str]:
    """No fields where the text is no JSON object of texts."""
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
