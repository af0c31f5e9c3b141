"""How a group's state and a lease are written down, JSON under a checksum, the same bytes for the same value; and a
partition's checkpoint, as metadata (CHK-02).

The values of `model` are written as they are, but for the state, whose owners come by number. Deadlines are written as
seconds that remain and read back onto the reader's own clock, so that no clock is ever compared with another one's
(OWN-05). A group of 10,000 partitions and 1,000 flows takes about 350 kB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, NamedTuple, TypeVar, cast

from msgspec import Meta, Struct

from partq_spark.base.errors import Corrupt
from partq_spark.base.json_documents import MOST, JsonDocument, Seconds, Whole, check_sealed, sealed
from partq_spark.group.model import (
    Checkpoint,
    Flow,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)
from partq_spark.log.model import Origin

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
    """Three values where nothing is going on, all nine where something is."""

    phase: Phase
    epoch: Whole
    owner: _OwnerNumber
    to: _OwnerNumber = _NOBODY
    to_epoch: Whole = 0
    left_s: Seconds | None = None
    drained: bool = False
    removed: bool = False
    stuck: str = ""


class _State(Struct, frozen=True, kw_only=True):
    queue_id: str
    settings: GroupSettings
    status: RebalanceStatus
    holddown_left_s: Seconds | None
    trigger: bool
    altered: bool
    binds: Whole
    retired: Mapping[Whole, Whole]
    flows: Mapping[str, Flow]
    owners: list[Owner]
    partitions: Mapping[Whole, _PartitionRow]


def _check_state(state: _State) -> None:
    last = max((max(row.owner, row.to) for row in state.partitions.values()), default=_NOBODY)
    if last >= len(state.owners):
        raise ValueError(f"a partition is owned by number {last} of {len(state.owners)} owners")


_STATE: Final = _document("state", _State, _check_state)


def encode_state(state: GroupState, now_s: float) -> bytes:
    """The state as it is at `now_s` of this process's clock. All times are finite: the head allows no others."""
    owners = sorted(
        {one for partition in state.partitions.values() for one in (partition.owner, partition.to) if one is not None}
    )
    number_of: dict[Owner | None, int] = {owner: number for number, owner in enumerate(owners)}
    number_of[None] = _NOBODY
    return _STATE.seal(
        _State(
            queue_id=state.queue_id,
            settings=state.settings,
            status=state.status,
            holddown_left_s=_left(state.holddown_until_s, now_s),
            trigger=state.trigger,
            altered=state.altered,
            binds=state.binds,
            retired=dict(sorted(state.retired.items())),
            flows=dict(sorted(state.flows.items())),
            owners=owners,
            partitions={p: _partition_out(one, number_of, now_s) for p, one in sorted(state.partitions.items())},
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
        settings=found.settings,
        partitions={number: _partition_in(number, row, owners, now_s) for number, row in found.partitions.items()},
        flows=found.flows,
        retired=found.retired,
        status=found.status,
        holddown_until_s=_until(found.holddown_left_s, now_s),
        trigger=found.trigger,
        altered=found.altered,
        binds=found.binds,
    )


def _partition_out(one: Partition, number_of: Mapping[Owner | None, int], now_s: float) -> _PartitionRow:
    short = (one.phase, one.epoch, number_of[one.owner])
    if one.to is None and one.deadline_s is None and not (one.to_epoch or one.drained or one.removed or one.stuck):
        return cast("_PartitionRow", short)  # and read as a whole one
    return _PartitionRow(
        *short,
        to=number_of[one.to],
        to_epoch=one.to_epoch,
        left_s=_left(one.deadline_s, now_s),
        drained=one.drained,
        removed=one.removed,
        stuck=one.stuck.encode(errors="backslashreplace").decode(),  # an error's words, for people,
    )


def _partition_in(number: int, row: _PartitionRow, owners: Sequence[Owner | None], now_s: float) -> Partition:
    return Partition(
        partition=number,
        phase=row.phase,
        epoch=row.epoch,
        owner=owners[row.owner],
        to=owners[row.to],
        to_epoch=row.to_epoch,
        deadline_s=_until(row.left_s, now_s),
        drained=row.drained,
        removed=row.removed,
        stuck=row.stuck,
    )


# --- the lease --------------------------------------------------------------------------------------------------------


_LEASE: Final = _document("lease", Lease)


def encode_lease(lease: Lease) -> bytes:
    """A lease; its timers are remaining seconds already."""
    return _LEASE.seal(
        replace(lease, timers={timer: round(left_s, 3) for timer, left_s in sorted(lease.timers.items())})
    )


def decode_lease(body: bytes, where: object) -> Lease:
    """The lease. Raises `Corrupt`, naming `where`, for anything that `encode_lease` cannot have written."""
    return _LEASE.open(body, where)


# --- what both share --------------------------------------------------------------------------------------------------


def _left(until_s: float | None, now_s: float) -> float | None:
    return None if until_s is None else max(0.0, round(until_s - now_s, 3))


def _until(left_s: float | None, now_s: float) -> float | None:
    return None if left_s is None else now_s + left_s


# --- checkpoints ------------------------------------------------------------------------------------------------------

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)

