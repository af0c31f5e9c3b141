"""Whose each partition was, as all checkpoints said it again and again while a test ran. Nothing here judges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.spark.flows.conftest import Shared, going_on


class Ownership(NamedTuple):
    """Whose a partition is, as its checkpoint says."""

    partition: int
    epoch: int
    flow: str


class Watch:
    """`first_s`: the wall clock after the look that found it first; `nobodys`: partitions that had lost their owner."""

    def __init__(self, orders: Shared) -> None:
        self._orders = orders
        self.first_s: dict[Ownership, float] = {}
        self.nobodys: list[int] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with going_on(self._look, 0.02):
            yield

    def _look(self) -> None:
        for partition, found in self._orders.checkpoints().items():
            if found.flow is None:
                self.nobodys.append(partition)
            else:
                self.first_s.setdefault(Ownership(partition, found.epoch, found.flow), time.time())

    def flows_of(self, partition: int, epoch: int) -> set[str]:
        return {each.flow for each in self.first_s if each[:2] == (partition, epoch)}

    def over_s(self, partition: int, epoch: int) -> float:
        """When that ownership was over for certain."""
        return min((s for each, s in self.first_s.items() if each[0] == partition and each[1] > epoch), default=1e12)

    def never_two(self) -> bool:
        return all(len(self.flows_of(each.partition, each.epoch)) == 1 for each in self.first_s)
