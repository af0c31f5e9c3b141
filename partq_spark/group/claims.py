"""What a flow may deliver, what the group's state says of it, and what one process holds: each partition with how far
it was announced and acknowledged.

No I/O and no clock. `session` and `solo` claim, deliver and acknowledge; here is the count of it, in memory. It
outlives the instances of its flow, so that an instance that has to bind again goes on where the one before was.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from partq_spark.group.model import AccessType, Checkpoint, Flow, GroupState, Owner, Partition, Phase, Progress, done_to
from partq_spark.log.model import Origin

REMEMBERED: Final = 8
"""Intervals between two writes of a checkpoint, by which the next reserve is chosen."""

_log = logging.getLogger("partq.flow")


class Position(NamedTuple):
    """An offset of a partition, and the ownership that it belongs to."""

    epoch: int
    offset: int


class Standing(StrEnum):
    """How a flow stands in its group (FLO-04)."""

    UNANSWERED = "unanswered"  # the coordinator has not taken notice of this instance yet
    ACTIVE = "active"  # has partitions, or is getting one
    PENDING = "pending"  # waits for its share
    STANDBY = "standby"  # there is a flow for every partition already


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A partition that this flow has, as the deliverer of its messages sees it.

    `position` is the next offset to deliver. Messages below `redelivered_below` may have been delivered before, by
    this or another flow. While `paused` nothing new may be delivered; what was delivered is still acknowledged.
    `by_offset`: its flow begins by the checkpoint's offset, for it keeps offsets (False with `checkpoints=none`), or it
    was given one, by flows that kept them, and has acknowledged nothing since.
    """

    partition: int
    epoch: int
    position: int
    acknowledged: int  # as the checkpoint has it
    redelivered_below: int
    paused: bool
    origin: Origin | None = None  # as the checkpoint has it
    by_offset: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a flow has at one look."""

    instance: str
    standing: Standing
    claims: Mapping[int, Claim]

    @property
    def deliverable(self) -> Mapping[int, Claim]:
        """The partitions whose messages may be delivered now."""
        return {partition: claim for partition, claim in self.claims.items() if not claim.paused}


# --- what the state says of a flow ------------------------------------------------------------------------------------


def granted(state: GroupState, me: Owner) -> Mapping[int, Partition]:
    """The partitions that are `me`'s by the state, an instance like any other part of the name."""
    return {
        number: partition
        for number, partition in state.partitions.items()
        if partition.phase in (Phase.OWNED, Phase.PAUSED) and partition.owner == me
    }


def _epochs(state: GroupState, me: Owner) -> dict[int, int]:
    """Of what is `me`'s by the state, or about to be: then its checkpoint is being written again for `me`."""
    coming = {
        number: partition.to_epoch
        for number, partition in state.partitions.items()
        if partition.phase is Phase.FENCING and partition.to == me
    }
    return {**coming, **{number: partition.epoch for number, partition in granted(state, me).items()}}


def is_settling(state: GroupState, me: Owner) -> bool:
    """Whether partitions are about to become `me`'s without anybody having to wait for acknowledgements: they are
    being given to it, or taken from the last flow that left.
    """
    takers = {partition.to for partition in state.partitions.values() if partition.phase is Phase.FENCING}
    return me in takers or (None in takers and standing(state, me) is Standing.PENDING)


def flow_of(state: GroupState | None, me: Owner) -> Flow | None:
    """What the state says of this very instance, if it is bound there."""
    flow = None if state is None else state.flows.get(me.flow)
    return flow if flow is not None and flow.bound and flow.instance == me.instance else None


def standing(state: GroupState | None, me: Owner) -> Standing:
    """How `me` stands. A flow counts against it that has partitions or came earlier."""
    flow = flow_of(state, me)
    if state is None or flow is None:
        return Standing.UNANSWERED
    if flow.active:
        return Standing.ACTIVE
    before = [one for one in state.flows.values() if one.bound and (one.active or one.since < flow.since)]
    places = sum(not partition.removed for partition in state.partitions.values())
    if state.settings.access_type is AccessType.EXCLUSIVE:
        places = min(places, 1)
    return Standing.STANDBY if len(before) >= places else Standing.PENDING


def updates_since(flow: Flow, seen: int) -> tuple[bool, ...]:
    """The FlowChangeUpdates after the first `seen`, in order (FLO-05, seed 002): whether it became active. Each turns
    the flow over, and the last left it as it is now.
    """
    return tuple(flow.active == ((flow.updates - number) % 2 == 1) for number in range(seen, flow.updates))


