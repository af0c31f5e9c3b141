"""How far partitions are acknowledged that another flow has, or nobody: what is read for the sake of those that wait.

A pure look at what the stores say; whoever asks decides when (`order`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping

from partq_spark.group.checkpoint import acknowledged_to
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import FlowRecord, GroupState

_log = logging.getLogger("partq.flow")


def by_checkpoints(
    checkpoints: CheckpointStore, partitions: Collection[int], start_of: Callable[[int], int]
) -> dict[int, int]:
    """By one listing (CHK-02): the offset in the checkpoint, where there is none the group's start. What cannot be read
    is left out, and so nothing is known to be acknowledged of it. Raises `Unavailable`.
    """
    found, damaged = checkpoints.list_readable()
    for partition in damaged.keys() & set(partitions):
        _log.warning("other partitions may wait for partition %d: %s", partition, damaged[partition])
    result: dict[int, int] = {}
    for partition in partitions:
        if partition not in damaged:
            result[partition] = acknowledged_to(found.get(partition), start_of(partition))
    return result


def by_records(
    state: GroupState | None,
    records: Mapping[str, FlowRecord],
    partitions: Collection[int],
    start_of: Callable[[int], int],
) -> dict[int, int]:
    """With `checkpoints=none`: what its owner reports at the present epoch. One that the coordinator has let go was
    delivered to its end; one that the group never had is where the group begins, and may have been gone by then. Of one
    that is nobody's nothing is known: somebody may have gone back below that start.
    """
    result: dict[int, int] = {}
    if state is None:
        return result
    for number in partitions:
        partition = state.partitions.get(number)
        if partition is None:
            result[number] = sys.maxsize if number in state.retired else start_of(number)
            continue
        record = records.get(partition.owner.flow) if partition.owner is not None else None
        if record is None or record.incarnation != state.incarnation:
            continue
        entry = record.entry(number, partition.epoch)
        if entry is not None:
            result[number] = entry.acknowledged
    return result