_PUBLISH: Final = re.compile(r"[0-9]{1,19}:[0-9]{1,19}:[!-9;-~]*", re.ASCII)
_NAME: Final = re.compile(r"[!-~]+", re.ASCII)
_RESTORE: Final = "restore the blob from a copy, or delete it: then the partition begins at the group's start again"


def decode_checkpoint(
    name: str, partition: int, metadata: Mapping[str, str], etag: str | None, queue_id: str, since: int
) -> Checkpoint:
    """The checkpoint that lies in the blob `name`, as the group that was made `since` then in the queue with this id
    has it. Raises `Corrupt`.
    """
    check_sealed(metadata, f"checkpoint {name}", _RESTORE)
    written_for = _field(name, metadata, "queue_id", _NAME)
    written_since = int(_field(name, metadata, "since", NUMBER))
    epoch = int(_field(name, metadata, "epoch", NUMBER))
    offset = int(_field(name, metadata, "offset", NUMBER)) if "offset" in metadata else None
    below = int(_field(name, metadata, "redelivered_below", NUMBER))
    may_reach = int(_field(name, metadata, "may_reach", NUMBER))
    owner = None
    if "flow" in metadata or "instance" in metadata:
        owner = Owner(_field(name, metadata, "flow", _NAME), _field(name, metadata, "instance", _NAME))
    removed_since = written_for == queue_id and written_since < since
    former = written_for != queue_id or removed_since
    return Checkpoint(
        partition=partition,
        epoch=epoch + 1 if removed_since else epoch,  # what its flows remember of that epoch counts for nothing
        owner=None if former else owner,
        offset=None if former else offset,
        redelivered_below=0 if former else below,
        may_reach=0 if former else max(may_reach, offset or 0),
        updated=metadata.get("updated", ""),
        queue_id=written_for,
        since=since if removed_since else written_since,
        etag=etag,
        origin=_origin(name, metadata) if not former and "publish" in metadata else None,
    )


def queue_id_of(metadata: Mapping[str, str]) -> str | None:
    """Which queue a checkpoint was written for, whatever else is in it; None: it does not say."""
    return metadata.get("queue_id")


def encode_checkpoint(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Metadata, with the keys that docs/formats.md lists. What is not there has no key: values are never empty."""
    metadata = {
        "epoch": str(checkpoint.epoch),
        "redelivered_below": str(checkpoint.redelivered_below),
        "may_reach": str(checkpoint.may_reach),
        "updated": checkpoint.updated,
        "queue_id": checkpoint.queue_id,
        "since": str(checkpoint.since),
    }
    if checkpoint.offset is not None:
        metadata["offset"] = str(checkpoint.offset)
    if checkpoint.owner is not None:
        metadata["flow"], metadata["instance"] = checkpoint.owner
    if checkpoint.origin is not None:
        metadata["publish"] = ":".join(map(str, checkpoint.origin))
    return sealed(metadata)


def _origin(name: str, metadata: Mapping[str, str]) -> Origin:
    sequence, time_us, token = _field(name, metadata, "publish", _PUBLISH).split(":")
    return Origin(int(sequence), int(time_us), token)


def _field(name: str, metadata: Mapping[str, str], key: str, allowed: re.Pattern[str]) -> str:
    value = metadata.get(key)
    if value is None or not allowed.fullmatch(value):
        was = "is missing" if value is None else f"is {value[:40]!a}"
        raise Corrupt(f"checkpoint {name}: its metadata key {key!r} {was}: {_RESTORE}")
    return value
