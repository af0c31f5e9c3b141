"""How a group's state, a flow's record and a lease are written down: compact JSON with a format number, the same bytes
for the same value, under a checksum, because a flipped bit in a number would still be JSON.

Deadlines are written as seconds that remain and read back onto the reader's own clock, so that no clock is ever
compared with another one's (OWN-05). A group of 10,000 partitions and 1,000 flows takes about 350 kB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import xxhash

from partq_spark.errors import Corrupt, Invalid
from partq_spark.flow.model import (
    AccessType,
    Delivery,
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

_PREFIX: Final = b'{"xxh3":"'
_HASH_END: Final = len(_PREFIX) + 16
_NOBODY: Final = -1

T = TypeVar("T")


# --- the state --------------------------------------------------------------------------------------------------------


def encode_state(state: GroupState, now_s: float) -> bytes:
    """The state as it is at `now_s` of this process's clock."""
    owners = sorted(
        {one for partition in state.partitions.values() for one in (partition.owner, partition.to) if one is not None}
    )
    number_of: dict[Owner | None, int] = {owner: number for number, owner in enumerate(owners)}
    number_of[None] = _NOBODY
    return _write(
        "state",
        {
            "queue_id": state.queue_id,
            "incarnation": state.incarnation,
            "rebalance_delay_s": state.settings.rebalance_delay_s,
            "max_handoff_time_s": state.settings.max_handoff_time_s,
            "access_type": state.settings.access_type,
            "status": state.status,
            "holddown_left_s": _left(state.holddown_until_s, now_s),
            "trigger": state.trigger,
            "altered": state.altered,
            "binds": state.binds,
            "retired": sorted(state.retired.items()),
            "flows": [
                (flow.name, flow.instance, flow.bound, flow.since, flow.active, flow.updates)
                for _, flow in sorted(state.flows.items())
            ],
            "owners": owners,
            "partitions": [_partition_out(one, number_of, now_s) for _, one in sorted(state.partitions.items())],
        },
    )


def decode_state(body: bytes, now_s: float, where: str) -> GroupState:
    """The state, with its deadlines on this process's clock, where it is `now_s`.

    Raises `Corrupt`, naming `where`, for anything that `encode_state` cannot have written.
    """
    return _read("state", body, where, lambda raw: _state_in(raw, now_s))


def _state_in(raw: dict[str, Any], now_s: float) -> GroupState:
    owners: list[Owner] = [Owner(_text(flow), _text(instance)) for flow, instance in raw["owners"]]
    partitions = [_partition_in(row, owners, now_s) for row in raw["partitions"]]
    flows = [
        Flow(
            name=_text(name),
            instance=_text(instance),
            bound=_flag(bound),
            since=_whole(since),
            active=_flag(active),
            updates=_whole(updates),
        )
        for name, instance, bound, since, active, updates in raw["flows"]
    ]
    return GroupState(
        queue_id=_text(raw["queue_id"]),
        incarnation=_text(raw["incarnation"]),
        settings=GroupSettings(
            rebalance_delay_s=_seconds(raw["rebalance_delay_s"]),
            max_handoff_time_s=_seconds(raw["max_handoff_time_s"]),
            access_type=AccessType(raw["access_type"]),
        ),
        partitions=_by("partition", ((one.partition, one) for one in partitions)),
        flows=_by("flow", ((flow.name, flow) for flow in flows)),
        retired=_by("retired partition", ((_whole(partition), _whole(epoch)) for partition, epoch in raw["retired"])),
        status=RebalanceStatus(raw["status"]),
        holddown_until_s=_until(raw["holddown_left_s"], now_s),
        trigger=_flag(raw["trigger"]),
        altered=_flag(raw.get("altered", False)),  # a state of an earlier version has none
        binds=_whole(raw["binds"]),
    )


def _partition_out(one: Partition, number_of: Mapping[Owner | None, int], now_s: float) -> tuple[object, ...]:
    """Four values where nothing is going on, nine where something is, ten where that is stuck."""
    short = (one.partition, one.phase, one.epoch, number_of[one.owner])
    if one.to is None and one.deadline_s is None and not (one.to_epoch or one.reports_lost or one.removed):
        return short
    left_s = _left(one.deadline_s, now_s)
    long = (*short, number_of[one.to], one.to_epoch, left_s, one.reports_lost, one.removed)
    return (*long, one.stuck) if one.stuck else long


_PHASES: Final = {str(phase): phase for phase in Phase}  # Phase(text) takes three times as long


def _partition_in(row: list[Any], owners: list[Owner], now_s: float) -> Partition:
    if len(row) == 4:
        partition, phase, epoch, owner = row
        return Partition(
            partition=_whole(partition), phase=_PHASES[phase], epoch=_whole(epoch), owner=_owner(owner, owners)
        )
    partition, phase, epoch, owner, to, to_epoch, left_s, reports_lost, removed, *stuck = row
    (why,) = stuck or ("",)
    return Partition(
        partition=_whole(partition),
        phase=_PHASES[phase],
        epoch=_whole(epoch),
        owner=_owner(owner, owners),
        to=_owner(to, owners),
        to_epoch=_whole(to_epoch),
        deadline_s=_until(left_s, now_s),
        reports_lost=_flag(reports_lost),
        removed=_flag(removed),
        stuck=_text(why),
    )


def _owner(number: int, owners: list[Owner]) -> Owner | None:
    if type(number) is not int or number < _NOBODY:
        _refuse(number, "the number of an owner")
    return None if number == _NOBODY else owners[number]


