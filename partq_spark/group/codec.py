"""How a group's state, a flow's record and a lease are written down: compact JSON with a format number, the same bytes
for the same value, under a checksum, because a flipped bit in a number would still be JSON.

Deadlines are written as seconds that remain and read back onto the reader's own clock, so that no clock is ever
compared with another one's (OWN-05). A group of 10,000 partitions and 1,000 flows takes about 350 kB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import xxhash

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group.model import (
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
from partq_spark.log.typed import MALFORMED, flag, refuse, seconds, text, texts, whole

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
    owners: list[Owner] = [Owner(text(flow), text(instance)) for flow, instance in raw["owners"]]
    partitions = [_partition_in(row, owners, now_s) for row in raw["partitions"]]
    flows = [
        Flow(
            name=text(name),
            instance=text(instance),
            bound=flag(bound),
            since=whole(since),
            active=flag(active),
            updates=whole(updates),
        )
        for name, instance, bound, since, active, updates in raw["flows"]
    ]
    return GroupState(
        queue_id=text(raw["queue_id"]),
        incarnation=text(raw["incarnation"]),
        settings=GroupSettings(
            rebalance_delay_s=seconds(raw["rebalance_delay_s"]),
            max_handoff_time_s=seconds(raw["max_handoff_time_s"]),
            access_type=AccessType(raw["access_type"]),
        ),
        partitions=_by("partition", ((one.partition, one) for one in partitions)),
        flows=_by("flow", ((flow.name, flow) for flow in flows)),
        retired=_by("retired partition", ((whole(partition), whole(epoch)) for partition, epoch in raw["retired"])),
        status=RebalanceStatus(raw["status"]),
        holddown_until_s=_until(raw["holddown_left_s"], now_s),
        trigger=flag(raw["trigger"]),
        altered=flag(raw.get("altered", False)),  # a state of an earlier version has none
        binds=whole(raw["binds"]),
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
            partition=whole(partition), phase=_PHASES[phase], epoch=whole(epoch), owner=_owner(owner, owners)
        )
    partition, phase, epoch, owner, to, to_epoch, left_s, reports_lost, removed, *stuck = row
    (why,) = stuck or ("",)
    return Partition(
        partition=whole(partition),
        phase=_PHASES[phase],
        epoch=whole(epoch),
        owner=_owner(owner, owners),
        to=_owner(to, owners),
        to_epoch=whole(to_epoch),
        deadline_s=_until(left_s, now_s),
        reports_lost=flag(reports_lost),
        removed=flag(removed),
        stuck=text(why),
    )


def _owner(number: int, owners: list[Owner]) -> Owner | None:
    if type(number) is not int or number < _NOBODY:
        refuse(number, "the number of an owner")
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
        flow=text(raw["flow"]),
        instance=text(raw["instance"]),
        queue_id=text(raw["queue_id"]),
        incarnation=text(raw["incarnation"]),
        bound=flag(raw["bound"]),
        session_timeout_s=seconds(raw["session_timeout_s"]),
        mapping=_by("mapping", ((whole(partition), whole(epoch)) for partition, epoch in raw["mapping"])),
        deliveries=_by(
            "delivery",
            (
                (
                    whole(partition),
                    Delivery(epoch=whole(epoch), delivered=whole(delivered), acknowledged=whole(acknowledged)),
                )
                for partition, epoch, delivered, acknowledged in raw["deliveries"]
            ),
        ),
        former=texts(raw["former"]),
        note=text(raw.get("note", "")),  # flows that say nothing to people yet write records too
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
        token=text(raw["token"]),
        name=text(raw["name"]),
        beat=whole(raw["beat"]),
        timers=_by("timer", ((text(timer), seconds(left_s)) for timer, left_s in raw["timers"])),
        state_token=text(raw["state_token"]),
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
    except MALFORMED:
        raise Corrupt(f"{where} does not hold a {kind} of partq: remove it, owners are found anew") from None
    if found != (FORMAT, kind):
        raise Corrupt(
            f"{where} holds a {found[1]} of format {found[0]}, a {kind} of format {FORMAT} was expected: use one"
            " version of partq for all coordinators and flows of a group"
        )
    try:
        return build(raw)
    except MALFORMED as error:
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
    return None if left_s is None else now_s + seconds(left_s)
