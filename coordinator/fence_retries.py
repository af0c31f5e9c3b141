"""Fences that failed: when each is tried again, and from when on nobody else waits for it. No I/O.

One checkpoint that is damaged, or that may not be written, is no reason for the others to wait (REB-15, HAN-04).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.core.events import FenceStuck
from partq_spark.base.errors import Conflict, PartqError, Unavailable
from partq_spark.base.retry import Retry
from partq_spark.group.model import GroupKey, GroupState, Partition

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
