"""Partitions that a queue has lost by an alteration, and that a group has to deliver to their end first (RES-02).

What the group has to deliver are the present partitions and these, as long as they are not finished. Their checkpoints
say so, for every leader to find anew, so that nothing has to be remembered; it is, in memory, so that they are listed
only while something is about to go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from coordinator.heads import GroupFacts
from partq_spark.group.checkpoint import done_to
from partq_spark.group.checkpoints import CheckpointStore

LOOK_S: Final = 1.0  # between two listings


class RemovedPartitions:
    """Of one group, in one process."""

    def __init__(self, checkpoints: Callable[[GroupFacts], CheckpointStore], now_s: Callable[[], float]) -> None:
        self._make_checkpoints = checkpoints
        self._now_s = now_s
        self._finished: dict[int, int] = {}  # partition → where it ends
        self._for: tuple[str, int] | None = None  # queue, and rewinds that were counted
        self._looked_s: float | None = None

    def forget(self) -> None:
        """Nothing is known any more."""
        self._for = None

    def with_unfinished(self, facts: GroupFacts) -> GroupFacts:
        """The facts, with everything in `partitions` that the group has to deliver. Raises as a listing does.

        All that are found finished at one look go together: one rebalance. A rewind makes all be looked at again.
        """
        if not facts.leaving:
            return facts
        known_for = (facts.queue_id, facts.rewinds)
        if known_for != self._for:
            self._for, self._looked_s = known_for, None
            self._finished.clear()
        if self._unfinished(facts) and (self._looked_s is None or self._now_s() - self._looked_s >= LOOK_S):
            self._looked_s = self._now_s()
            self._look(facts)
        present = (number for number in facts.partitions if number not in facts.leaving)
        return replace(facts, partitions=(*present, *self._unfinished(facts)))

    def finished(self, facts: GroupFacts) -> Mapping[int, int]:
        """Removed partitions that are known to be finished, and where they end; none if they were rewound since these
        facts. The fence that lets them go writes that into the checkpoint, so that it can be found anew.
        """
        if (facts.queue_id, facts.rewinds) != self._for:
            return {}
        return {number: end for number, end in facts.leaving.items() if self._finished.get(number) == end}

    def _unfinished(self, facts: GroupFacts) -> list[int]:
        return [number for number, end in sorted(facts.leaving.items()) if self._finished.get(number) != end]

    def _look(self, facts: GroupFacts) -> None:
        found, damaged = self._make_checkpoints(facts).list_readable()
        for number, end in facts.leaving.items():
            if number not in damaged and done_to(found.get(number), facts.starts[number]) >= end:
                self._finished[number] = end
