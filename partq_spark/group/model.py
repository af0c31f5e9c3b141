"""The values of a consumer group: its flows, its partitions' ownership, what each flow reports of itself, and how far
each partition is (its checkpoint).

Frozen, without I/O and without policy: `coordinator.core` and `checkpoints` decide how they change, `codec` writes them
down, `ownership` and `checkpoints` keep them. Times are seconds of the clock of the process that holds the value; a
value that leaves its process carries remaining times instead, so that clocks are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from partq_spark.base.json_documents import Seconds, Whole
from partq_spark.log.model import Origin

UNBOUNDED: Final = 2**63 - 1
"""As an offset: any message that there is, and that ever will be."""


class GroupKey(NamedTuple):
    """Which group: a queue may have many, each with its own flows, ownership and checkpoints."""

    namespace: str
    queue: str
    group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.queue}/{self.group}"


class RebalanceStatus(StrEnum):
    """Seed 002, "Partition Rebalancing Status" (FLO-02)."""

    READY = "Ready"
    HOLDDOWN = "Holddown"
    REBALANCING = "Rebalancing"


class PartitionStatus(StrEnum):
    """Seed 001, "Partition Status" (FLO-01). Derived from a `Partition` and the group's flows, never stored."""

    UNASSIGNED = "Unassigned"
    READY = "Ready"
    PAUSED = "Paused"
    UNBOUND = "Unbound"


class AccessType(StrEnum):
    """Exclusive: one flow is active and has every partition, the others stand by (RES-06)."""

    NON_EXCLUSIVE = "non-exclusive"
    EXCLUSIVE = "exclusive"


class Phase(StrEnum):
    """Where a partition stands on its way from owner to owner; `coordinator.core.handoff` has the table of changes."""

    FREE = "free"  # nobody has it, and the checkpoint says so
    OWNED = "owned"  # `owner` has it at `epoch`, and the checkpoint says so
    PAUSED = "paused"  # still owned, new messages are held back until what was delivered is acknowledged
    FENCING = "fencing"  # the checkpoint is being rewritten for `to` at `to_epoch`


