"""What a consumer needs to know of the partitions that it has, and what memberships of a group have in common.

Memberships differ in what grants partitions, and in what verifies that they are still the consumer's. In a shared group
(`session`) a coordinator does both. With `solo` the flow takes all of the group by itself. Without a group every
partition is the query's (`solo.EveryPartition`).

What a flow of a group writes into the checkpoints of its partitions, and when, is the same for all of them. Before
messages are delivered, `may_reach` covers them. What is acknowledged is written with the next such write, else at the
checkpoint interval, and at once where somebody waits for it: then the checkpoint says that nothing is in hand, as soon
as it is so. What follows when a checkpoint turns out to be another flow's differs, and is decided there.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from partq_spark.base.effects import Effects, RunAll, in_a_row
from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import FlowHoldings, Holding, Position, View
from partq_spark.group.documents.urls import STORE
from partq_spark.group.model import UNBOUNDED, Checkpoint, GroupKey, acknowledged_to, done_to
from partq_spark.log import layouts
from partq_spark.log.groups import removed, require_group
from partq_spark.log.model import Head, Origin, at, group_start
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.urls import is_paid

_log = logging.getLogger("partq.flow")


BEAT_S: Final = 1.0
CHECKPOINT_INTERVAL_S: Final = 1.0
PAID_CHECKPOINT_INTERVAL_S: Final = 10.0
"""The defaults: a write costs next to nothing on a disk, and a request elsewhere."""

VERIFY_S: Final = 30.0
"""Where requests are paid for: a listing of checkpoints is priced like a write, and what they say is looked at before
each delivery anyway.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSettings:
    """The options that concern a flow. `keep_offsets` is False with `checkpoints=none`. `verify_interval_s`: how often
    a flow without a coordinator looks in quiet times whether the group is still its own. `max_unacknowledged`: messages
    that it may have in hand.
    """

    session_timeout_s: float = 10.0
    beat_interval_s: float = BEAT_S
    checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S
    verify_interval_s: float = BEAT_S
    keep_offsets: bool = True
    max_unacknowledged: int | None = None

    @classmethod
    def at(cls, store_url: str, ownership: str, session_timeout_s: float, interval_s: float | None) -> SessionSettings:
        """By what requests cost. Heartbeats cost next to nothing with Redis and on a disk; as objects each is a write,
        and four in a session timeout are enough. `interval_s`: of checkpoints, if it was said.
        """
        paid = is_paid(store_url)
        if interval_s is None:
            interval_s = PAID_CHECKPOINT_INTERVAL_S if paid else CHECKPOINT_INTERVAL_S
        return cls(
            session_timeout_s=session_timeout_s,
            beat_interval_s=max(BEAT_S, session_timeout_s / 4) if paid and ownership == STORE else BEAT_S,
            checkpoint_interval_s=interval_s,
            verify_interval_s=max(interval_s, VERIFY_S if paid else BEAT_S),
        )


class GroupInQueue:
    """One life of a group, for its flows: a group may be removed and made again under its name. The group `name` of the
    queue as `queue` saw its head last. Raises `Invalid` if that has it no more.
    """

    def __init__(self, queue: QueueLog, name: str) -> None:
        self.key = GroupKey(queue.namespace, queue.name, name)
        found = queue.head.groups.get(name)
        if found is None:
            raise Invalid(removed(self.key, "nothing begins"))
        self._group = found
        self._queue = queue
        self.queue_id = queue.head.queue_id

    def __str__(self) -> str:
        return str(self.key)

    @property
    def since(self) -> int:
        """The sequence number of the head that it was made with."""
        return self._group.since_sequence

    @property
    def seen(self) -> Head:
        """The head as it was read last."""
        return self._queue.head

    def head(self, flow: str) -> Head:
        """The head, now, for a flow of this life of the group. Raises `Invalid` if the group is gone, or the queue, and
        `Fenced` if another one was made under the name since.
        """
        now = self._queue.require(self.queue_id)
        require_group(now, self.key.group, self.since, f"flow {flow!r} ends")
        return now

    def start_of(self, partition: int) -> int:
        """Where the group begins in a partition."""
        return group_start(self._group, partition)

    def end_of(self, partition: int) -> int:
        """Where a partition that leaves the queue ends; the others do not."""
        return layouts.leaving(self.seen).get(partition, UNBOUNDED)

    def checkpoints(self, store: ObjectStore, effects: Effects | None = None) -> CheckpointStore:
        """Its checkpoints, by way of this store."""
        return CheckpointStore(store, self.key, self.queue_id, since=self.since, effects=effects)


