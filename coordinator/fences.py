"""Carrying out fences: which checkpoints are rewritten, and for whom.

Only the effect lives here. The state that asks for the fences was written before (`runtime`). The sidecar carries out
the fences of a group side by side, simulations one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from coordinator.core.events import CheckpointAhead, Event, FenceStuck, PartitionFenced
from coordinator.logs import Log
from partq_spark.base.effects import RunAll
from partq_spark.base.errors import Conflict, PartqError, Unavailable
from partq_spark.base.retry import Retry
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused, NotDrained
from partq_spark.group.model import GroupKey, GroupState, Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """What became of some fences: as events; by partition, what was in the way of the others; and how many messages
    were marked for those who got a partition, because they may come again. What waits until its owner closes it is in
    neither.
    """

    events: list[Event] = field(default_factory=list)
    failed: dict[int, PartqError] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)


def carry_out(
    fences: Sequence[Partition],
    *,
    checkpoints: CheckpointStore,
    starts: Mapping[int, int],
    finished: Mapping[int, int],
    is_asked_for: Callable[[], bool],
    run: RunAll,
    log: Log,
    told: Container[int] = (),
) -> Carried:
    """Fence these partitions for their `to`, side by side if `run` does so: what is wrong with one checkpoint does not
    touch the others. An unknown outcome is no event: the state still asks for the fence, and a fence recognises its own
    repetition. `told`: of these it was said before.

    `finished`: removed partitions that the group is done with, and where they end. A later look finds that in its
    checkpoint, also where offsets are not kept. `is_asked_for` reads whether the store still has the state that asks
    for these fences, and is asked only where a checkpoint is not the former owner's.
    """
    done = Carried()

    def one(fence: Partition) -> None:
        number, start = fence.partition, starts.get(fence.partition, 0)
        try:
            fenced = checkpoints.fence(
                number,
                to=fence.to,
                epoch=fence.to_epoch,
                # The same epoch again is only for the same flow, back as another instance (LOS-01).
                replaces=fence.owner if fence.to_epoch == fence.epoch else None,
                start=start,
                known_epoch=fence.epoch,
                drained=fence.drained,
                finished=finished.get(number, 0) if fence.to is None else 0,
                confirm=lambda found: _confirm(fence, found, is_asked_for),
            )
        except FenceRefused as error:
            done.events.append(CheckpointAhead(partition=number, epoch=error.epoch))
        except NotDrained:
            pass
        except PartqError as error:
            done.failed[number] = error
            level = "debug" if number in told else "warning"
            log(level, "fence_failed", partition=number, reason=str(error))
        else:
            done.events.append(PartitionFenced(partition=number, epoch=fence.to_epoch, owner=fence.to))
            if fence.to is not None and fenced.offset is not None:
                done.marked[number] = max(fenced.redelivered_below - fenced.offset, 0)

    run(one, fences)
    done.events.sort(key=attrgetter("partition"))  # whichever was quickest: they are told in one order
    return done


def _confirm(fence: Partition, found: Checkpoint | None, is_asked_for: Callable[[], bool]) -> None:
    """A guard: a checkpoint that is not the former owner's may be the next leader's. Its state says so then, for it was
    written first; and what it still writes makes this fence's swap fail. Where the store has lost the state that asks
    for this fence, the next leader's epochs need not be above it.
    """
    here = (found.owner, found.epoch) if found is not None else (None, 0)
    if here != (fence.owner, fence.epoch) and not is_asked_for():
        raise Conflict("the group's state is another one now, and does not ask for this fence")


# --- fences that failed -----------------------------------------------------------------------------------------------

# Fences that failed: when each is tried again, and from when on nobody else waits for it. No I/O.
#
# One checkpoint that is damaged, or that may not be written, is no reason for the others to wait (REB-15, HAN-04).


STUCK_AFTER_S: Final = 3.0
"""What a store may mend by itself is waited for so long: as long as a handoff takes by default."""

MOST_WORDS: Final = 400
"""Of what is wrong: it is kept in the group's state."""


def first_stuck(key: GroupKey, state: GroupState | None) -> str:
    """What is wrong with the first partition that is stuck; empty if none is."""
    partitions = state.partitions.values() if state is not None else ()
    return next((f"group {key}, partition {each.partition}: {each.stuck}" for each in partitions if each.stuck), "")


@dataclass(slots=True)
class _Failing:
    retry: Retry
    due_s: float = 0.0


class FenceRetries:
    """Of one group, by one leader."""

    def __init__(self, first_s: float, most_s: float) -> None:
        """Between two tries of one fence: `first_s`, doubled each time, at most `most_s`."""
        self._first_s = first_s
        self._most_s = most_s
        self._failing: dict[int, _Failing] = {}

    def forget(self) -> None:
        """Everything is tried at once."""
        self._failing.clear()

    def due(self, fences: Iterable[Partition], now_s: float) -> list[Partition]:
        """Those that have not failed, and those whose time has come."""
        return [
            fence
            for fence in fences
            if (failing := self._failing.get(fence.partition)) is None or failing.due_s <= now_s
        ]

    def next_s(self, fences: Iterable[Partition], now_s: float) -> float:
        """Seconds until the first of them is due; infinity if there are none."""
        due = (self._failing.get(fence.partition) for fence in fences)
        return min((max(0.0, each.due_s - now_s) if each is not None else 0.0 for each in due), default=math.inf)

    def tried(
        self, fences: Collection[Partition], failed: Mapping[int, PartqError], stuck: Collection[int], now_s: float
    ) -> list[FenceStuck]:
        """What follows from a try of `fences`, of which those of the partitions `failed` came to nothing. `stuck`: what
        is so already. What cannot mend by itself is stuck at once.
        """
        events: list[FenceStuck] = []
        for fence in fences:
            error = failed.get(fence.partition)
            if error is None:
                self._failing.pop(fence.partition, None)
                continue
            retry = self._again(fence.partition, now_s)
            passing = isinstance(error, Conflict | Unavailable) and retry.tried_s(now_s) < STUCK_AFTER_S
            if fence.partition not in stuck and not passing:
                reason = " ".join(str(error).split())[:MOST_WORDS]
                events.append(FenceStuck(partition=fence.partition, epoch=fence.to_epoch, reason=reason))
        return events

    def _again(self, partition: int, now_s: float) -> Retry:
        failing = self._failing.get(partition)
        if failing is None:
            # The whole pause each time: nobody else tries this fence.
            failing = self._failing[partition] = _Failing(Retry(first_s=self._first_s, most_s=self._most_s, least=1.0))
        failing.retry.failed(now_s)
        failing.due_s = now_s + (failing.retry.pause_s(now_s, max) or 0.0)
        return failing.retry