class Owner(NamedTuple):
    """One process' life as a flow: the flow's name outlives restarts, the instance (random) does not."""

    flow: str
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One partition's ownership in a group.

    `owner` and `epoch` say who has it, or had it last: with FREE there is no owner and `epoch` is the last one used.
    With FENCING nobody can have delivered anything since `owner` at `epoch`; `to` is None where the partition is to
    become FREE. `to_epoch` is above `epoch`, except when a flow that came back as a new instance gets its own partition
    again: then it is the same.
    """

    partition: int
    phase: Phase = Phase.FREE
    epoch: int = 0
    owner: Owner | None = None
    to: Owner | None = None  # PAUSED: who it is meant for
    to_epoch: int = 0  # FENCING
    deadline_s: float | None = None  # PAUSED, or drained: when it moves, acknowledged or not
    drained: bool = False  # FENCING: its owner had nothing in hand; a checkpoint that says otherwise by now stays
    removed: bool = False  # no longer part of the group: goes as soon as it is FREE
    stuck: str = ""  # FENCING: why its checkpoint could not be rewritten so far; nobody else waits for it any more

    @property
    def holder(self) -> Owner | None:
        """The flow that counts as having it, for balance and for people: the receiver as soon as it is being fenced for
        that flow.
        """
        return self.to if self.phase is Phase.FENCING else self.owner


class Flow(NamedTuple):
    """A flow as the group sees it. One that is not bound stays as long as partitions name it as their owner."""

    name: str
    instance: str
    bound: bool
    since: Whole  # the number of this bind, counted in the group; decides ties, oldest first
    active: bool = False  # has partitions, or is getting one
    updates: Whole = 0  # FlowChangeUpdates sent to this instance so far (FLO-05)

    @property
    def owner(self) -> Owner:
        """Its name, as the owner of partitions."""
        return Owner(self.name, self.instance)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSettings:
    """What of the queue's configuration concerns its groups."""

    rebalance_delay_s: Seconds = 5.0
    max_handoff_time_s: Seconds = 3.0
    access_type: AccessType = AccessType.NON_EXCLUSIVE


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """The one value that says who should have what. Changed only by `coordinator.core.machine.decide`, kept by
    compare-and-swap.

    `partitions` has every partition that the group has to deliver, in order. `retired` keeps the last epoch of
    partition numbers that were removed, so that one that comes back continues (RES-04). `trigger` remembers that
    something happened during a rebalance that has to be looked at when it has ended (REB-14), `altered` that the queue
    was altered meanwhile: then the next one starts without the rebalance delay (REB-08).
    """

    queue_id: str
    settings: GroupSettings
    partitions: Mapping[int, Partition]
    flows: Mapping[str, Flow] = field(default_factory=dict)
    retired: Mapping[int, int] = field(default_factory=dict)
    status: RebalanceStatus = RebalanceStatus.READY
    holddown_until_s: float | None = None
    trigger: bool = False
    altered: bool = False
    binds: int = 0

    # What a leader asks at every look is worked out once.

    @cached_property
    def pending(self) -> tuple[Partition, ...]:
        """The partitions whose checkpoints are to be rewritten for their `to`: what a new leader has to finish."""
        return tuple(each for each in self.partitions.values() if each.phase is Phase.FENCING)

    @cached_property
    def paused(self) -> tuple[Partition, ...]:
        """The partitions that are held back until their owner has nothing in hand."""
        return tuple(each for each in self.partitions.values() if each.phase is Phase.PAUSED)

    @cached_property
    def next_deadline_s(self) -> float | None:
        """When the next `Tick` is due; None if nothing runs."""
        due = [each.deadline_s for each in self.partitions.values() if each.deadline_s is not None]
        return min([*due, *([self.holddown_until_s] if self.holddown_until_s is not None else [])], default=None)


class Progress(NamedTuple):
    """How far a flow is with one partition, for people. Offsets are exclusive ends."""

    delivered: int
    acknowledged: int


@dataclass(frozen=True, kw_only=True)
class FlowRecord:
    """What a flow says of itself with each heartbeat; only that flow writes it.

    `mapping` is what the client presents when it binds: the partitions it had, with their epochs (seed 001, "Outcomes
    of Consumer Loss"); it is said until the group's state knows the instance. `closes` counts the partitions of which
    it said that it has nothing in hand, as a hint for the leader to look at their checkpoints. `note` and `progress`
    are for people: nobody decides by them. `progress` None: it did not fit.
    """

    flow: str
    instance: str
    queue_id: str
    bound: bool
    session_timeout_s: float
    mapping: Mapping[int, int] = field(default_factory=dict)
    closes: int = 0
    note: str = ""
    progress: Mapping[int, Progress] | None = field(default_factory=dict)

    @cached_property
    def owner(self) -> Owner:
        """Its name, as the owner of partitions."""
        return Owner(self.flow, self.instance)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnershipRecord:
    """Who has a partition, in the shape of seed 004 (OWN-02). `version` is opaque, the token of its document: another
    one after every claim.
    """

    partition: int
    owner: Owner | None
    epoch: int
    version: str = ""  # of none
    modified: str = ""  # RFC 3339, by the clock of who claimed it; for people only, never compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who leads a group. `token` is random for every term and only ever compared for equality; `beat` moves while the
    leader lives. `timers` are the remaining seconds of what runs, so that the next leader continues them: `holddown`
    for the delay, a partition's number for its handoff.
    """

    token: str
    name: str  # host and process, for people
    beat: Whole
    timers: Mapping[str, Seconds] = field(default_factory=dict)
    state_token: str = ""  # of the state that `timers` belong to


# --- how far a partition is -------------------------------------------------------------------------------------------


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