# --- a flow's record --------------------------------------------------------------------------------------------------


def encode_record(record: FlowRecord) -> bytes:
    """A flow's record."""
    return _write(
        "record",
        {
            "flow": record.flow,
            "instance": record.instance,
            "queue_id": record.queue_id,
            "incarnation": record.incarnation,
            "bound": record.bound,
            "session_timeout_s": record.session_timeout_s,
            "mapping": sorted(record.mapping.items()),
            "deliveries": [
                (partition, one.epoch, one.delivered, one.acknowledged)
                for partition, one in sorted(record.deliveries.items())
            ],
            "former": record.former,
            "note": record.note,
        },
    )


def decode_record(body: bytes, where: str) -> FlowRecord:
    """The record. Raises `Corrupt`, naming `where`, for anything that `encode_record` cannot have written."""
    return _read("record", body, where, _record_in)


def _record_in(raw: dict[str, Any]) -> FlowRecord:
    return FlowRecord(
        flow=_text(raw["flow"]),
        instance=_text(raw["instance"]),
        queue_id=_text(raw["queue_id"]),
        incarnation=_text(raw["incarnation"]),
        bound=_flag(raw["bound"]),
        session_timeout_s=_seconds(raw["session_timeout_s"]),
        mapping=_by("mapping", ((_whole(partition), _whole(epoch)) for partition, epoch in raw["mapping"])),
        deliveries=_by(
            "delivery",
            (
                (
                    _whole(partition),
                    Delivery(epoch=_whole(epoch), delivered=_whole(delivered), acknowledged=_whole(acknowledged)),
                )
                for partition, epoch, delivered, acknowledged in raw["deliveries"]
            ),
        ),
        former=tuple(_text(instance) for instance in raw["former"]),
        note=_text(raw.get("note", "")),  # flows that say nothing to people yet write records too
    )


# --- the lease --------------------------------------------------------------------------------------------------------


def encode_lease(lease: Lease) -> bytes:
    """A lease; its timers are remaining seconds already."""
    return _write(
        "lease",
        {
            "token": lease.token,
            "name": lease.name,
            "beat": lease.beat,
            "timers": [(timer, round(left_s, 3)) for timer, left_s in sorted(lease.timers.items())],
            "state_token": lease.state_token,
        },
    )


def decode_lease(body: bytes, where: str) -> Lease:
    """The lease. Raises `Corrupt`, naming `where`, for anything that `encode_lease` cannot have written."""
    return _read("lease", body, where, _lease_in)


def _lease_in(raw: dict[str, Any]) -> Lease:
    return Lease(
        token=_text(raw["token"]),
        name=_text(raw["name"]),
        beat=_whole(raw["beat"]),
        timers=_by("timer", ((_text(timer), _seconds(left_s)) for timer, left_s in raw["timers"])),
        state_token=_text(raw["state_token"]),
    )


# --- what all three share ---------------------------------------------------------------------------------------------


def _write(kind: str, fields: dict[str, object]) -> bytes:
    try:
        rest = json.dumps({"format": FORMAT, "kind": kind, **fields}, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise Invalid(f"{kind} cannot be written down, {error}: times have to be finite numbers of seconds") from None
    return b'%s%s",%s' % (_PREFIX, xxhash.xxh3_64_hexdigest(rest).encode(), rest[1:])


def _read(kind: str, body: bytes, where: str, build: Callable[[dict[str, Any]], T]) -> T:
    rest = b"{" + body[_HASH_END + 2 :]
    if not body.startswith(_PREFIX) or body[_HASH_END : _HASH_END + 2] != b'",':
        raise Corrupt(f"{where} does not hold a {kind} of partq: remove it if it is foreign; owners are found anew")
    if body[len(_PREFIX) : _HASH_END] != xxhash.xxh3_64_hexdigest(rest).encode():
        raise Corrupt(f"{where} is damaged, its checksum does not match: remove it, owners are found anew")
    try:
        raw = json.loads(rest)
        found = raw["format"], raw["kind"]
    except (ValueError, TypeError, KeyError):
        raise Corrupt(f"{where} does not hold a {kind} of partq: remove it, owners are found anew") from None
    if found != (FORMAT, kind):
        raise Corrupt(
            f"{where} holds a {found[1]} of format {found[0]}, a {kind} of format {FORMAT} was expected: use one"
            " version of partq for all coordinators and flows of a group"
        )
    try:
        return build(raw)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise Corrupt(
            f"{where} does not hold a {kind} that partq could have written ({type(error).__name__}: {error}): remove"
            " it, owners are found anew"
        ) from None


K = TypeVar("K")


def _by(what: str, items: Iterable[tuple[K, T]]) -> dict[K, T]:
    """A map whose keys may come once only."""
    pairs = list(items)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a {what} comes twice")
    return found


def _left(until_s: float | None, now_s: float) -> float | None:
    return None if until_s is None else max(0.0, round(until_s - now_s, 3))


def _until(left_s: Any, now_s: float) -> float | None:
    return None if left_s is None else now_s + _seconds(left_s)


def _refuse(value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{value!r} is not {wanted}")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        _refuse(value, "a number from 0 up")
    return value


def _seconds(value: Any) -> float:
    if (type(value) is not float and type(value) is not int) or value < 0:
        _refuse(value, "a time in seconds")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        _refuse(value, "true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        _refuse(value, "a text")
    return value