class Membership(ABC):
    """One consumer, in one process. `beat` may be called by any thread, the rest by one at a time.

    Everything but `is_bound`, `instance`, `mapping`, `in_hand`, `note`, `lease_left_s` and `has_news` may raise
    `Unavailable`: then it is called again. `Session` says what each of them does. Where a membership says nothing else,
    nobody listens, and there is nothing to write down.
    """

    @property
    def is_bound(self) -> bool:
        """Between `bind` and `unbind`, also while an instance that ended waits to be replaced."""
        return self.instance is not None

    @property
    @abstractmethod
    def instance(self) -> str | None: ...

    @property
    def mapping(self) -> Mapping[int, int]:
        """The partitions (with epochs) that this consumer has, or would get back as another instance."""
        return {}

    @property
    def has_news(self) -> bool:
        """Whether the group's state has changed since the last look; costs nothing to ask."""
        return False

    @abstractmethod
    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> View: ...

    def unbind(self) -> None:  # noqa: B027 - there may be nothing to leave
        """Acknowledge what is left to acknowledge, then leave. May be repeated."""

    def beat(self) -> None:  # noqa: B027 - there may be nobody who listens
        """One heartbeat."""

    @abstractmethod
    def observe(self) -> View: ...

    def confirm(self) -> View:
        """A look just before what was announced is read: whether it is still this consumer's. Raises as `observe`."""
        return self.observe()

    @abstractmethod
    def deliver(self, ends: Mapping[int, int]) -> bool: ...

    @abstractmethod
    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]: ...

    def flush(self) -> None:  # noqa: B027 - there may be nothing to write down
        """Write down all acknowledgements now."""

    @abstractmethod
    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]: ...

    def in_hand(self) -> Mapping[int, int]:
        """Messages of each partition that were delivered and are not acknowledged."""
        return {}

    def note(self, text: str | None) -> None:  # noqa: B027 - there may be nobody who listens
        """Tell people something of this consumer, until it is something else; None: nothing. Cheap to repeat."""

    @abstractmethod
    def lease_left_s(self) -> float: ...

    @abstractmethod
    def wait_news(self, timeout_s: float) -> bool:
        """Wait until the group's state has changed, at most so long; whether it may have."""

    def close(self) -> None:  # noqa: B027 - there may be nothing open
        """Give back connections, after `unbind`."""


