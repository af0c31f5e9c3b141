"""What one process holds of a group: each partition with how far it was announced and acknowledged.

Bookkeeping in memory, without I/O and without a clock. It outlives the instances of its flow, so that an instance that
has to bind again goes on where the one before was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from partq_spark.group import claims
from partq_spark.group.checkpoint import done_to
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.claims import Claim, FlowChangeUpdate, Grant, Position
from partq_spark.group.model import GroupState, Owner, Progress
from partq_spark.log.model import Origin

REMEMBERED: Final = 8
"""Intervals between two writes of a checkpoint, by which the next reserve is chosen."""


@dataclass(slots=True)
class Holding:
    """One partition. Offsets are exclusive ends.

    `checkpoint` is None until the present instance has read its own name in it; then it is as it was read or written
    last. `marked` is the owner's own mark: messages below may have been delivered before. `announced` is the highest
    end that was returned to Spark, or taken up again from it, at this epoch; `done` is what the application has
    acknowledged, `saved` what of it the checkpoint said last. `in_doubt`: nobody knows what became of the last write.
    `origin` is the newest publish that was read when `done` was acknowledged.
    """

    epoch: int
    announced: int
    done: int
    marked: int = 0
    checkpoint: Checkpoint | None = None
    paused: bool = False
    in_doubt: bool = False
    saved: int = 0
    written_s: float = 0.0
    origin: Origin | None = None
    _announced_at_write: int = 0
    _advances: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED - 1))

    def __post_init__(self) -> None:
        self._announced_at_write = self.announced

    @property
    def acknowledged(self) -> int:
        """For good; where offsets are not kept nothing is."""
        offset = self.checkpoint.offset if self.checkpoint is not None else None
        return offset if offset is not None else self.done

    @property
    def reserve(self) -> int:
        """How much more than what is announced is written down as perhaps delivered, so that not each batch costs a
        write: a quarter more than the most that was announced between two of the last writes.
        """
        most = max([*self._advances, self.announced - self._announced_at_write])
        return -(-5 * most // 4)

    def was_written(self, checkpoint: Checkpoint, now_s: float) -> None:
        """The checkpoint is so now."""
        self.checkpoint, self.in_doubt, self.written_s = checkpoint, False, now_s
        self.saved = done_to(checkpoint, self.saved)
        self._advances.append(self.announced - self._announced_at_write)
        self._announced_at_write = self.announced

    def covers(self, end: int) -> bool:
        """Whether messages up to `end` may be delivered by what the checkpoint says."""
        if self.checkpoint is None or self.in_doubt:
            return False
        return end <= self.checkpoint.may_reach and (self.checkpoint.offset is not None or self.checkpoint.is_open)


class FlowHoldings:
    """All that a session holds, by partition. `mapping` is what its next bind presents: partition to epoch."""

    def __init__(self) -> None:
        self.by_partition: dict[int, Holding] = {}
        self.mapping: dict[int, int] = {}
        self._doubts: dict[int, tuple[str | None, float]] = {}
        self._lost: dict[int, int] = {}
        self._updates: list[FlowChangeUpdate] = []

    def is_same_epoch(self, held: int, other: int) -> bool:
        """A guard: nobody else had the partition in between."""
        return held == other

    # --- changes ------------------------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        """Nobody says whose anything is: deliver nothing, forget nothing."""
        for holding in self.by_partition.values():
            holding.paused = True

    def taken(self, state: GroupState, me: Owner) -> list[Holding]:
        """What the state grants to `me` no more, and its checkpoint does not say so yet; nothing more is delivered."""
        epochs = _epochs(state, me)
        gone = [
            holding
            for partition, holding in self.by_partition.items()
            if holding.checkpoint is not None
            and not (partition in epochs and self.is_same_epoch(holding.epoch, epochs[partition]))
        ]
        for holding in gone:
            holding.paused = True
        return gone

    def settle(self, state: GroupState, me: Owner) -> Mapping[int, Grant]:
        """Keep what the state still grants to `me`, forget the rest; everything that is granted is returned."""
        grants, epochs = claims.granted(state, me), _epochs(state, me)
        for partition, epoch in list(self.mapping.items()):
            if partition not in epochs or not self.is_same_epoch(epoch, epochs[partition]):
                del self.mapping[partition]
        for partition, holding in list(self.by_partition.items()):
            if partition not in epochs or not self.is_same_epoch(holding.epoch, epochs[partition]):
                self.lose(partition)
            elif partition in grants:
                holding.paused = grants[partition].paused
            else:  # its checkpoint is being written again, for this instance
                self._let_go(partition, holding)
        return grants

    def take(self, checkpoint: Checkpoint, *, start: int, end: int, paused: bool, now_s: float) -> None:
        """Claimed: the checkpoint names this instance. From `start` on; at an epoch that this process had before, from
        where it was. `end`: of the log, read after the checkpoint; no earlier owner can have delivered beyond it.
        """
        partition = checkpoint.partition
        known = self.by_partition.get(partition)
        holding = Holding(epoch=checkpoint.epoch, announced=start, done=start)
        if known is not None and self.is_same_epoch(known.epoch, checkpoint.epoch):
            holding = known
            holding.announced, holding.done = max(known.announced, start), max(known.done, start)
        holding.marked = min(checkpoint.redelivered_below, end)
        holding.paused = paused
        holding.was_written(checkpoint, now_s)
        self.by_partition[partition] = holding
        self.mapping[partition] = holding.epoch
        self._doubts.pop(partition, None)
        if self._lost.get(partition) == holding.epoch:
            del self._lost[partition]

    def doubts_for_s(self, partition: int, state_token: str | None, now_s: float) -> float:
        """A granted partition's checkpoint says otherwise: for how long it does so under this very state."""
        token, since_s = self._doubts.get(partition, (None, now_s))
        if token != state_token:
            since_s = now_s
        self._doubts[partition] = (state_token, since_s)
        return now_s - since_s

    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None) -> frozenset[int]:
        """Note what the application has dealt with, by a batch of this `origin`; the partitions that are still held at
        that epoch.
        """
        still = set()
        for partition, position in positions.items():
            holding = self.by_partition.get(partition)
            if holding is None or not self.is_same_epoch(holding.epoch, position.epoch):
                continue
            still.add(partition)
            if position.offset > holding.done:
                holding.origin = origin
            holding.done = max(holding.done, position.offset)
            holding.announced = max(holding.announced, position.offset)  # a batch of before this process began
        return frozenset(still)

    def drop(self) -> None:
        """The instance is over: its claims are, but not what is known of them."""
        for partition, holding in self.by_partition.items():
            self._let_go(partition, holding)

    def lose(self, partition: int) -> None:
        """Somebody else's."""
        self._let_go(partition, self.by_partition.pop(partition))
        self.mapping.pop(partition, None)

    def clear(self) -> None:
        """The flow has left."""
        for partition in list(self.by_partition):
            self.lose(partition)
        self.mapping.clear()

    def _let_go(self, partition: int, holding: Holding) -> None:
        if holding.checkpoint is not None:
            self._lost[partition] = holding.epoch
        holding.checkpoint = None

    def add_updates(self, updates: Iterable[FlowChangeUpdate]) -> None:
        """To be told once."""
        self._updates.extend(updates)

    # --- answers ------------------------------------------------------------------------------------------------------

    def progress(self) -> Mapping[int, Progress]:
        """For people."""
        return {p: Progress(it.announced, it.done) for p, it in self.by_partition.items() if it.checkpoint is not None}

    def unacknowledged(self) -> dict[int, int]:
        """Messages of each partition that were delivered and that the application has not acknowledged."""
        return {partition: holding.announced - holding.done for partition, holding in self.by_partition.items()}

    def has_claimed(self, partitions: Iterable[int]) -> bool:
        """Whether the present instance has claimed them all."""
        found = (self.by_partition.get(partition) for partition in partitions)
        return all(holding is not None and holding.checkpoint is not None for holding in found)

    def claims(self) -> Mapping[int, Claim]:
        """What the present instance has claimed, in order."""
        return {
            partition: Claim(
                partition=partition,
                epoch=holding.epoch,
                position=holding.announced,
                acknowledged=holding.acknowledged,
                redelivered_below=holding.marked,
                paused=holding.paused,
                origin=holding.checkpoint.origin,
            )
            for partition, holding in sorted(self.by_partition.items())
            if holding.checkpoint is not None
        }

    def tell_once(self) -> tuple[Mapping[int, int], tuple[FlowChangeUpdate, ...]]:
        """What was lost and the updates, since this was last asked."""
        lost, self._lost = self._lost, {}
        updates, self._updates = tuple(self._updates), []
        return lost, updates


def _epochs(state: GroupState, me: Owner) -> dict[int, int]:
    """Of what is `me`'s by the state, or about to be."""
    granted = {partition: grant.epoch for partition, grant in claims.granted(state, me).items()}
    return {**claims.coming(state, me), **granted}
