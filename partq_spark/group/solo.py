"""A flow that has a whole group to itself (`ownership=none`): it takes every partition by fencing its checkpoint. And a
query without a group, which has every partition of the queue.

There is no coordinator and no heartbeat. The flow that comes last has the group. The one before it finds another name
in the checkpoints, at its next batch at the latest, and stops with an error that names the new owner. Nothing is given
back at the end: a restart on the same Spark checkpoint must find its partitions at the epoch at which it left them, or
it could not repeat its last batch. A partition that has no owner all of a sudden was rewound: it is taken again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.group.checkpoints import FenceRefused
from partq_spark.group.claims import Claim, Holding, Position, Standing, View
from partq_spark.group.membership import GroupMembership, Membership
from partq_spark.group.model import Checkpoint, Owner
from partq_spark.log import layouts
from partq_spark.log.groups import removed
from partq_spark.log.model import Head, Origin, at

CONFIRMED_S: Final = 5.0
"""For so long a look at the checkpoints is good for reading a batch: a process that stands still for longer looks
again.
"""

MAX_TRIES: Final = 5
"""Fences of one partition: only another query that starts at this moment makes a second one necessary."""

_log = logging.getLogger("partq.flow")


class SoloSession(GroupMembership):
    """One flow without others."""

    _settled: tuple[int, int] | None = None  # what the last look settled of resizes and rewinds
    _me: Owner | None = None
    _verified_s = 0.0
    _confirmed_s: float | None = None

    @property
    def instance(self) -> str | None:
        return self._me.instance if self._me is not None else None

    # --- coming and going ---------------------------------------------------------------------------------------------

    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> View:
        """Take every partition; those of `mapping` at the epoch at which this flow left them, if nobody came since.

        Raises `Unavailable`: what was taken is taken, call again.
        """
        me = self._me if self._me is not None else Owner(self._flow, self._effects.token())
        self._take(me, dict(mapping or {}))
        self._me = me
        self._verified_s = self._effects.now_s()
        return self._view(me)

    def unbind(self) -> None:
        """Write down what is acknowledged and announced. The partitions stay this flow's until somebody takes them."""
        if self._me is None:
            return
        try:
            self.flush()
        finally:
            self._me = None
            self._holdings.clear()

    def _take(self, me: Owner, mapping: Mapping[int, int]) -> Head:
        """What the group has to deliver and this flow does not have yet; returns the head by which that was."""
        head = self._group.head(self._flow)
        taken: dict[int, Checkpoint] = {}
        wanted = layouts.partitions_for(head, self.acknowledged(layouts.leaving(head)))
        for partition in mapping.keys() - set(wanted):
            self._leave_finished(me, partition, mapping[partition], at(head.next, partition))
        for partition in wanted:
            if not self._holdings.has_claimed((partition,)):
                taken[partition] = self._fence(me, partition, mapping.get(partition))
        self._hold(taken)
        return head

    def _fence(
        self,
        me: Owner,
        partition: int,
        known: int | None,
        *,
        rewound_from: int | None = None,
    ) -> Checkpoint:
        """The partition's checkpoint as this flow's. `known`: at which epoch it had the partition before. Raises
        `Fenced` if others take it all the time, or it should be one that was rewound from an epoch and is not.
        """
        refused: FenceRefused | None = None
        for _ in range(MAX_TRIES):
            found = self._checkpoints.read(partition)
            if rewound_from is not None and not self._is_rewound(found, me, rewound_from):
                raise Fenced(self._taken_over(partition, found))
            owner = found.owner if found is not None else None
            # Deleted, as a damaged one may be: no epoch comes twice, and this flow delivered from it before.
            epoch = found.epoch if found is not None else known or 0
            same = owner is not None and owner.flow == me.flow and epoch == known
            try:
                fenced = self._checkpoints.fence(
                    partition,
                    to=me,
                    epoch=epoch if same else epoch + 1,
                    replaces=owner if same else None,
                    start=self._group.start_of(partition) if self._settings.keep_offsets else None,
                    known_epoch=known or 0,
                )
            except FenceRefused as error:
                refused = error
                continue
            if owner is not None and owner.flow != me.flow:
                _log.warning(
                    "flow %s took partition %d of group %s from flow %s", me.flow, partition, self._group, owner.flow
                )
            return fenced
        raise Fenced(
            f"partition {partition} of group {self._group} was taken by others {MAX_TRIES} times in a row while flow "
            f"{me.flow!r} took it: run one query of a group with ownership=none, or share it by an ownership"
        ) from refused

    # --- what is mine -------------------------------------------------------------------------------------------------

    def observe(self) -> View:
        """Write down what is due, take partitions that are new in the queue or were rewound, and now and then look
        whether the group is still this flow's. Raises `Fenced` if it is not.
        """
        me = self._required()
        now_s = self._effects.now_s()
        if now_s - self._verified_s >= self._look_interval_s():
            self._verify(me)
            head = self._take(me, {})
            self._let_go(head)
            self._settled = self._changes(head)
        self._write(everything=False)
        return self._view(me)

    def _look_interval_s(self) -> float:
        """Longer while the head shows no resize and no rewind that is not settled: then only an owner may have come."""
        head = self._group.seen
        leaves = any(partition >= head.partitions for partition in self._holdings.by_partition)
        if leaves or self._changes(head) != self._settled:
            return max(self._settings.checkpoint_interval_s, self._settings.beat_interval_s)
        return self._settings.verify_interval_s

    def _changes(self, head: Head) -> tuple[int, int]:
        group = head.groups.get(self._group.key.group)
        return head.layout.generation, group.rewinds if group is not None else 0

    def _let_go(self, head: Head) -> None:
        """Partitions that the queue does not have any more, and that are acknowledged to their end, become nobody's: a
        number that comes back begins where this one ended, above this epoch (RES-04). Without offsets nothing would say
        that they are finished.
        """
        if not self._settings.keep_offsets:
            return
        for partition, end in layouts.leaving(head).items():
            holding = self._holdings.by_partition.get(partition)
            if holding is None or holding.acknowledged < end:
                continue
            if self._give_up(partition, holding.epoch, end):
                self._holdings.lose(partition)
                _log.info("flow %s is done with partition %d of group %s", self._flow, partition, self._group)

    def _leave_finished(self, me: Owner, partition: int, known: int, end: int) -> None:
        """The same of one that was finished, or has gone, before this process began: a batch that Spark repeats from an
        older Spark checkpoint would wait for it.
        """
        found = self._checkpoints.read(partition)
        if found is not None and found.owner and (found.owner.flow, found.epoch) == (me.flow, known):
            self._give_up(partition, known, end)

    def _give_up(self, partition: int, epoch: int, end: int) -> bool:
        """Nobody has it from now on, finished at `end`; False: somebody took it, which the next look finds out."""
        try:
            self._checkpoints.fence(partition, to=None, epoch=epoch + 1, start=end, finished=end)
        except FenceRefused:
            return False
        return True

    def confirm(self) -> View:
        """Look whether the partitions are still this flow's, after the log was looked at: what was announced is read
        now. Raises `Fenced`.
        """
        me = self._required()
        asked_s = self._effects.now_s()
        self._verify(me)
        self._confirmed_s = asked_s
        return self._view(me)

    def deliver(self, ends: Mapping[int, int]) -> bool:
        """Nobody else says whether it may: its checkpoints cover it. Raises `Fenced`."""
        me, held = self._required(), self._holdings.by_partition
        if not self._holdings.has_claimed(ends):
            return False
        try:
            self._announce(ends)
        except Fenced:
            self._verify(me)  # raises, unless it was rewound
            return False
        for partition, end in ends.items():
            held[partition].announced = max(held[partition].announced, end)
        return True

    def lease_left_s(self) -> float:
        """Of what was confirmed last: there is no lease, and another query takes over without asking. Looks beside a
        batch that is read do not prolong it, because they look at the checkpoints only now and then.
        """
        if self._me is None:
            return -1.0
        return math.inf if self._confirmed_s is None else self._confirmed_s + CONFIRMED_S - self._effects.now_s()

    def wait_news(self, timeout_s: float) -> bool:
        """There is nobody who tells: `observe` looks by itself when it is time."""
        self._effects.sleep(timeout_s)
        return False

    # --- steps --------------------------------------------------------------------------------------------------------

    def _required(self) -> Owner:
        if self._me is None:
            raise Invalid(f"flow {self._flow!r} of group {self._group} is not bound: call bind first")
        return self._me

    def _verify(self, me: Owner) -> None:
        """One listing. What was rewound begins elsewhere now. Raises `Fenced`, which says who took over."""
        now_s = self._effects.now_s()
        listed, damaged = self._checkpoints.list_readable()
        rewound: list[int] = []
        for partition, holding in self._holdings.by_partition.items():
            if partition in damaged:
                raise damaged[partition]
            found = listed.get(partition)
            if self._is_rewound(found, me, holding.epoch):
                rewound.append(partition)
            elif found is None or not found.is_of(self._group.queue_id, me, holding.epoch):
                raise Fenced(self._taken_over(partition, found))
        for partition in rewound:
            self._take_again(me, partition)
        self._verified_s = now_s

    def _take_again(self, me: Owner, partition: int) -> None:
        """Go on from where somebody rewound the partition to. It is held as before until that has gone well; if another
        query came in between, that has the whole group, or will have.
        """
        fenced = self._fence(me, partition, None, rewound_from=self._holdings.by_partition[partition].epoch)
        _log.warning(
            "partition %d of group %s was rewound to offset %s: flow %s goes on from there",
            partition,
            self._group,
            fenced.offset,
            me.flow,
        )
        self._holdings.lose(partition)
        self._hold({partition: fenced})

    def _is_rewound(self, found: Checkpoint | None, me: Owner, epoch: int) -> bool:
        """A guard: taken away for nobody, and by nobody else since. `me`: taken again, and the answer was lost."""
        if found is None:
            return False
        theirs = found.is_void or found.queue_id != self._group.queue_id
        return not theirs and found.epoch > epoch and found.owner in (None, me)

    def _taken_over(self, partition: int, found: Checkpoint | None) -> str:
        if found is None:
            return (
                f"checkpoint {self._checkpoints.name_of(partition)} of flow {self._flow!r} was deleted while it was in "
                "use: start again"
            )
        if found.queue_id == self._group.queue_id and found.since > self._checkpoints.since:
            return removed(self._group.key, f"flow {self._flow!r} stops")
        who = "nobody" if found.owner is None else f"flow {found.owner.flow!r} (instance {found.owner.instance})"
        return (
            f"{who} took over partition {partition} of group {self._group} at epoch {found.epoch}, flow {self._flow!r} "
            "stops: with ownership=none one query has the whole group; stop that one, give this one another group, or "
            "share the group by the option ownership"
        )

    def _deny(self, partition: int, holding: Holding, error: Fenced | Corrupt | Invalid) -> None:
        if isinstance(error, Invalid):  # nobody would be told of a partition that is held back
            raise error
        found = self._checkpoints.read(partition)
        if not self._is_rewound(found, self._required(), holding.epoch):
            raise Fenced(self._taken_over(partition, found)) from error
        self._verified_s = -math.inf  # the next look takes it again; this comes again from there

    def _view(self, me: Owner) -> View:
        return View(instance=me.instance, standing=Standing.ACTIVE, claims=self._holdings.claims())


