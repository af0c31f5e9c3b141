"""A world in which processes run the real log: its time, its one true store, how processes begin, die and are replaced.

What the processes do is in `actors`; what must be true is in `oracle`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, Unavailable
from partq_spark.log import names
from partq_spark.log.publish import Outdated
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Columns
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.retrying import Retrying
from tests.log import payloads
from tests.log.oracle import Oracle
from tests.log.plans import BEGIN_US, GRACE_US, MOST_SKEW_US, NAMESPACE, QUEUE, Outcome, Plan
from tests.log.watched import WatchedStore
from tests.support.faulty import FaultyStore
from tests.support.judge import Violation, demand
from tests.support.scheduler import SECOND_US, Scheduler


@dataclass(slots=True)
class Job:
    """What survives a process: a query's Spark checkpoint, or the work list of a person who starts command lines."""

    name: str
    batch: int = 1
    last: int = 0
    process: int = 0  # the one that is in charge; an older one that wakes up ends after what it is doing
    refused: int = 0  # how often in a row, because there is no queue


class Simulation:
    """One world: a scheduler, a store, an oracle, and the processes that are started in it."""

    def __init__(self, plan: Plan, conditional: bool = True) -> None:
        self.plan = plan
        self.rng = random.Random(f"run {plan.seed}")
        self.scheduler = Scheduler(self.rng, BEGIN_US)
        self.outcome = Outcome(seed=plan.seed)
        self.truth = WatchedStore(clock=lambda: self.scheduler.now_us / 1e6, rng=self.rng, conditional=conditional)
        self.oracle = Oracle(
            names.queue_folder(NAMESPACE, QUEUE),
            names.head_name(NAMESPACE, QUEUE),
            lambda: self.scheduler.now_us,
            GRACE_US,
            2 * MOST_SKEW_US + 1,
        )
        self.truth.oracle = self.oracle

    # --- the world around the processes -------------------------------------------------------------------------------

    def effects(self) -> Effects:
        skew_us = self.rng.randint(-MOST_SKEW_US, MOST_SKEW_US)
        return Effects(
            time_us=lambda: self.scheduler.now_us + skew_us,
            now_s=lambda: self.scheduler.now_us / 1e6,
            sleep=lambda seconds: self.scheduler.sleep_us(int(seconds * 1e6)),
            uniform=self.rng.uniform,
        )

    def quiet(self) -> QueueLog:
        """A handle without faults, for setting up and for looking afterwards."""
        effects = replace(self.effects(), time_us=lambda: self.scheduler.now_us)
        return QueueLog(self.truth, NAMESPACE, QUEUE, effects, sizes=self.plan.sizes)

    def first_columns(self) -> Columns | None:
        """Those that the queue begins with, if it is typed."""
        return payloads.first_columns() if self.plan.alterers else None

    def pause(self, times: float = 1.0) -> None:
        self.scheduler.sleep_us(int(self.plan.pause_us * times * self.rng.uniform(0.1, 2.0)))

    def count(self, what: str) -> None:
        self.outcome.counts[what] += 1

    def start(self, body: Callable[[Process, Job], None], job: Job) -> None:
        """Run `body` as a process; killed, it is started again with what is left of `job`."""
        job.process += 1
        process = Process(self, job, body)
        simulated = self.scheduler.process(f"{job.name}/{job.process}")
        simulated.on_killed = process.killed
        simulated.spawn("main", process.run, self.rng.randrange(SECOND_US))


class Process:
    """One simulated process: its own store, clock and handles. What it knows dies with it."""

    def __init__(self, world: Simulation, job: Job, body: Callable[[Process, Job], None]) -> None:
        self.world = world
        self.job = job
        self.number = job.process
        self._body = body
        self.effects = world.effects()
        rates = world.plan.rates
        if world.rng.random() < world.plan.brisk:
            rates = replace(rates, nap=0.0)
        self.faulty = FaultyStore(world.truth, world.scheduler, rates, world.outcome.counts, self._taken_for_dead)
        self.store: ObjectStore = self.faulty
        if world.plan.retrying:
            self.store = Retrying(self.faulty, 30.0, self.effects)

    def in_charge(self) -> bool:
        return self.number == self.job.process

    def queue(self) -> QueueLog:
        return QueueLog(self.store, NAMESPACE, QUEUE, self.effects, sizes=self.world.plan.sizes)

    def run(self) -> None:
        self._body(self, self.job)

    def killed(self) -> None:
        if self.in_charge():
            self.world.start(self._body, self.job)

    def _taken_for_dead(self, nap_us: int) -> None:
        if self.in_charge() and nap_us > 600 * SECOND_US and self.world.rng.random() < 0.3:
            self.world.count("replaced while asleep")
            self.world.start(self._body, self.job)

    @contextmanager
    def tolerating(self, queue_id: str | None = None) -> Iterator[None]:
        """Errors that a caller must expect here; anything else is a violation.

        Damage that was injected may show as `Corrupt`; a queue that is gone may be said to be.
        """
        damaged = self.faulty.damaged
        try:
            yield
        except Unavailable:
            self.world.count("gave up")
        except Outdated:
            raise
        except Conflict:
            self.world.count("gave up")
        except ObjectMissing as error:
            raise Violation(f"{self.job.name}: {error}") from error
        except Corrupt as error:
            if damaged == self.faulty.damaged:
                raise Violation(f"{self.job.name}: {error}") from error
            self.world.count("damage noticed")
        except Invalid as error:
            demand(queue_id is None or not self.world.oracle.still(queue_id), self.job.name, error)
            self.world.count("queue gone")
