"""Streaming queries of a world, over all of their runs: what befalls them and their Spark checkpoints, and what people
do about those that are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import partq
from tests.world.drivers import Driver
from tests.world.facts import Befell
from tests.world.plan import Event
from tests.world.processes import Actor
from tests.world.query_plan import HARMING, QueryPlan
from tests.world.scheduler import SECOND_US, Process
from tests.world.sinks import is_refusal, ways_out
from tests.world.spark import SparkCheckpoint

if TYPE_CHECKING:
    from tests.world.world import World

_AGAIN_S: Final = 1.0


class Query(Actor):
    """A query from the queue of the world into others, or nowhere, started again when it ends."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.spark: SparkCheckpoint
        self.begun = 0  # how often with an empty Spark checkpoint
        self.running: list[Driver] = []
        self.is_healthy = True
        self.is_retired = False  # another query has taken its place
        self.otherwise: dict[str, str] = {}  # options of its next run; empty texts: left out
        self.has_other_ack_mode = False  # for good, because its Spark checkpoint asks for it
        self._held_until_us = 0
        self._failures = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        self.begun += 1
        self.spark = SparkCheckpoint(f"{self.rng.getrandbits(128):032x}")

    def flow(self, load: int) -> str:
        return self.name if not load else f"{self.name}-{load}"

    @property
    def plan(self) -> QueryPlan:
        return self.world.plan.query

    @property
    def is_alive(self) -> bool:
        return any(process.alive for life in self.running for process in life.processes)

    @property
    def present(self) -> Driver | None:
        """The run that somebody would look at."""
        return next((life for life in reversed(self.running) if life.process.alive and not life.is_abandoned), None)

    # --- coming and going ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_done or self.present is not None:
            return
        wait_us = self._held_until_us - self.world.now_us
        if wait_us > 0:
            self.world.scheduler.push(self.start, wait_us)
            return
        self.lives += 1
        life = Driver(self, self.lives)
        self.running.append(life)
        self.process, self.host = life.process, life.host
        life.begin()

    def ended(self, life: Driver) -> None:
        """From the end of a run's driver, in whatever way."""
        world, error = self.world, life.error
        self.running = [each for each in self.running if any(process.alive for process in each.processes)]
        if self.is_done:
            return
        if error is not None:
            self.befell(f"query ends: {type(error).__name__}")
            if isinstance(error, partq.Corrupt):
                world.machine.deaths.append(error)
            if "has written commits" in str(error):
                self.spark.forget_commits()  # Spark says so for ever, and somebody does what it takes
            self._failures += world.is_calm
            if self._failures > 12:
                world.machine.deaths.append(AssertionError(f"{self.name} fails for ever: {error}"))
            if "ackMode" in str(error) and is_refusal(error):
                self.has_other_ack_mode = not self.has_other_ack_mode  # the user does what the error says
            self._keep_former(error)
        else:
            self.befell("query ends")  # its last batch is not acknowledged before its next run
        if life.is_otherwise:
            self.otherwise = {}
        pause_s = _AGAIN_S if world.is_calm else self.plan.pause_s
        world.scheduler.push(self.start, round(pause_s * SECOND_US))

    def _keep_former(self, error: Exception) -> None:
        """Refused because the former run lives: then that one is kept."""
        former = [life for life in self.running if life.process.alive]  # the reader of the one refused may yet live
        if is_refusal(error) and former:
            former[-1].is_abandoned = False

    def kill(self) -> None:
        if self.present is not None:
            self.present.kill()

    def stop(self) -> None:
        for life in list(self.running):
            if self.is_done or not life.is_abandoned:
                life.interrupt()

    def calm(self) -> None:
        """Nothing befalls it any more: runs with other options than they should have are ended, and without a group
        those, too, whose Spark checkpoint another one uses.
        """
        self.otherwise = {}
        for life in list(self.running):
            if life.is_otherwise or (life.is_abandoned and not self.plan.how.grouped):
                life.interrupt()

    def befell(self, what: str) -> None:
        """Spark ends a query without a word to its source about the last batch, so everything is an accident."""
        self.world.counts[what] += 1
        self.world.take(Befell(self.world.now_us, what, self.name, True))

    def freeze(self, processes: Sequence[Process], lasts_us: int) -> None:
        for process in processes:
            process.freeze(lasts_us)

    # --- what befalls it ----------------------------------------------------------------------------------------------

    def befall(self, event: Event) -> Callable[[], None] | None:
        """From a timer: something happens; what is to happen when it is over."""
        life = self.present
        if life is None or self.is_done:
            return None
        self.is_healthy &= event.what not in HARMING
        deeds: Mapping[str, Callable[[Driver, Event], Callable[[], None] | None]] = {
            "stop": self._end,
            "kill": self._end,
            "kill the driver": self._kill_one,
            "kill the reader": self._kill_one,
            "restore": self._harm,
            "logs cut": self._harm,
            "twin": self._twin,
            "successor": self._succeed,
            "ack mode": self._run_otherwise,
            "ownership": self._run_otherwise,
        }
        return deeds.get(event.what, self._freeze)(life, event)

    def _end(self, life: Driver, event: Event) -> Callable[[], None]:
        self._held_until_us = self.world.now_us + round(event.for_s * SECOND_US)
        (life.interrupt if event.what == "stop" else life.kill)()
        return self.start

    def _kill_one(self, life: Driver, event: Event) -> None:
        readers = [reader.process for reader in life.readers]
        is_driver = event.what == "kill the driver" or not readers
        self.world.scheduler.kill(life.process if is_driver else readers[event.number % len(readers)])

    def _freeze(self, life: Driver, event: Event) -> None:
        of = {"freeze the driver": life.processes[:1], "freeze the reader": life.processes[1:]}
        self.freeze(of.get(event.what, life.processes), round(event.for_s * SECOND_US))

    def _harm(self, life: Driver, event: Event) -> None:
        """Spark's logs are not what they were."""
        life.kill()
        if event.what == "restore":
            self.spark.restore(event.number)
        else:
            which, count = event.number % 3, 1 + event.number // 3
            self.spark.cut(0 if which == 1 else count, 0 if which == 2 else count)
            if not self.plan.how.grouped:
                self.spark.forget_commits()  # or Spark would skip a batch by its number, and nobody could know it

    def _twin(self, life: Driver, event: Event) -> None:
        """It freezes, and somebody starts it elsewhere."""
        if self.plan.logs_every == 1:  # else nothing tells Spark of the other run
            self._freeze(life, event)
            life.is_abandoned = True
            self.world.scheduler.push(self.start, round((1.0 + event.for_s / 3) * SECOND_US))

    def _succeed(self, life: Driver, event: Event) -> None:
        """Another query with another name and a Spark checkpoint of its own, whatever becomes of this one."""
        self.is_done = self.is_retired = True
        if event.number % 3 == 0:
            life.interrupt()
        elif event.number % 3 == 1:
            self.freeze(life.processes, round(event.for_s * SECOND_US))
        else:
            life.kill()
        heir = Query(self.world, f"{self.name}-heir")
        self.world.actors[heir.name] = heir
        self.world.scheduler.push(heir.start, SECOND_US)

    def _run_otherwise(self, life: Driver, event: Event) -> Callable[[], None] | None:
        """Its next run has other options, until somebody notices; a sink keeps it from being ended by hand."""
        how, what = self.plan.how, event.what
        if not how.grouped or self.plan.loads > 1 or (what == "ack mode" and not how.keeps):
            return None
        if what == "ack mode":
            self.otherwise = {"ackMode": "auto" if how.by_hand else "manual"}
        elif how.shared:
            self.otherwise = {"ownership": "none", "sessionTimeout": "", "maxPollInterval": ""}
        else:
            self.otherwise = {"ownership": "store"}
        life.interrupt()

        def noticed() -> None:
            self.otherwise = {}
            if self.present is not None and self.present.is_otherwise:
                self.present.interrupt()

        return noticed

    # --- a person -----------------------------------------------------------------------------------------------------

    def resolve(self, error: Exception) -> None:
        """A person reads what the sink refused, and does one of the things that it says. By the driver's own strand."""
        world = self.world
        if "partq queue resolve" not in str(error):
            return
        deed = self.rng.choice(("published", "new", "anew"))
        commands = ways_out(str(error), deed)
        world.counts[f"resolved: {deed if commands else 'anew'}"] += 1
        if not commands:
            self.begin_anew()
            return
        for each in commands:
            world.resolve(each["queue"], each["writer"], int(each["batch"]), is_published=deed == "published")
