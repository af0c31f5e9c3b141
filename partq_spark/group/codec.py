"""How a group's state, a flow's record and a lease are written down: JSON under a checksum, the same bytes for the same
value.

`model` knows nothing of writing, so each document has a type of its own here, with the ranges of its fields. Deadlines
are written as seconds that remain and read back onto the reader's own clock, so that no clock is ever compared with
another one's (OWN-05). A group of 10,000 partitions and 1,000 flows takes about 350 kB.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, NamedTuple, TypeVar, cast

from msgspec import Meta, Struct, ValidationError, convert

from partq_spark.base.errors import Invalid
from partq_spark.base.json_documents import MOST, JsonDocument, Seconds, Whole
from partq_spark.group.model import (
    AccessType,
    Flow,
    FlowRecord,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)

FORMAT: Final = 1
"""Raised when older readers would misunderstand what is written."""

_NOBODY: Final = -1

T = TypeVar("T")


def _document(kind: str, content: type[T], check: Callable[[T], None] | None = None) -> JsonDocument[T]:
    return JsonDocument(
        kind,
        content,
        format_number=FORMAT,
        repair="remove it, owners are found anew",
        upgrade="use one version of partq for all coordinators and flows of a group",
        check=check,
    )


# --- the state --------------------------------------------------------------------------------------------------------

_OwnerNumber = Annotated[int, Meta(ge=_NOBODY, le=MOST)]
"""In the state's list of owners."""


class _PartitionRow(NamedTuple):
    """Four values where nothing is going on, all ten where something is."""

    partition: Whole
    phase: Phase
    epoch: Whole
    owner: _OwnerNumber
    to: _OwnerNumber = _NOBODY
    to_epoch: Whole = 0
    left_s: Seconds | None = None
    reports_lost: bool = False
    removed: bool = False
    stuck: str = ""


