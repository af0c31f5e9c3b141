"""How far a flow's partitions are acknowledged for good: when a checkpoint is moved, and whose word counts.

The same for a flow that shares its group (`progress_writer`) and one that has it to itself (`solo`). What follows when
a checkpoint turns out to be another flow's differs, and is decided there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from partq_spark.base.effects import Effects
from partq_spark.group.checkpoint import Checkpoint, acknowledged_to
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.holdings import FlowHoldings, Holding
from partq_spark.group.key_order import passes
from partq_spark.group.settings import SessionSettings

_log = logging.getLogger("partq.flow")

AcknowledgedBy = Callable[[Collection[int], Callable[[int], int]], Mapping[int, int]]
"""How far each of some partitions is acknowledged; the other argument says where the group begins in one."""


class CheckpointWriter:
    """Of what one process holds. `start_of` and `milestones` as `Session` has them."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        holdings: FlowHoldings,
        settings: SessionSettings,
        effects: Effects,
        *,
        start_of: Callable[[int], int],
        milestones: Callable[[int], Sequence[int]],
    ) -> None:
        self._checkpoints = checkpoints
        self._holdings = holdings
        self._settings = settings
        self._effects = effects
        self._start_of = start_of
        self._milestones = milestones

    def start(self, partition: int) -> int | None:
        """The offset in a partition's first checkpoint; None where offsets are not kept."""
        return self._start_of(partition) if self._settings.keep_offsets else None

    def claimed(self, checkpoint: Checkpoint) -> Checkpoint:
        """One that names this flow, as the flow keeps it: without an offset that is not its own. Raises `Fenced`."""
        if self._settings.keep_offsets or checkpoint.offset is None:
            return checkpoint
        return self._checkpoints.drop_offset(checkpoint)

    def begin(self, checkpoint: Checkpoint) -> int:
        """The first offset that a partition with this checkpoint has to deliver."""
        return acknowledged_to(checkpoint, self._start_of(checkpoint.partition))

    def acknowledged(
        self, partitions: Collection[int], *, by_records: AcknowledgedBy | None = None
    ) -> Mapping[int, int]:
        """How far each is acknowledged, by this flow or another. What this flow has is known here. For the others their
        checkpoints say it; where offsets are not kept `by_records` does, if flows have records. Raises `Unavailable`
        and what `by_records` raises.
        """
        own = self._holdings.written(partitions)
        others = [partition for partition in partitions if partition not in own]
        if not others:
            return own
        if by_records is None or self._settings.keep_offsets:
            return {**_by_checkpoints(self._checkpoints, others, self._start_of), **own}
        return {**by_records(others, self._start_of), **own}

    def advance(self, holding: Holding, *, everything: bool) -> bool:
        """Move the checkpoint if it is time; whether it was. At once where a handoff or another partition waits.

        Raises `Fenced` if the checkpoint is not this flow's any more, `Unavailable`.
        """
        checkpoint = holding.checkpoint
        if checkpoint is None or holding.done <= holding.acknowledged:
            return False
        now_s = self._effects.now_s()
        due = everything or holding.paused or now_s - holding.written_s >= self._settings.checkpoint_interval_s
        if not due and not passes(self._milestones(checkpoint.partition), holding.acknowledged, holding.done):
            return False
        if self._settings.keep_offsets:
            holding.checkpoint = self._checkpoints.update_checkpoint(checkpoint, holding.done, holding.origin)
        holding.acknowledged = holding.done
        holding.written_s = now_s
        return True

    def leave(self, holding: Holding) -> None:
        """Write down how far it is acknowledged and read, for its next owner. Raises as `advance` does."""
        if holding.checkpoint is None:
            return
        offset = holding.done if self._settings.keep_offsets else None
        holding.checkpoint = self._checkpoints.leave(
            holding.checkpoint, offset=offset, delivered=holding.read, origin=holding.origin
        )
        holding.acknowledged = holding.done


def _by_checkpoints(
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
