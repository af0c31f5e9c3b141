"""What a leader does once a state is written: it carries out the fences that the state asks for, and keeps the books.

Which checkpoints are rewritten, and for whom, stands in the state (`runtime`). The sidecar carries out the fences of a
group side by side, simulations one after the other. One checkpoint that is damaged, or that may not be written, is no
reason for the others to wait (REB-15, HAN-04); one that failed is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from coordinator.core.events import CheckpointAhead, Event, FenceStuck, PartitionFenced
from coordinator.logs import Log
from partq_spark.base.effects import Retry, RunAll
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore, FenceRefused, NotDrained
from partq_spark.group.model import Checkpoint, GroupKey, GroupState, Owner, OwnershipRecord, Partition, Phase
from partq_spark.group.ownership import Ownership, Reincarnated

STUCK_AFTER_S: Final = 3.0
"""What a store may mend by itself is waited for so long: as long as a handoff takes by default."""

MOST_WORDS: Final = 400
"""Of what is wrong: it is kept in the group's state."""


class Carried(NamedTuple):
    """What became of one fence: an event, or None where it is tried again. `marked`: how many messages, at most, are
    marked for the one who got the partition, because they may come again.
    """

    event: Event | None
    marked: int = 0


class Fences:
    """Of one group, by one leader: what is remembered is which of them failed. Pauses between two tries of one fence
    begin at `first_s`, are doubled each time, and end at `most_s`.
    """

    def __init__(self, *, first_s: float, most_s: float, now_s: Callable[[], float], log: Log, run: RunAll) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._now_s = now_s
        self._log = log
        self._run = run
        self._retries: dict[int, Retry] = {}  # of those that failed, by partition
        self._due_s: dict[int, float] = {}  # when each is tried again

    def forget(self) -> None:
        """Everything is tried at once."""
        self._retries.clear()
        self._due_s.clear()

    def due(self, fences: Iterable[Partition]) -> list[Partition]:
        """Those that have not failed, and those whose time has come."""
        now_s = self._now_s()
        return [fence for fence in fences if self._due_s.get(fence.partition, now_s) <= now_s]

    def next_s(self, fences: Iterable[Partition]) -> float:
        """Seconds until the first of them is due; infinity if there are none."""
        now_s = self._now_s()
        return min((max(0.0, self._due_s.get(fence.partition, now_s) - now_s) for fence in fences), default=math.inf)

    def carry_out(
        self,
        fences: Sequence[Partition],
        *,
        checkpoints: CheckpointStore,
        starts: Mapping[int, int],
        finished: Mapping[int, int],
        is_asked_for: Callable[[], bool],
    ) -> list[Carried]:
        """Fence these partitions for their `to`, side by side: what is wrong with one checkpoint does not touch the
        others. An unknown outcome is no event: the state still asks for the fence, and a fence recognises its own
        repetition.

        `finished`: removed partitions that the group is done with, and where they end. A later look finds that in its
        checkpoint, also where offsets are not kept. `is_asked_for` reads whether the store still has the state that
        asks for these fences, and is asked only where a checkpoint is not the former owner's.
        """

        def one(fence: Partition) -> Carried:
            number = fence.partition
            try:
                fenced = checkpoints.fence(
                    number,
                    to=fence.to,
                    epoch=fence.to_epoch,
                    # The same epoch again is only for the same flow, back as another instance (LOS-01).
                    replaces=fence.owner if fence.to_epoch == fence.epoch else None,
                    start=starts.get(number, 0),
                    known_epoch=fence.epoch,
                    drained=fence.drained,
                    finished=finished.get(number, 0) if fence.to is None else 0,
                    confirm=lambda found: _confirm(fence, found, is_asked_for),
                )
            except FenceRefused as error:
                done = Carried(CheckpointAhead(partition=number, epoch=error.epoch))
            except NotDrained:
                done = Carried(None)  # it waits until its owner closes it
            except PartqError as error:
                return Carried(self._failed(fence, error))
            else:
                done = Carried(PartitionFenced(partition=number, epoch=fence.to_epoch, owner=fence.to))
                if fence.to is not None and fenced.offset is not None:
                    done = done._replace(marked=checkpoints.marked(fenced))
            self._retries.pop(number, None)
            self._due_s.pop(number, None)
            return done

        return list(self._run(one, fences))

    def _failed(self, fence: Partition, error: PartqError) -> FenceStuck | None:
        """It is tried again, and told to the core if nobody may wait for it: what cannot mend by itself at once."""
        number, now_s = fence.partition, self._now_s()
        self._log("debug" if fence.stuck else "warning", "fence_failed", partition=number, reason=str(error))
        # The whole pause each time: nobody else tries this fence.
        retry = self._retries.setdefault(number, Retry(first_s=self._first_s, most_s=self._most_s, least=1.0))
        retry.failed(now_s)
        self._due_s[number] = now_s + (retry.pause_s(now_s, max) or 0.0)
        passing = isinstance(error, Conflict | Unavailable) and retry.tried_s(now_s) < STUCK_AFTER_S
        if fence.stuck or passing:
            return None
        reason = " ".join(str(error).split())[:MOST_WORDS]
        return FenceStuck(partition=number, epoch=fence.to_epoch, reason=reason)


