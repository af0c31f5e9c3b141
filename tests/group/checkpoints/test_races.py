"""Owners and leaders of several minds write one checkpoint through a store that loses, delays and reorders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group.checkpoints import CheckpointStore, FenceRefused
from partq_spark.group.model import Owner
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.memory import MemoryStore
from tests.group.checkpoints.conftest import KEY, QUEUE_ID
from tests.support.faulty import FaultRates, FaultyStore
from tests.support.judge import Position, forbid, shared_epochs, went_back
from tests.support.scheduler import Scheduler

SEEDS = 300
FLOWS = ("a", "b")
RATES = FaultRates(
    crash=0.01,
    request_lost=0.05,
    answer_lost=0.05,
    late=0.05,
    contradicted=0.03,
    nap=0.1,
    swap_factor=2.0,
    naps_us=(50_000, 5_000_000),
)


def position(content: Mapping[str, str]) -> Position:
    epoch, offset, below = (int(content[key]) for key in ("epoch", "offset", "redelivered_below"))
    return Position(epoch, content.get("flow", ""), offset, below)


class Watched(MemoryStore):
    """The true store: judges each change by what was there before, and remembers who was granted what."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(clock=lambda: 0.0, rng=rng)
        self.changes = 0
        self.by: Owner | None = None  # the caller: an owner, or a leader
        self._granted: set[tuple[int, str]] = set()

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        before: Mapping[str, str] = next((info.metadata for info in self.list(name)), {})
        etag = super().swap(name, content, expected=expected)
        assert not isinstance(content, bytes)
        self.changes += 1
        now = position(content)
        granted = any(content.get(key) != before.get(key) for key in ("instance", "epoch"))
        if self.by is not None:
            assert content.get("instance") == self.by.instance, f"{self.by} moved what is {content.get('flow')}'s"
            assert not granted, f"{self.by} took it"
        if before:
            old = position(before)
            forbid(went_back(old, now))
            forbid(shared_epochs([old[:2], now[:2]]))
            assert not granted or now.offset == old.offset, "a fence moved the offset"
        if granted:
            owner = (now.epoch, content.get("instance", ""))
            assert owner not in self._granted, f"{owner} was given back what it had lost"
            self._granted.add(owner)
        return etag


class Signed:
    """The true store, told who calls it."""

    def __init__(self, truth: Watched, by: Owner | None) -> None:
        self._truth = truth
        self._by = by

    def __getattr__(self, name: str) -> object:
        return getattr(self._truth, name)

    def swap(self, name: str, content: Mapping[str, str], *, expected: str | None) -> str:
        self._truth.by = self._by
        return self._truth.swap(name, content, expected=expected)


class Race:
    """One seed: leaders that fence by what they believe, which may be old, and the owners that they make."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.truth = Watched(random.Random(seed + 1))

    def run(self) -> int:
        """How often the checkpoint was changed."""
        for number in range(3):
            self.start(f"leader {number}", self.lead)
        self.scheduler.run(None, 20_000)
        return self.truth.changes

    def start(self, name: str, body: Callable[[], None]) -> None:
        def main() -> None:
            with suppress(Unavailable):
                body()

        self.scheduler.process(name).spawn("main", main)

    def view(self, by: Owner | None) -> CheckpointStore:
        store = FaultyStore(cast(ObjectStore, Signed(self.truth, by)), self.scheduler, RATES, Counter())
        effects = Effects(
            time_us=lambda: self.scheduler.now_us,
            sleep=lambda seconds: self.scheduler.sleep_us(int(seconds * 1e6)),
            uniform=self.rng.uniform,
        )
        return CheckpointStore(store, KEY, QUEUE_ID, effects=effects)

    def own(self, me: Owner) -> None:
        """Acknowledge while the checkpoint says that it is mine, and once more when it does not."""
        checkpoints = self.view(me)
        for _ in range(6):
            held = checkpoints.read(0)
            while held is not None and held.owner == me:
                try:
                    held = checkpoints.update_checkpoint(held, (held.offset or 0) + self.rng.randrange(3))
                except Fenced:
                    break
                except Unavailable:
                    continue
            self.scheduler.sleep_us(self.rng.randrange(2_000_000))

    def lead(self) -> None:
        checkpoints = self.view(None)
        for _ in range(8):
            found = checkpoints.read(0)
            self.scheduler.sleep_us(self.rng.randrange(1_000_000))
            to = self.somebody()
            epoch = (found.epoch if found else 0) + self.rng.randrange(2)
            self.fence(checkpoints, to, epoch, found.owner if found else None)

    def somebody(self) -> Owner | None:
        if self.rng.random() < 0.1:
            return None
        to = Owner(self.rng.choice(FLOWS), f"{self.rng.randrange(10**6)}")
        if self.rng.random() < 0.8:  # else the coordinator has seen a flow that is gone already
            self.start(f"owner {to}", partial(self.own, to))
        return to

    def fence(self, checkpoints: CheckpointStore, to: Owner | None, epoch: int, replaces: Owner | None) -> None:
        """As often as its own outcome stays unknown."""
        for _ in range(3):
            try:
                checkpoints.fence(0, to=to, epoch=epoch, replaces=replaces, start=0, delivered=self.rng.randrange(20))
            except Unavailable:
                continue
            except FenceRefused:
                pass
            return


@pytest.mark.slow
@pytest.mark.conformance("CHK-04")
@pytest.mark.conformance("CHK-05")
def test_no_checkpoint_goes_back_and_nobody_writes_what_he_lost() -> None:
    changes = sum(Race(seed).run() for seed in range(SEEDS))
    assert changes > 10 * SEEDS


@pytest.mark.parametrize("guard", ["_is_held", "_may_fence"])
def test_the_races_notice_a_missing_guard(monkeypatch: pytest.MonkeyPatch, guard: str) -> None:
    monkeypatch.setattr(CheckpointStore, guard, lambda *_: True)
    with pytest.raises(AssertionError):
        sum(Race(seed).run() for seed in range(SEEDS))
