"""Checkpoints in memory, by a way to the store that counts its calls and loses what it is told to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Literal, TypeVar

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.model import GroupKey, Owner
from partq_spark.objects.api import ObjectStore
from tests.objects.conftest import memory_store
from tests.support.way import Way

KEY = GroupKey("default", "orders", "billing")
QUEUE_ID = "00aa00aa00aa00aa"
TIME_US = 1_795_000_000_000_000

A1 = Owner("a", "1111")
A2 = Owner("a", "2222")
B1 = Owner("b", "3333")

T = TypeVar("T")
Loss = Literal["request", "answer", "late"]


class Lossy(Way):
    """A store whose next swaps get lost as `losses` says: before they took place, after, or to take place later."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()
        self.losses: deque[Loss | None] = deque()
        self.before_swap: deque[Callable[[], object]] = deque()  # what somebody else does just then
        self._late: list[Callable[[], object]] = []

    def land(self) -> None:
        """What was late takes place now."""
        late, self._late = self._late, []
        for each in late:
            each()

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self.calls[kind] += 1
        if kind != "swap":
            return effect()
        if self.before_swap:
            self.before_swap.popleft()()
        loss = self.losses.popleft() if self.losses else None
        if loss is None:
            return effect()
        if loss == "answer":
            effect()
        elif loss == "late":
            self._late.append(effect)
        raise Unavailable(f"swap of {name}: {loss} lost (test)")


@pytest.fixture
def store() -> Lossy:
    return Lossy(memory_store())


@pytest.fixture
def checkpoints(store: Lossy) -> CheckpointStore:
    return checkpoints_in(store)


def checkpoints_in(store: ObjectStore, queue_id: str = QUEUE_ID, since: int = 0) -> CheckpointStore:
    """As one process sees them, without real pauses."""
    effects = Effects(sleep=lambda _: None, time_us=lambda: TIME_US)
    return CheckpointStore(store, KEY, queue_id, since=since, effects=effects)


def held(found: Checkpoint | None) -> Checkpoint:
    """What was found, which must be there."""
    assert found is not None
    return found