def _confirm(fence: Partition, found: Checkpoint | None, is_asked_for: Callable[[], bool]) -> None:
    """A guard: a checkpoint that is not the former owner's may be the next leader's. Its state says so then, for it was
    written first; and what it still writes makes this fence's swap fail. Where the store has lost the state that asks
    for this fence, the next leader's epochs need not be above it.
    """
    here = (found.owner, found.epoch) if found is not None else (None, 0)
    if here != (fence.owner, fence.epoch) and not is_asked_for():
        raise Conflict("the group's state is another one now, and does not ask for this fence")


# --- the books --------------------------------------------------------------------------------------------------------

# What a leader writes when there is time: ownership records for people and tools (OWN-02), and the removal of flows
# that are gone. Nobody decides anything by it: the state and the checkpoints decide. So it may lag, and is tried again
# when it fails.


class Bookkeeping:
    """Of one group in one process."""

    def __init__(self, store: Ownership, key: GroupKey, log: Log) -> None:
        self._store = store
        self._key = key
        self._log = log
        self._claimed: dict[int, OwnershipRecord] | None = None  # the ownership records, as far as they are known
        self._followed: str | None = None  # the token of the state that they agree with
        self._gone: dict[Owner, None] = {}

    @property
    def gone(self) -> Collection[Owner]:
        """Flows that were let go, and whose heartbeats are still to be removed."""
        return self._gone.keys()

    def let_go(self, owners: Iterable[Owner]) -> None:
        """The group has no use for them any more."""
        self._gone.update(dict.fromkeys(owners))

    def forget(self, *, term: bool = False) -> None:
        """Another leader may have claimed since; in a new term, it may also have removed records."""
        self._claimed = self._followed = None
        if term:
            self._gone.clear()

    def catch_up(self, state: GroupState, token: str) -> None:
        """Claim what changed hands, and remove flows that are gone. Again if it fails. Raises `Reincarnated`."""
        try:
            for owner in list(self._gone):
                known = state.flows.get(owner.flow)
                is_gone = known is None or known.instance != owner.instance
                try:
                    if is_gone and not self._store.forget_flow(self._key, *owner, state_token=token):
                        return  # another one wrote the state: the next step sees it too, and adopts the group anew
                except (Corrupt, Invalid) as error:  # said once; `partq status` names it until somebody removes it
                    self._log("warning", "tidying_failed", reason=str(error))
                del self._gone[owner]
            self._claim(state, token)
        except Reincarnated:
            raise
        except PartqError as error:
            self._log("warning", "tidying_failed", reason=str(error))

    def _claim(self, state: GroupState, token: str) -> None:
        """Ownership records as `state` has it. The next call begins with a listing if this one fails."""
        if token == self._followed:
            return
        known, self._claimed = self._claimed, None
        if known is None:
            try:
                known = dict(self._store.list_ownership(self._key))
            except Corrupt:
                self._followed = token  # said once for a state, as above
                raise
        owners: dict[int, tuple[Owner | None, int]] = {
            number: (partition.owner, partition.epoch)
            for number, partition in state.partitions.items()
            if partition.phase is not Phase.FENCING and (partition.epoch or number in known)
        }
        owners |= {number: (None, epoch) for number, epoch in state.retired.items() if number in known}
        wanted = [
            OwnershipRecord(
                partition=number,
                owner=owner,
                epoch=epoch,
                version=known[number].version if number in known else "",
            )
            for number, (owner, epoch) in owners.items()
            if number not in known or (known[number].owner, known[number].epoch) != (owner, epoch)
        ]
        claimed = self._store.claim_ownership(self._key, wanted) if wanted else {}
        if len(claimed) < len(wanted):
            return  # a condition did not hold: list them again
        self._claimed, self._followed = {**known, **claimed}, token