# --- what a process holds ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Holding:
    """One partition. Offsets are exclusive ends.

    `checkpoint` is None until the present instance has read its own name in it; then it is as it was read or written
    last. `marked` is the owner's own mark: messages below may have been delivered before. `announced` is the highest
    end that was returned to Spark, or taken up again from it, at this epoch; `done` is what the application has
    acknowledged, `saved` what of it the checkpoint said last. `in_doubt`: nobody knows what became of the last write;
    `is_refused`: it was not allowed, and nothing is delivered until one is.
    `origin` is the newest publish that was read when `done` was acknowledged. `by_offset` as in `Claim`: as long as
    that, the checkpoint's offset stays, too, for Spark's log may not have yet where the flow begins by it.
    """

    epoch: int
    announced: int
    done: int
    marked: int = 0
    checkpoint: Checkpoint | None = None
    paused: bool = False
    in_doubt: bool = False
    is_refused: bool = False
    saved: int = 0
    written_s: float = 0.0
    origin: Origin | None = None
    by_offset: bool = True
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
        self.checkpoint, self.in_doubt, self.is_refused, self.written_s = checkpoint, False, False, now_s
        self.saved = done_to(checkpoint, self.saved)
        self._advances.append(self.announced - self._announced_at_write)
        self._announced_at_write = self.announced

    def covers(self, end: int) -> bool:
        """Whether messages up to `end` may be delivered by what the checkpoint says."""
        if self.checkpoint is None or self.in_doubt or end > self.checkpoint.may_reach:
            return False
        return self.checkpoint.is_open if self.checkpoint.offset is None else self.by_offset


class FlowHoldings:
    """All that a session holds, by partition. `mapping` is what its next bind presents: partition to epoch. `who` holds
    it, in the log.
    """

    def __init__(self, who: str, keeps_offsets: bool) -> None:
        self.by_partition: dict[int, Holding] = {}
        self.mapping: dict[int, int] = {}
        self._who = who
        self._keeps_offsets = keeps_offsets

    def is_same_epoch(self, held: int, other: int | None) -> bool:
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
            if holding.checkpoint is not None and not self.is_same_epoch(holding.epoch, epochs.get(partition))
        ]
        for holding in gone:
            holding.paused = True
        return gone

    def settle(self, state: GroupState, me: Owner) -> Mapping[int, Partition]:
        """Keep what the state still grants to `me`, forget the rest; everything that is granted is returned."""
        grants, epochs = granted(state, me), _epochs(state, me)
        self.mapping = {p: epoch for p, epoch in self.mapping.items() if self.is_same_epoch(epoch, epochs.get(p))}
        for partition, holding in list(self.by_partition.items()):
            if not self.is_same_epoch(holding.epoch, epochs.get(partition)):
                self.lose(partition)
            elif partition in grants:
                holding.paused = grants[partition].phase is Phase.PAUSED
            else:  # its checkpoint is being written again, for this instance
                holding.checkpoint = None
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
        holding.by_offset = self._keeps_offsets or checkpoint.offset is not None
        holding.was_written(checkpoint, now_s)
        self.by_partition[partition] = holding
        self.mapping[partition] = holding.epoch

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
            holding.by_offset &= self._keeps_offsets or position.offset <= holding.done
            holding.done = max(holding.done, position.offset)
            holding.announced = max(holding.announced, position.offset)  # a batch of before this process began
        return frozenset(still)

    def drop(self) -> None:
        """The instance is over: its claims are, but not what is known of them."""
        for holding in self.by_partition.values():
            holding.checkpoint = None

    def lose(self, partition: int) -> None:
        """Somebody else's."""
        epoch = self.by_partition.pop(partition).epoch
        self.mapping.pop(partition, None)
        _log.info("%s gave up partition %d (epoch %d)", self._who, partition, epoch)

    def clear(self) -> None:
        """The flow has left."""
        self.by_partition.clear()
        self.mapping.clear()

    # --- answers ------------------------------------------------------------------------------------------------------

    def progress(self) -> Mapping[int, Progress]:
        """For people."""
        return {p: Progress(it.announced, it.done) for p, it in self.by_partition.items() if it.checkpoint is not None}

    @property
    def refused(self) -> str:
        """For people: that partitions are held back, the first of them, and why."""
        found = [partition for partition, it in sorted(self.by_partition.items()) if it.is_refused]
        return f"holds back {len(found)} ({found[:5]}) whose checkpoints it may not write, see its log" if found else ""

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
                paused=holding.paused or holding.is_refused,
                origin=holding.checkpoint.origin,
                by_offset=holding.by_offset,
            )
            for partition, holding in sorted(self.by_partition.items())
            if holding.checkpoint is not None
        }
