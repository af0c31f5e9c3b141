"""One simulated world of streaming queries: the queue, its coordinators, the queries, and what befalls them.

What Spark does is in `spark`, what the queries' own code does in `application`, what must be true in `judge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Fenced, Invalid, ObjectMissing, PartqError
from partq_spark.group.ownership import Ownership
from partq_spark.log.model import QueueConfig
from tests.simulation.base import MOST_STEPS, SimulatedWorld
from tests.simulation.links import Link
from tests.simulation.objects import Objects
from tests.simulation.queries.accidents import Accidents
from tests.simulation.queries.application import OurCode
from tests.simulation.queries.exact import ExactJudge
from tests.simulation.queries.judge import Group, Judge
from tests.simulation.queries.plan import Plan, QueryPlan, SourcePlan
from tests.simulation.queries.reader import Interrupted, Reader, ReaderDied
from tests.simulation.queries.spark import Execution, QueryFailed, SparkCheckpoint
from tests.simulation.queries.stores import GroupHead, TheQueue, TrueStore, key_of, opened_by
from tests.support.judge import Violation, demand
from tests.support.scheduler import SECOND_US, Process
from tests.world.outcome import Outcome, quiet

LOOK_US = SECOND_US // 2
SETTLE_US = 60 * SECOND_US
KEYS = 12
CALM_FAILURES = 4


@dataclass(slots=True)
class Query:
    """A streaming query over all of its runs. `spark` is what survives."""

    plan: QueryPlan
    spark: SparkCheckpoint = field(default_factory=SparkCheckpoint)
    runs: int = 0
    running: list[Execution] = field(default_factory=list)
    retired: bool = False  # another query has taken its place
    otherwise: Mapping[str, str | None] = field(default_factory=dict)  # options of its next run; None: left out
    other_ack_mode: bool = False  # for good, because its Spark checkpoint asks for it
    orphaned: bool = False  # its group was removed
    held_until_us: int = 0  # somebody keeps it from running
    failures: int = 0  # since all is calm
    last_error: str = ""

    @property
    def present(self) -> Execution | None:
        """The run that somebody would look at."""
        return next((each for each in reversed(self.running) if not each.stopping and not each.abandoned), None)

    def source(self, number: int, *, calm: bool) -> SourcePlan:
        """A load, with the options of the present run."""
        source = self.plan.sources[number]
        options = dict(source.options) if calm else {**source.options, **self.otherwise}
        if self.other_ack_mode:
            options["ackMode"] = "auto" if options["ackMode"] == "manual" else "manual"
        return SourcePlan(group=source.group, options={name: each for name, each in options.items() if each})


class World(SimulatedWorld):
    """Everything of one seed."""

    def __init__(self, plan: Plan, *, keep: int = 0) -> None:
        self.plan = plan
        self.judge = Judge()
        super().__init__(plan, "run queries", self.judge.lease, keep)
        self.exact = ExactJudge(self.judge.queue)
        for group in filter(lambda group: group.name, plan.groups):
            self.judge.groups[group.name] = Group(group.name, group.keeps, plain=plan.is_plain and group.is_simple)
        self.store = TrueStore(self.scheduler, self._tokens, self.history, self.judge)
        config = QueueConfig(rebalance_delay_s=plan.rebalance_delay_s, max_handoff_time_s=plan.handoff_s)
        self.queue = TheQueue(self.store, self.scheduler, config, plan.partitions)
        self.store.on_head = self._look_at_head
        self.queries = [Query(query) for query in plan.queries]
        self.readers: dict[str, Reader] = {}
        self.accidents = Accidents(self)
        self._made: set[str] = set()

    def _look_at_head(self) -> None:
        """It has changed."""
        groups = self.queue.head.groups
        for name in sorted(self._made - groups.keys()):
            self._made.remove(name)
            self.judge.removed(name)
        for name, group in groups.items():
            if name not in self._made:
                self._made.add(name)
                self.judge.made(name, group.start, group.since_sequence)

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_coordinator(self, group: str, number: int) -> None:
        """Of that group."""

        def stores(process: Process, effects: Effects) -> tuple[Link, Ownership, Objects]:
            link = Link(process, self.weather)
            return link, self.server.open(link, effects), Objects(self.store, link)

        restart_us = (SECOND_US, 5 * SECOND_US)
        self.run_coordinator(f"c{number}-{group}", key_of(group), GroupHead(self.queue, group), stores, restart_us)

    def new_reader(self, query: Query, execution: Execution | None, process: Process, source: int) -> Reader:
        """A reader process for one source of a run; one that it replaces is killed."""
        number = len(self.readers)
        if execution is not None:
            self.scheduler.kill(execution.readers[source])
        origin_s, rate = process.origin_s, process.rate

        def siblings() -> list[Process]:
            found = next((each for each in query.running if each.process is process), None)
            return [process, *(found.readers if found is not None else ())]

        self.readers[f"file:///sim/{number}"] = reader = Reader(
            f"{process.name}/{source}.{number}",
            number,
            query.source(source, calm=self.weather.calm),
            scheduler=self.scheduler,
            weather=self.weather,
            store=self.store,
            server=self.server,
            history=self.history,
            token=self.token,
            origin_s=origin_s,
            rate=rate,
            siblings=siblings,
        )
        self.scheduler.processes.append(reader)
        return reader.begin()

    # --- queries ------------------------------------------------------------------------------------------------------

    def add(self, plan: QueryPlan, delay_us: int) -> None:
        """A query more."""
        query = Query(plan)
        self.queries.append(query)
        self.scheduler.push(partial(self.start, query), delay_us)

    def start(self, query: Query) -> None:
        """Begin a run of a query, unless somebody else has."""
        if query.present is not None or query.retired:
            return
        if (wait_us := query.held_until_us - self.scheduler.now_us) > 0:
            self.scheduler.push(partial(self.start, query), wait_us)
            return
        if query.orphaned and not query.spark.offsets:
            self.begun_anew(query)
        query.runs += 1
        process = self.process(f"{query.plan.name}.{query.runs}")
        application = OurCode(query.plan, self.judge, self.history, self.weather, self.rng, self.counts)
        execution = Execution(
            query.plan,
            process,
            query.spark,
            [self.new_reader(query, None, process, source) for source in range(len(query.plan.sources))],
            lambda source: self.new_reader(query, execution, process, source),
            application,
            self.judge,
            self.exact,
            self.history,
            self.weather,
            self.rng,
            self.counts,
        )
        application.execution = execution
        execution.otherwise = bool(query.otherwise) and not self.weather.calm
        query.running.append(execution)
        process.on_killed = lambda: self._killed(query, execution)
        process.spawn("spark", lambda: self._run(query, execution))
        if any(reader.options.group is not None and reader.options.group.manual_acks for reader in execution.readers):
            process.spawn("application", application.look_after)

    def _run(self, query: Query, execution: Execution) -> None:
        error: Exception | None = None
        try:
            execution.run()
        except Interrupted:
            self.counts["query stops"] += 1
        except (PartqError, QueryFailed, ReaderDied) as failed:
            error = failed
        self.interrupt(execution)
        for reader in execution.readers:
            if reader.alive:
                reader.stop()
        self._ended(query, execution, error)
        execution.process.on_killed = lambda: None
        execution.process.alive = False

    def _killed(self, query: Query, execution: Execution) -> None:
        self.counts["query killed"] += 1
        for reader in execution.readers:
            if reader.alive:
                self.scheduler.kill(reader)
        self._ended(query, execution, None)

    def _ended(self, query: Query, execution: Execution, error: Exception | None) -> None:
        query.running.remove(execution)
        self.history.note(f"{self.scheduler.now_us} {execution.process.name} ends: {error}")
        if isinstance(error, Corrupt | ObjectMissing):
            raise Violation(f"{execution.process.name} fails: {error!r}")
        if error is not None:
            self.counts["query fails"] += 1
            self.counts["query refused"] += isinstance(error, Invalid)
            if self.weather.calm:
                query.failures += 1
                query.last_error = f"{type(error).__name__}: {error}"
                demand(query.failures <= CALM_FAILURES, f"{query.plan.name} fails for ever:", query.last_error)
            if isinstance(error, Invalid) and "partq group alter" in str(error) and not execution.otherwise:
                self.accidents.share_as_told(query)
            if isinstance(error, Invalid) and query.running:
                query.running[-1].abandoned = False  # refused because the former run lives: then that one is kept
            if isinstance(error, Invalid) and "ackMode" in str(error):
                query.other_ack_mode = not query.other_ack_mode  # the user does what the error says
            if query.orphaned and isinstance(error, Invalid | Fenced):
                self.counts["begun anew"] += 1
                query.spark = SparkCheckpoint()
                self.begun_anew(query)
        if execution.otherwise:
            query.otherwise = {}
        pause_us = SECOND_US if self.weather.calm else int(query.plan.pause_us * (0.5 + self.rng.random()))
        self.scheduler.push(partial(self.start, query), pause_us)

    def begun_anew(self, query: Query) -> None:
        """Nobody asks any more where it was."""
        query.orphaned = False
        for source in query.plan.sources:
            self.judge.begun_anew(source.group)

    def interrupt(self, execution: Execution) -> None:
        """Spark's SIGTERM: it ends in good order, as soon as it notices."""
        execution.stopping = True
        for reader in execution.readers:
            reader.interrupted = True

    # --- from beginning to end ----------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Now and then a few messages."""
        keys = self.rng.choices(range(KEYS), k=self.rng.randint(1, 5))
        self.judge.queue.publish(self.queue.partitions, keys)
        self.queue.publish(keys)
        self.history.note(f"{self.scheduler.now_us} published {keys}")
        if not self.weather.calm:
            self.scheduler.push(self.publish, int(self.plan.publish_us * (0.2 + 1.6 * self.rng.random())))

    def calm(self) -> None:
        """No faults from now on; frozen processes wake up, and those that ended their work begin again. That a run has
        other options than it should have is a fault, too: as long as it runs, runs with the right ones may be refused.
        """
        super().calm()
        self.history.note(f"{self.scheduler.now_us} all is calm")
        for query in self.queries:
            # Without a group only Spark's logs tell two runs of a query apart, and they end now one, now the other.
            alone = any(not source.group for source in query.plan.sources)
            for execution in query.running:
                if execution.otherwise or (alone and execution.abandoned):
                    self.interrupt(execution)

    def play(self) -> Outcome:
        """Let everything happen, then wait until all is well. Raises `Violation`, or what should not have been
        raised.
        """
        plan, scheduler = self.plan, self.scheduler
        for group in plan.groups:
            for number in range(plan.coordinators) if group.shared else ():
                scheduler.push(partial(self.start_coordinator, group.name, number), self.rng.randrange(SECOND_US))
        for query in self.queries:
            scheduler.push(partial(self.start, query), query.plan.begins_us)
        accidents = self.accidents
        if any(what == "lose" for _, what, _ in plan.accidents):
            accidents.remember()
        for at_us, what, number in plan.accidents:
            scheduler.push(partial(accidents.happen, what, number), at_us)
        scheduler.push(self.calm, plan.calm_us)
        self.publish()
        with opened_by(self.readers.__getitem__):
            try:
                scheduler.run(plan.calm_us, MOST_STEPS)
                self._settle()
            finally:
                scheduler.end()
        self.counts["messages repeated"] += self.judge.repeated
        return self.outcome()

    def _settle(self) -> None:
        """It need not be quick, but it has to go on."""
        least, since_us = None, self.scheduler.now_us
        while left := self._left():
            amount = self.judge.amount() + self._left_without_group()
            if least is None or amount < least:
                least, since_us = amount, self.scheduler.now_us
            demand(
                self.scheduler.now_us < since_us + SETTLE_US,
                f"nothing has become better for {SETTLE_US / SECOND_US:.0f} s after the last fault:",
                left,
            )
            self.scheduler.run(self.scheduler.now_us + LOOK_US, MOST_STEPS)

    def _left(self) -> str:
        for query in self.queries:
            if query.present is None and not query.retired:
                return f"{query.plan.name} does not run: {query.last_error}"
        if left_over := self._left_without_group():
            return f"queries without a group have {left_over} messages left"
        return self.judge.backlog()

    def _left_without_group(self) -> int:
        """By where Spark is."""
        return sum(
            self.exact.left(query.plan.name, number, _committed(query.present, number))
            for query in self.queries
            if not query.retired
            for number, source in enumerate(query.plan.sources)
            if not source.group
        )


def _committed(execution: Execution | None, source: int) -> str:
    """The end of the last batch that is complete, as text; empty: there is none yet."""
    if execution is None or not execution.committed:
        return ""
    return execution.committed[source]


def run_seed(seed: int, *, keep: int = 0) -> Outcome:
    """One world from beginning to end. Raises `Violation`, or whatever the code under test should not have raised."""
    with quiet():
        return World(Plan.draw(seed), keep=keep).play()