# --- a query without a group ------------------------------------------------------------------------------------------

# A query without a group: every partition of the queue is its own, at epoch 0 (CHK-07).
#
# Its membership grants everything and verifies nothing. It reads the queue's head and nothing else: no checkpoint, no
# ownership, no name. How far the query is stands in Spark's own checkpoint alone, so any number of such queries may
# run.


EPOCH: Final = 0
_INSTANCE: Final = "alone"  # nobody asks which one


class EveryPartition(Membership):
    """Without a group: nobody listens, and nothing is ever in hand, because Spark asks for a batch when the one before
    is complete. `begins`: where the query is by its Spark checkpoint. A partition that the query knows stays its own
    even if the queue, restored from an older copy, does not have it: then it is told what is lost. `look` reads the
    head, which must be the same queue's.
    """

    def __init__(self, look: Callable[[], Head], begins: Mapping[int, int], effects: Effects) -> None:
        self._look = look
        self._effects = effects
        self._done = dict(begins)
        self._partitions = 1 + max(begins, default=-1)

    @property
    def instance(self) -> str:
        return _INSTANCE

    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> View:
        return self.observe()

    def observe(self) -> View:
        """Read the head: what it has is the query's. Raises `Invalid` if the queue is gone or another one."""
        head = self._look()
        self._partitions = max(self._partitions, len(head.earliest))
        # From the earliest message on, unless the Spark checkpoint says more.
        begins = {partition: at(head.earliest, partition) for partition in range(self._partitions)}
        claims = {
            p: Claim(partition=p, epoch=EPOCH, position=begin, acknowledged=0, redelivered_below=0, paused=False)
            for p, begin in begins.items()
        }
        return View(instance=_INSTANCE, standing=Standing.ACTIVE, claims=claims)

    def deliver(self, ends: Mapping[int, int]) -> bool:
        return True

    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]:
        """What others wait for while the partition count changes (RES-03). It is written down nowhere."""
        self._done.update({partition: position.offset for partition, position in positions.items()})
        return frozenset(positions)

    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]:
        return {partition: self._done.get(partition, 0) for partition in partitions}

    def lease_left_s(self) -> float:
        return math.inf

    def wait_news(self, timeout_s: float) -> bool:
        self._effects.sleep(timeout_s)
        return False
