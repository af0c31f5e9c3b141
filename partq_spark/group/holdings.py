"""What one process holds of a group: each partition with how far it was delivered and acknowledged.

Bookkeeping in memory, without I/O and without a clock. It outlives the instances of its flow, so that an instance that
has to bind again goes on where the one before was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partq_spark.group import claims
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.claims import Claim, FlowChangeUpdate, Grant, Position
from partq_spark.group.model import Delivery, GroupState, Owner
from partq_spark.log.model import Origin


@dataclass(slots=True)
class Holding:
    """One partition. Offsets are exclusive ends.

    `checkpoint` is None until the present instance has read its own name in it. `done` is what the application has
    acknowledged, `acknowledged` what the checkpoint has, `reported` what the flow's record has, None if unknown.
    `delivered` is what was announced, `read` what of it a batch may have been made of, where there is no record.
    `origin` is the newest publish that was read when `done` was acknowledged.
    """

    epoch: int
    delivered: int
    done: int
    acknowledged: int
    read: int = 0
    checkpoint: Checkpoint | None = None
    paused: bool = False
    written_s: float = 0.0
    reported: Delivery | None = None
    origin: Origin | None = None

    @property
    def entry(self) -> Delivery:
        """For the flow's record."""
        return Delivery(epoch=self.epoch, delivered=self.delivered, acknowledged=self.acknowledged)


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

    def settle(self, state: GroupState, me: Owner) -> Mapping[int, Grant]:
        """Keep what the state still grants to `me`, forget the rest; everything that is granted is returned."""
        grants, coming = claims.granted(state, me), claims.coming(state, me)
        epochs = {**coming, **{partition: grant.epoch for partition, grant in grants.items()}}
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

    def offered(self, checkpoint: Checkpoint, grant: Grant, start: int) -> Holding:
        """What a claim would hold: from `start` on; at an epoch that this process had before, from where it was."""
        known = self.by_partition.get(checkpoint.partition)
        if known is None:
            return Holding(epoch=grant.epoch, delivered=start, done=start, acknowledged=start, paused=grant.paused)
        return Holding(
            epoch=known.epoch,
            delivered=max(known.delivered, start),
            done=max(known.done, start),
            acknowledged=max(known.acknowledged, start),
            paused=grant.paused,
            origin=known.origin,
        )

    def take(self, holding: Holding, checkpoint: Checkpoint, now_s: float) -> None:
        """Claimed: the checkpoint names this instance, and its record has the entry."""
        partition = checkpoint.partition
        holding.checkpoint = checkpoint
        holding.reported = holding.entry
        holding.written_s = now_s
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
            holding.delivered = max(holding.delivered, position.offset)  # a batch that ended before this process began
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
        holding.checkpoint = holding.reported = None

    def add_updates(self, updates: Iterable[FlowChangeUpdate]) -> None:
        """To be told once."""
        self._updates.extend(updates)

    # --- answers ------------------------------------------------------------------------------------------------------

    def deliveries(self) -> Mapping[int, Delivery]:
        """For the record of a new instance."""
        return {partition: holding.entry for partition, holding in self.by_partition.items()}

    def unacknowledged(self) -> dict[int, int]:
        """Messages of each partition that were delivered and that the application has not acknowledged."""
        return {partition: holding.delivered - holding.done for partition, holding in self.by_partition.items()}

    def written(self, partitions: Iterable[int]) -> dict[int, int]:
        """Of those that the present instance has claimed, what is acknowledged for good."""
        return {p: self.by_partition[p].acknowledged for p in partitions if self.has_claimed((p,))}

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
                position=holding.delivered,
                acknowledged=holding.acknowledged,
                redelivered_below=holding.checkpoint.redelivered_below,
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