class _Values(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is written as a list of its fields' values."""


class _Flow(_Values, frozen=True):
    name: str
    instance: str
    bound: bool
    since: Whole
    active: bool
    updates: Whole


class _Settings(Struct, frozen=True):
    rebalance_delay_s: Seconds
    max_handoff_time_s: Seconds
    access_type: AccessType


class _State(Struct, frozen=True, kw_only=True):
    queue_id: str
    incarnation: str
    settings: _Settings
    status: RebalanceStatus
    holddown_left_s: Seconds | None
    trigger: bool
    altered: bool
    binds: Whole
    retired: Mapping[Whole, Whole]
    flows: list[_Flow]
    owners: list[Owner]
    partitions: list[_PartitionRow]


def _check_state(state: _State) -> None:
    _once("partition", (row.partition for row in state.partitions))
    _once("flow", (row.name for row in state.flows))
    last = max((max(row.owner, row.to) for row in state.partitions), default=_NOBODY)
    if last >= len(state.owners):
        raise ValueError(f"a partition is owned by number {last} of {len(state.owners)} owners")


_STATE: Final = _document("state", _State, _check_state)


def encode_state(state: GroupState, now_s: float) -> bytes:
    """The state as it is at `now_s` of this process's clock. Raises `Invalid` for a time without end."""
    owners = sorted(
        {one for partition in state.partitions.values() for one in (partition.owner, partition.to) if one is not None}
    )
    number_of: dict[Owner | None, int] = {owner: number for number, owner in enumerate(owners)}
    number_of[None] = _NOBODY
    return _STATE.seal(
        _State(
            queue_id=state.queue_id,
            incarnation=state.incarnation,
            settings=_as(_Settings, state.settings),
            status=state.status,
            holddown_left_s=_left(state.holddown_until_s, now_s),
            trigger=state.trigger,
            altered=state.altered,
            binds=state.binds,
            retired=dict(sorted(state.retired.items())),
            flows=[_as(_Flow, flow) for _, flow in sorted(state.flows.items())],
            owners=owners,
            partitions=[_partition_out(one, number_of, now_s) for _, one in sorted(state.partitions.items())],
        )
    )


def decode_state(body: bytes, now_s: float, where: object) -> GroupState:
    """The state, with its deadlines on this process's clock, where it is `now_s`.

    Raises `Corrupt`, naming `where`, for anything that `encode_state` cannot have written.
    """
    found = _STATE.open(body, where)
    owners: list[Owner | None] = [*found.owners, None]  # number -1, the last one, is nobody
    return GroupState(
        queue_id=found.queue_id,
        incarnation=found.incarnation,
        settings=_as(GroupSettings, found.settings),
        partitions={row.partition: _partition_in(row, owners, now_s) for row in found.partitions},
        flows={one.name: _as(Flow, one) for one in found.flows},
        retired=found.retired,
        status=found.status,
        holddown_until_s=_until(found.holddown_left_s, now_s),
        trigger=found.trigger,
        altered=found.altered,
        binds=found.binds,
    )


def _partition_out(one: Partition, number_of: Mapping[Owner | None, int], now_s: float) -> _PartitionRow:
    short = (one.partition, one.phase, one.epoch, number_of[one.owner])
    if one.to is None and one.deadline_s is None and not (one.to_epoch or one.reports_lost or one.removed or one.stuck):
        return cast("_PartitionRow", short)  # and read as a whole one
    return _PartitionRow(
        *short,
        to=number_of[one.to],
        to_epoch=one.to_epoch,
        left_s=_left(one.deadline_s, now_s),
        reports_lost=one.reports_lost,
        removed=one.removed,
        stuck=one.stuck.encode(errors="backslashreplace").decode(),  # an error's words, for people,
    )


def _partition_in(row: _PartitionRow, owners: Sequence[Owner | None], now_s: float) -> Partition:
    return Partition(
        partition=row.partition,
        phase=row.phase,
        epoch=row.epoch,
        owner=owners[row.owner],
        to=owners[row.to],
        to_epoch=row.to_epoch,
        deadline_s=_until(row.left_s, now_s),
        reports_lost=row.reports_lost,
        removed=row.removed,
        stuck=row.stuck,
    )


# --- a flow's record --------------------------------------------------------------------------------------------------


class _Delivery(_Values, frozen=True):
    epoch: Whole
    delivered: Whole
    acknowledged: Whole


class _Record(Struct):
    flow: str
    instance: str
    queue_id: str
    incarnation: str
    bound: bool
    session_timeout_s: Seconds
    mapping: Mapping[Whole, Whole]
    deliveries: Mapping[Whole, _Delivery]
    former: tuple[str, ...]
    note: str


_RECORD: Final = _document("record", _Record)


def encode_record(record: FlowRecord) -> bytes:
    """A flow's record. Raises `Invalid` for a time without end."""
    in_order = replace(
        record, mapping=dict(sorted(record.mapping.items())), deliveries=dict(sorted(record.deliveries.items()))
    )
    return _RECORD.seal(_as(_Record, in_order))


def decode_record(body: bytes, where: object) -> FlowRecord:
    """The record. Raises `Corrupt`, naming `where`, for anything that `encode_record` cannot have written."""
    found = _RECORD.open(body, where)
    # A leader keeps thousands of records that were written for the same queue in the same life.
    found.queue_id, found.incarnation = sys.intern(found.queue_id), sys.intern(found.incarnation)
    return _as(FlowRecord, found)


# --- the lease --------------------------------------------------------------------------------------------------------


class _Lease(Struct, frozen=True):
    token: str
    name: str
    beat: Whole
    timers: Mapping[str, Seconds]
    state_token: str


_LEASE: Final = _document("lease", _Lease)


def encode_lease(lease: Lease) -> bytes:
    """A lease; its timers are remaining seconds already. Raises `Invalid` for one without end."""
    timers = {timer: round(left_s, 3) for timer, left_s in sorted(lease.timers.items())}
    return _LEASE.seal(_as(_Lease, replace(lease, timers=timers)))


def decode_lease(body: bytes, where: object) -> Lease:
    """The lease. Raises `Corrupt`, naming `where`, for anything that `encode_lease` cannot have written."""
    return _as(Lease, _LEASE.open(body, where))


# --- what all three share ---------------------------------------------------------------------------------------------


def _as(kind: type[T], value: object) -> T:
    """The value of another type that has the same fields, within the ranges of that type."""
    try:
        return convert(value, kind, from_attributes=True)
    except ValidationError as error:
        raise Invalid(f"{value!r} cannot be written down: {error}; times have to be finite") from None


def _once(what: str, keys: Iterable[object]) -> None:
    key, times = next(iter(Counter(keys).most_common(1)), (None, 0))
    if times > 1:
        raise ValueError(f"{what} {key} comes twice")


def _left(until_s: float | None, now_s: float) -> float | None:
    if until_s is None:
        return None
    if not math.isfinite(until_s):  # JSON has no word for it, and msgspec would write null
        raise Invalid(f"a deadline of {until_s} s cannot be written down: times have to be finite")
    return max(0.0, round(until_s - now_s, 3))


def _until(left_s: float | None, now_s: float) -> float | None:
    return None if left_s is None else now_s + left_s
