"""One version of a partition's checkpoint, and how it is written down as metadata (CHK-02). No I/O.

Who may change a checkpoint, and how, is decided in `checkpoints`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from partq_spark.base.errors import Corrupt
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.group.model import Owner
from partq_spark.log.model import Origin

_REPAIR: Final = "restore the blob from a copy, or delete it: then the partition begins at the group's start again"

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
UNBOUNDED: Final = 2**63 - 1
"""As an offset: any message that there is, and that ever will be."""

_PUBLISH = re.compile(r"[0-9]{1,19}:[0-9]{1,19}:[!-9;-~]*", re.ASCII)
_NAME = re.compile(r"[!-~]+", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One version of a partition's checkpoint.

    `offset` is the next message to deliver: everything before it is acknowledged; None where offsets are not kept
    (`checkpoints=none`). Messages below `redelivered_below` may have been delivered by an earlier owner or instance. Up
    to `may_reach` the present owner may have delivered; where offsets are not kept it is `UNBOUNDED` while the owner
    has anything in hand. `updated` is the writer's own clock (RFC 3339), for people. `etag` is None in a listing: such
    a one cannot be written to. `origin`: the newest publish that the owner had read when it acknowledged `offset`, None
    if nobody can tell.

    The checkpoint of a former queue of the same name, which `queue_id` tells, counts as absent, but its epoch
    continues (RES-05): it has no owner, no offset and no mark. So does that of a group that was removed and made again
    under its name, which `since` tells: the sequence number of the head that the group was made with. Its epoch counts
    as over.
    """

    partition: int
    epoch: int
    owner: Owner | None
    offset: int | None
    redelivered_below: int
    may_reach: int
    updated: str
    queue_id: str
    since: int
    etag: str | None
    origin: Origin | None = None

    @property
    def is_open(self) -> bool:
        """Whether its owner may have something in hand; else it is closed."""
        return self.may_reach > self.offset if self.offset is not None else self.may_reach == UNBOUNDED

    @property
    def marked_below(self) -> int:
        """Below this the next owner marks what it delivers."""
        # Without an offset the next owner begins at the group's start, whatever was in hand.
        return max(self.redelivered_below, self.may_reach if self.is_open or self.offset is None else 0)

    @property
    def is_void(self) -> bool:
        """Nothing of it counts but the epoch: a former queue or a former group left it."""
        return self.owner is None and self.offset is None and self.redelivered_below == self.may_reach == 0

    def is_of(self, queue_id: str, owner: Owner | None, epoch: int) -> bool:
        """Exactly this queue's, flow's, instance's and epoch's."""
        return (self.queue_id, self.owner, self.epoch) == (queue_id, owner, epoch)


def acknowledged_to(checkpoint: Checkpoint | None, start: int) -> int:
    """The offset before which a group has acknowledged everything of a partition, for good: `start`, where the group
    begins in it, if there is no checkpoint, or one without an offset.
    """
    return checkpoint.offset if checkpoint is not None and checkpoint.offset is not None else start


def done_to(checkpoint: Checkpoint | None, start: int) -> int:
    """The same for those who wait for the partition: where offsets are not kept, a closed one says how far its owner
    is.
    """
    if checkpoint is None or checkpoint.offset is not None or checkpoint.is_open:
        return acknowledged_to(checkpoint, start)
    return max(checkpoint.may_reach, start)


def is_without_offset(checkpoint: Checkpoint) -> bool:
    """Whether its owner does not write acknowledgements down (`checkpoints=none`)."""
    return checkpoint.owner is not None and checkpoint.offset is None


def decode(
    name: str, partition: int, metadata: Mapping[str, str], etag: str | None, queue_id: str, since: int
) -> Checkpoint:
    """The checkpoint that lies in the blob `name`, as the group that was made `since` then in the queue with this id
    has it. Raises `Corrupt`.
    """
    check_sealed(metadata, f"checkpoint {name}", _REPAIR)
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


def encode(checkpoint: Checkpoint) -> Mapping[str, str]:
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
        raise Corrupt(f"checkpoint {name}: its metadata key {key!r} {was}: {_REPAIR}")
    return value
