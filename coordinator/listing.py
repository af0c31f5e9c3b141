"""A group's checkpoints as one listing shows them, and which of them cannot be read. A damaged one says nothing: the
others count all the same, and it is looked for again until it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.core.reconcile import Mark
from coordinator.logs import Log
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey

LOOK_S: Final = 5.0  # between two listings while one is damaged


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """What the checkpoints say of ownership. `damaged`: of these nobody knows. `repaired`: of these it was not known
    when they were listed before.
    """

    marks: Mapping[int, Mark]
    damaged: frozenset[int] = frozenset()
    repaired: frozenset[int] = frozenset()


class Listing:
    """Of one group, in one process."""

    def __init__(self, key: GroupKey, now_s: Callable[[], float], log: Log) -> None:
        self._key = key
        self._now_s = now_s
        self._log = log
        self._damaged: frozenset[int] = frozenset()
        self._listed_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether one was damaged, and may have been repaired."""
        return bool(self._damaged) and self._now_s() - self._listed_s >= LOOK_S

    def read(self, checkpoints: CheckpointStore) -> Listed:
        """List them. Raises `Unavailable`."""
        found, damaged = checkpoints.list_readable()
        self._listed_s = self._now_s()
        for number in sorted(damaged.keys() - self._damaged):
            self._log(
                "error", "checkpoint_damaged", group=str(self._key), partition=number, reason=str(damaged[number])
            )
        repaired = self._damaged - damaged.keys()
        for number in sorted(repaired):
            self._log("info", "checkpoint_repaired", group=str(self._key), partition=number, reason="it can be read")
        self._damaged = frozenset(damaged)
        return Listed(
            marks={n: Mark(epoch=each.epoch, owner=each.owner, rewound=each.rewound) for n, each in found.items()},
            damaged=self._damaged,
            repaired=repaired,
        )
