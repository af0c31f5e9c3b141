"""What every simulated world has: true time, processes with clocks of their own, an ownership store, coordinators that
are started again, an end of all faults.

Each world says itself what else lives in it, what befalls it and what must be true.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from coordinator.logs import FieldValue
from partq_spark.base.effects import Effects
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from tests.simulation import history as h
from tests.simulation.coordinators import Heads, Timers, coordinate
from tests.simulation.links import Link, Rates, Weather
from tests.simulation.objects import Objects
from tests.simulation.stores import OwnershipServer
from tests.support.scheduler import SECOND_US, Process, Scheduler
from tests.world.outcome import Outcome

MOST_STEPS = 60_000
MOST_OFFSET_S = 600.0  # two clocks differ by up to 20 minutes
MOST_DRIFT = 0.00005


class WorldPlan(Timers, Protocol):
    """What of a plan concerns every world."""

    @property
    def seed(self) -> int: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def skewed(self) -> bool: ...


class SimulatedWorld:
    """Everything of one seed that does not depend on who lives there. `kind` tells the chance of one suite from that of
    another.
    """

    def __init__(self, plan: WorldPlan, kind: str, judge: Callable[[h.Fact], None], keep: int) -> None:
        self._seed = plan.seed
        self._timers: Timers = plan
        self._skewed = plan.skewed
        self.rng = random.Random(f"{kind} {plan.seed}")
        self._tokens = random.Random(f"tokens {plan.seed}")
        self.scheduler = Scheduler(self.rng)
        self.history = h.History(judge, keep)
        self.counts: Counter[str] = Counter()
        self.weather = Weather(rates=plan.rates, counts=self.counts, note=self.history.note)
        self.server = OwnershipServer(self.scheduler, self._tokens, self.history)

    def token(self) -> str:
        """Never the same again."""
        return f"{self._tokens.getrandbits(64):016x}"

    def process(self, name: str) -> Process:
        """A new process with a clock of its own."""
        if not self._skewed:
            return self.scheduler.process(name)
        origin_s = 10_000.0 + self.rng.uniform(-MOST_OFFSET_S, MOST_OFFSET_S)
        return self.scheduler.process(name, origin_s=origin_s, rate=1 + self.rng.uniform(-MOST_DRIFT, MOST_DRIFT))

    def effects(self, process: Process) -> Effects:
        """A process' own time and chance."""
        return Effects(
            now_s=process.now_s, time_us=lambda: 0, sleep=process.sleep, uniform=self.rng.uniform, token=self.token
        )

    def run_coordinator(
        self,
        name: str,
        key: GroupKey,
        head: Heads,
        stores: Callable[[Process, Effects], tuple[Link, Ownership, Objects]],
        restart_us: tuple[int, int],
        life_us: int = 0,
    ) -> None:
        """Begin a coordinator process of a group, which is started again whenever it dies; after `life_us` it stops in
        good order, if that is not 0.
        """
        process = self.process(name)
        effects = self.effects(process)
        link, store, objects = stores(process, effects)
        stop_us = self.scheduler.now_us + life_us
        begin = partial(self.run_coordinator, name, key, head, stores, restart_us, life_us)

        def again() -> None:
            self.scheduler.push(begin, self.rng.randint(*restart_us))

        def killed() -> None:
            self.counts["coordinator restarts"] += 1
            again()

        def log(level: str, event: str, /, **facts: FieldValue) -> None:
            if self.history.keep:
                self.history.remember(f"{self.scheduler.now_us} {process.name} {level} {event} {facts}")

        def stopping() -> bool:
            return life_us > 0 and self.scheduler.now_us >= stop_us and not self.weather.calm

        def run() -> None:
            coordinate(self._timers, process, link, store, objects, head, effects, log, stopping, key)
            self.counts["coordinator stops"] += 1
            process.on_killed = again
            process.alive = False

        process.on_killed = killed
        process.spawn("main", run)

    def calm(self) -> None:
        """No faults from now on; frozen processes wake up."""
        self.weather.calm = True
        for process in self.scheduler.processes:
            process.frozen_until_us = min(process.frozen_until_us, self.scheduler.now_us + SECOND_US)

    def outcome(self) -> Outcome:
        """What the world came to."""
        return Outcome(
            seed=self._seed,
            steps=self.scheduler.steps,
            simulated_us=self.scheduler.now_us,
            history=self.history.digest,
            facts=self.history.count,
            counts=self.counts,
        )
