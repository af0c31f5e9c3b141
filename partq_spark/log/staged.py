"""The values of staging: what a task must know of a queue to stage messages for it, and what it has written when it is
done. `segment` writes it, `publish` makes it visible. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from partq_spark.log.model import Head, Slice
from partq_spark.log.schema.columns import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a task must know to stage messages for a queue: taken from the head once, on the driver."""

    namespace: str
    queue: str
    queue_id: str
    sequence: int
    generation: int
    partitions: int
    max_message_bytes: int
    columns: Columns | None = None  # of a typed queue


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedSegment:
    """One task's messages, durable but not yet published."""

    name: str
    headers: bool
    slices: tuple[Slice, ...]  # each partition's messages are numbered from 0: their offsets come with the publish
    bytes: int

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)


class Staged(NamedTuple):
    """One task's messages, and what they were staged for. `named`: by the user, and not only by what the queue
    attracts.
    """

    stage: Stage
    segment: StagedSegment
    named: bool = True


def slices_sum(version: int | None, headers: bool, checksums: Iterable[str]) -> str:
    """One sum over the checksums of all slices of a publish: where it is equal the messages are, in whichever order and
    partitions the slices lie. `version` is that of a typed queue's columns: the bytes do not say their types.
    """
    return xxhash.xxh3_64_hexdigest(f"{version or 0}/{headers:d}/{''.join(sorted(checksums))}".encode())


def stage_of(head: Head) -> Stage:
    """What tasks need to stage for a queue with this head."""
    return Stage(
        namespace=head.namespace,
        queue=head.queue,
        queue_id=head.queue_id,
        sequence=head.sequence,
        generation=head.layout.generation,
        partitions=head.partitions,
        max_message_bytes=head.config.max_message_bytes,
        columns=head.columns,
    )