class GroupMembership(Membership):
    """One flow of a group: what it has in hand, and the checkpoints in which it writes down how far it is. `flow` is in
    lower case already. `run` may write checkpoints side by side.
    """

    def __init__(
        self,
        group: GroupInQueue,
        checkpoints: CheckpointStore,
        flow: str,
        settings: SessionSettings | None = None,
        effects: Effects | None = None,
        run: RunAll = in_a_row,
    ) -> None:
        self._group = group
        self._checkpoints = checkpoints
        self._flow = flow
        self._settings = settings if settings is not None else SessionSettings()
        self._effects = effects if effects is not None else Effects()
        self._run = run
        self._name = f"flow {flow} of group {group}"
        self._holdings = FlowHoldings(self._name, self._settings.keep_offsets)

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self._flow

    @property
    def mapping(self) -> Mapping[int, int]:
        return dict(self._holdings.mapping)

    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]:
        """Everything before these positions is dealt with; `origin` is the newest publish that was read then. Returns
        the partitions that this flow still has at that epoch; the others' messages come again elsewhere, and are not
        acknowledged (HAN-10).

        Written at once where the partition is paused, else at the checkpoint interval, by this call or a later one.
        Raises `Unavailable` where writing did: it is done again later.
        """
        still = self._holdings.acknowledge(positions, origin)
        self._write(everything=False)
        return still

    def flush(self) -> None:
        self._write(everything=True)

    def in_hand(self) -> Mapping[int, int]:
        return self._holdings.unacknowledged()

    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]:
        """How far each is acknowledged, by this flow or another. What this flow has is known here. For the others their
        checkpoints say it, by one listing (CHK-02). Of what cannot be read nothing is known to be acknowledged, and it
        is left out. Raises `Unavailable`.
        """
        own = {p: self._holdings.by_partition[p].acknowledged for p in partitions if self._holdings.has_claimed((p,))}
        others = [partition for partition in partitions if partition not in own]
        if not others:
            return own
        found, damaged = self._checkpoints.list_readable()
        for partition in damaged.keys() & set(others):
            _log.debug("other partitions may wait for partition %d: %s", partition, damaged[partition])
        known = {p: done_to(found.get(p), self._group.start_of(p)) for p in others if p not in damaged}
        return {**known, **own}

    def _write(self, *, everything: bool) -> None:
        """Write the checkpoints for which it is time, or all of them. Also by an instance that has ended: less will
        come again.
        """
        closes = 0
        for partition, holding in list(self._holdings.by_partition.items()):
            try:
                closes += self._save_due(holding, everything=everything)
            except (Fenced, Corrupt, Invalid) as error:
                self._deny(partition, holding, error)
        self._tell(closes)

    @abstractmethod
    def _deny(self, partition: int, holding: Holding, error: Fenced | Corrupt | Invalid) -> None:
        """Its checkpoint is not this flow's any more, or nobody's who could tell, or may not be written (`Invalid`)."""

    def _tell(self, closes: int = 0) -> None:
        """Others how far this flow is; `closes`: how many partitions have nothing in hand since."""

    def _hold(self, claimed: Mapping[int, Checkpoint], paused: Collection[int] = ()) -> None:
        """These checkpoints name this instance. The log's end is read after them, where marks reach beyond what is
        known of it: an earlier owner looked at the log before it looked at its ownership, and so cannot have delivered
        beyond that end.
        """
        ends = self._group.seen.next
        if any(each.redelivered_below > max(each.offset or 0, at(ends, p)) for p, each in claimed.items()):
            ends = self._group.head(self._flow).next
        for partition, checkpoint in claimed.items():
            self._holdings.take(
                checkpoint,
                start=acknowledged_to(checkpoint, self._group.start_of(partition)),
                end=max(at(ends, partition), checkpoint.offset or 0),
                paused=partition in paused,
                now_s=self._effects.now_s(),
            )

    # --- checkpoints: each raises `Fenced` if one is not this flow's any more, `Unavailable` --------------------------

    def _announce(self, ends: Mapping[int, int]) -> None:
        """Messages up to `ends` are about to be delivered: where the checkpoint does not cover that, it is raised."""

        def raised(short: tuple[Holding, int]) -> None:
            holding, end = short
            self._write_one(holding, self._reach(holding, end))

        held = self._holdings.by_partition
        self._run(raised, [(held[p], end) for p, end in ends.items() if not held[p].covers(end)])

    def _save_due(self, holding: Holding, *, everything: bool) -> bool:
        """Write what is due: at its interval, or at once where a handoff or another partition waits. Whether it said
        that nothing is in hand.
        """
        checkpoint = holding.checkpoint
        if checkpoint is None:
            return False
        saved, done = holding.saved, holding.done
        at_milestone = done > saved and layouts.passes_milestone(self._group.seen, checkpoint.partition, saved, done)
        is_due = self._effects.now_s() - holding.written_s >= self._settings.checkpoint_interval_s
        # What was refused is tried again at its interval.
        at_once = is_due if holding.is_refused else holding.paused or at_milestone
        if everything or at_once:
            return self._close_one(holding)
        if is_due and (done > saved if holding.by_offset else checkpoint.offset is not None):
            self._write_one(holding, self._reach(holding, holding.announced))
        elif is_due and not self._settings.keep_offsets and len(self._group.seen.layouts) > 1:
            # Others may wait until it has nothing in hand, and a milestone says so only until the next batch.
            return checkpoint.may_reach > holding.announced and self._close_one(holding)
        return False

    def _close_one(self, holding: Holding) -> bool:
        """Say how far it was announced, and no more; whether the checkpoint said something else before, and says now
        that nothing is in hand.
        """
        before = _of(holding)
        is_exact = holding.announced <= holding.done
        if not self._settings.keep_offsets and not is_exact:
            return False  # without an offset it says that something is in hand already
        self._write_one(holding, holding.announced)
        return is_exact and before != holding.checkpoint

    def _reach(self, holding: Holding, end: int) -> int:
        """With the reserve; never beyond the end of a partition that leaves, nor what the flow may have in hand."""
        if not self._settings.keep_offsets:
            return UNBOUNDED
        most = self._group.end_of(_of(holding).partition)
        if self._settings.max_unacknowledged is not None:
            most = min(most, holding.done + self._settings.max_unacknowledged)
        return max(end, min(end + holding.reserve, most))

    def _write_one(self, holding: Holding, may_reach: int) -> None:
        held = _of(holding)
        try:
            written = self._checkpoints.write(
                held,
                offset=holding.done if holding.by_offset else None,
                may_reach=may_reach,
                marked=holding.marked,
                origin=holding.origin,
                swap=holding.in_doubt,
            )
        except BaseException as error:  # also what ended the look at what became of it
            holding.in_doubt = True
            if isinstance(error, Invalid):
                if not holding.is_refused:
                    _log.warning("%s holds back partition %d: %s", self._name, held.partition, error)
                holding.is_refused, holding.written_s = True, self._effects.now_s()
            raise
        if written is not held:
            holding.was_written(written, self._effects.now_s())


def _of(holding: Holding) -> Checkpoint:
    """Of a partition that is claimed."""
    if holding.checkpoint is None:
        raise Fenced("the partition is not claimed")
    return holding.checkpoint
