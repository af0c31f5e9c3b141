"""What a seed draws before anything runs: which processes, which faults, which limits. Numbers only."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from partq_spark.log.sizes import LogSizes
from tests.support.faulty import HOUR_US, FaultRates
from tests.support.scheduler import SECOND_US

GRACE_US = 24 * HOUR_US
MOST_SKEW_US = HOUR_US // 6
BEGIN_US = 1_790_000_000 * SECOND_US
SLEEPS_US = (SECOND_US, 12 * HOUR_US, 23 * HOUR_US, 50 * HOUR_US, 80 * HOUR_US)
MOST_STEPS = 20_000
NAMESPACE, QUEUE, GROUP = "sim", "orders", "g"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a seed draws before anything runs."""

    seed: int
    partitions: int
    publishers: int
    anonymous: int
    passers: int  # writers that publish once under a name of their own
    readers: int
    trimmers: int
    collectors: int
    recreate: bool
    group: bool
    batches: int
    rates: FaultRates
    brisk: float  # probability that a process never sleeps
    retrying: bool  # through the store's own retries, as in production
    sizes: LogSizes  # small: histories are short here
    pause_us: int  # about so long between two actions of a process
    sleepy: float  # probability that a publisher sleeps between staging and publishing
    trim_all: float  # probability that a trim takes everything
    compactors: int = 0
    resizers: int = 0
    alterers: int = 0  # more than none: the queue is typed
    keepers: int = 0  # of each kind: one acknowledges, one rewinds, one removes and makes the group, one trims

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Most of everything at random; five of eight seeds lean towards what is rare by chance. In three of ten the
        queue is typed, and altered while the rest goes on.
        """
        typed = random.Random(f"typed {seed}")
        plan = cls._drawn(seed)
        if typed.random() > 0.3:
            return plan
        compactors, resizers = max(plan.compactors, typed.randint(0, 2)), max(plan.resizers, typed.randint(0, 1))
        return replace(plan, alterers=typed.randint(1, 2), compactors=compactors, resizers=resizers)

    @classmethod
    def _drawn(cls, seed: int) -> Plan:
        rng = random.Random(f"plan {seed}")
        level = rng.choice((0.0, 0.01, 0.04))
        plan = cls(
            seed=seed,
            partitions=rng.randint(1, 3),
            publishers=rng.randint(1, 3),
            anonymous=rng.randint(0, 2),
            passers=rng.choice((0, 0, 3, 8)),
            readers=rng.randint(0, 2),
            trimmers=rng.randint(0, 2),
            collectors=rng.randint(0, 2),
            recreate=rng.random() < 0.25,
            group=rng.random() < 0.25,
            batches=rng.randint(2, 7),
            rates=FaultRates(
                crash=rng.choice((0.0, 0.01, 0.03)),
                request_lost=level * rng.random(),
                answer_lost=level * rng.random() * 2,
                late=level * rng.random() * 2,
                contradicted=level,
                damage=rng.choice((0.0, 0.0, 0.01)),
                nap=rng.choice((0.0, 0.01, 0.05, 0.15)),
            ),
            brisk=0.0,
            retrying=rng.random() < 0.3,
            sizes=LogSizes(
                inline_entries=rng.choice((2, 4, 6)),
                fan_out=rng.randint(2, 3),
                head_writers=rng.choice((2, 4)),
                page_fan_out=2,
                slice_gain=2,
            ),
            pause_us=rng.choice((SECOND_US // 10, 60 * SECOND_US, 3 * HOUR_US, 20 * HOUR_US)),
            sleepy=rng.choice((0.05, 0.3)),
            trim_all=rng.choice((0.1, 0.7)),
        )
        kept = replace(
            plan,
            compactors=rng.choice((0, 1, 2)),
            resizers=rng.choice((0, 0, 1)),
            keepers=int(plan.group and rng.random() < 0.8),
        )
        if seed % 4 == 2:
            lost = plan._with_lost_outcomes()
            # Two of them without trims, which would hide what compaction does to tokens.
            chunks = replace(lost.sizes, inline_entries=2)
            return replace(lost, compactors=3, trimmers=0, sizes=chunks) if seed // 4 % 2 else lost
        if seed % 4 == 3:
            return replace(plan._with_sleepers(), compactors=seed // 4 % 2)
        if seed % 8 == 5:
            return kept._with_keepers()
        return kept

    def _with_keepers(self) -> Plan:
        """A group that is acknowledged, taken back, removed and made while others trim by its checkpoints."""
        rates = replace(self.rates, crash=0.0, damage=0.0, nap=0.0)
        return replace(
            self,
            rates=rates,
            group=True,
            keepers=2,
            recreate=False,
            trimmers=0,
            collectors=1,
            publishers=2,
            anonymous=0,
            passers=0,
            readers=0,
            batches=6,
            pause_us=SECOND_US // 100,
        )

    def _with_lost_outcomes(self) -> Plan:
        """Swaps whose answers are lost, then silence, while others trim all there is."""
        rates = replace(self.rates, request_lost=0.01, answer_lost=0.05, late=0.05, outage=0.4, swap_factor=5.0)
        rates = replace(rates, contradicted=0.01)
        return replace(
            self, rates=replace(rates, crash=0.0), anonymous=2, trimmers=2, trim_all=0.8, readers=0, recreate=False
        )

    def _with_sleepers(self) -> Plan:
        """Some processes that sleep for days while others publish, trim and collect without a pause."""
        naps_us = (26 * HOUR_US, 100 * HOUR_US)
        rates = replace(self.rates, crash=0.0, damage=0.0, request_lost=0.0, nap=0.2, naps_us=naps_us)
        return replace(
            self,
            rates=rates,
            brisk=0.6,
            partitions=1,
            publishers=2,
            anonymous=1,
            passers=0,
            trimmers=2,
            collectors=1 + self.seed // 4 % 4,
            readers=2,
            recreate=False,
            batches=12,
            sizes=replace(self.sizes, inline_entries=2),
            pause_us=12 * HOUR_US,
            sleepy=0.7,
            trim_all=0.1,
        )


@dataclass(slots=True)
class Outcome:
    """What a run was."""

    seed: int
    steps: int = 0
    changes: int = 0
    history: str = ""
    counts: Counter[str] = field(default_factory=Counter)
