"""One simulated world of a query, or of jobs, that write into queues: what the application does with its batches, what
befalls Spark's checkpoint, and what a person does when the sink refuses.
"""

from __future__ import annotations

import hashlib
import random
import re
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.log import connect
from partq_spark.log.publish import Full, Outdated
from tests.log.queues import BEGIN_US
from tests.simulation.sink.judge import APPLICATION, NOISE, Attempt, Judge, Part
from tests.simulation.sink.plan import Plan, Row, attracts
from tests.simulation.sink.queues import Queues, text_of
from tests.simulation.sink.source import Source
from tests.simulation.sink.spark import Span, SparkCheckpoint, Write, columns_of
from tests.support.judge import demand
from tests.support.scheduler import Crash
from tests.world.outcome import Outcome

MOST_RUNS: Final = 60
CALM_RUNS: Final = 12  # of them, at the end: without faults


class Stopped(Exception):
    """The query or job ends: its process was killed."""


class World:
    """Everything of one seed. `keep`: so many facts are kept to be shown."""

    def __init__(self, plan: Plan, *, keep: int = 0) -> None:
        self.plan = plan
        self.queues = Queues(plan)
        self.rng, self.counts = self.queues.rng, self.queues.counts
        self.judge = Judge(read=self.queues.read, counts=self.counts)
        self.source = Source(plan, self.rng, self.counts)
        self.facts: deque[str] = deque(maxlen=keep)
        self._digest, self._count, self._names = hashlib.blake2b(digest_size=16), 0, 0
        self._begin_anew()
        self.application = self._name("app")

    def note(self, text: str) -> None:
        """A fact of the history."""
        self._count += 1
        self._digest.update(text.encode())
        self.facts.append(text)

    def _name(self, of: str) -> str:
        self._names += 1
        return f"{of}-{self._names}"

    def _begin_anew(self) -> None:
        self.spark = SparkCheckpoint(query=self._name("query"))

    def _chance(self, rate: float) -> bool:
        return not self.queues.calm and self.rng.random() < rate

    def _happen(self, chance: float) -> None:
        for told in self.queues.happen(chance):
            self.note(told)
            self.judge.look_at_all(told.split()[-1])

    # --- runs of the query --------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """From beginning to end. Raises `Violation`, or whatever the code under test should not have raised."""
        with self.queues.entered():
            self.queues.create()
            for name in self.queues.names:
                self.judge.look(name)
            self.queues.calm = False
            self._triggers = self.plan.triggers
            for run in range(MOST_RUNS):
                if self._triggers == 0 or run == MOST_RUNS - CALM_RUNS:
                    self._calm()
                try:
                    self._run()
                except Stopped:
                    self._restart()
                except PartqError as error:
                    if _is_refusal(error):
                        self._resolve(error)
                    elif isinstance(error, Full):
                        self.queues.emptied()
                else:
                    break
            else:
                demand(self.plan.kind == "two writes", "the query does not come to its end in", MOST_RUNS, "runs")
            self._check_all_of_it()
        return Outcome(
            seed=self.plan.seed,
            steps=sum(len(each) for each in self.judge.contents.values()),
            simulated_us=self.queues.base.clock.now_us - BEGIN_US,
            history=self._digest.hexdigest(),
            facts=self._count,
            counts=self.counts,
        )

    def _calm(self) -> None:
        """No faults from now on, and nothing is on its way any more."""
        self._triggers, self.queues.calm = 0, True
        self.queues.emptied()
        while self.queues.late:
            self.queues.land(1.0)
        self.judge.arrived()
        self.judge.pending.clear()

    def _run(self) -> None:
        """One life of the driver, until there is nothing more to do."""
        connect._open.clear()
        connect._namespaces.clear()
        batch, span = self.spark.next_batch()
        while True:
            repeats = span is not None
            if span is None:
                if self._triggers > 0:
                    self._triggers -= 1
                    self.source.arrive()
                span = self.source.span(self.spark.offsets.get(max(self.spark.offsets, default=-1)))
                if span is None:
                    if self._triggers > 0:
                        continue
                    return
                self._log(batch, span)
            self._happen(self.plan.events if repeats else self.plan.events / 3)
            self._batch(batch, self.source.given(span, repeats=repeats))
            if self._chance(self.plan.cut_off):
                self.counts["cut off before Spark's commit"] += 1
                raise Stopped
            self._log(batch, None)
            batch, span = batch + 1, None
            if self._chance(0.05):
                raise Stopped

    def _log(self, batch: int, span: Span | None) -> None:
        self.note(f"{'offsets' if span else 'commits'}/{batch} {span}")
        self.spark.write(batch, span)

    def _restart(self) -> None:
        """Before it is started again, something may happen to Spark's checkpoint."""
        self.counts["restarts"] += 1
        self._happen(self.plan.events)
        if self.plan.healthy or not self._chance(0.3):
            return
        deed = self.rng.choice(("older copy", "both logs cut", "offsets cut", "commits cut"))
        entries = self.rng.randint(1, 3)
        self.note(f"{deed} by {entries}")
        self.counts[deed] += 1
        if deed == "older copy":
            self.spark.restore(2 * entries + self.rng.randint(-1, 1))
        else:
            self.spark.cut(0 if deed == "commits cut" else entries, 0 if deed == "offsets cut" else entries)

    # --- a batch ------------------------------------------------------------------------------------------------------

    def _batch(self, batch: int, rows: list[Row]) -> None:
        """What the application does with it."""
        app, by = self.application, 3 if self.plan.kind == "two writes" else 2
        some, others = [row for row in rows if row.number % by], [row for row in rows if not row.number % by]
        match self.plan.kind:
            case "stream" | "typed":
                self._write("orders", batch, None, rows)
            case "fan-out":
                self._write(None, batch, None, rows)
            case "two queues":
                self._write("orders", batch, app, rows)
                self._write("audit", batch, app, some)
            case "two writes":
                self._write("orders", batch, app, some)
                self._write("orders", batch, app, others)
            case "two applications":
                self._write("orders", batch, f"{app}-a", some)
                self._write("orders", batch, f"{app}-b", others)
            case _:
                self._write("orders", batch, app, rows)

    def _write(self, queue: str | None, batch: int, application: str | None, rows: list[Row]) -> None:
        tasks = self._tasks(rows)
        query = None if self.plan.kind == "jobs" else self.spark.query
        write = Write(
            plan=self.plan,
            url=self.queues.url,
            queue=queue,
            query=query,
            batch=batch,
            application=application,
            tasks=tasks,
            again=frozenset(task for task in range(len(tasks)) if self._chance(0.05)),
        )
        parts = [self._part(name, tasks, by_topic=queue is None) for name in ([queue] if queue else self.queues.names)]
        writer = APPLICATION + application if application else self.spark.query
        attempt = Attempt(writer=writer, batch=batch, owner=query, parts=[part for part in parts if part.rows])
        self.queues.land(0.3)
        self.judge.arrived()
        self.queues.landed = False
        self.note(f"batch {batch} of {writer} to {queue}: {tasks}")
        error: BaseException | None = None

        def between() -> None:
            self._happen(self.plan.events / 5)
            self.queues.reads = 0

        try:
            write.run(between)
        except (PartqError, Crash) as raised:
            error = raised
        self.note("accepted" if error is None else f"{type(error).__name__} {error}")
        refused = _is_refusal(error)
        demand(not (refused and self.plan.healthy), "a healthy query was refused:", error)
        full, landed, reads = isinstance(error, Full), self.queues.landed, self.queues.reads
        self.judge.tried(attempt, error, refused=refused, full=full, disturbed=landed, reads=reads)
        if refused and "belongs to query" not in str(error):
            wanted = (f"batch {batch}", application or writer, "--as published", "--as new", "begin anew")
            demand(all(each in str(error) for each in wanted), "the error says too little:", error)
        if isinstance(error, Crash):
            raise Stopped
        if error is not None:
            raise error

    def _tasks(self, rows: list[Row]) -> list[list[Row]]:
        """As many as Spark likes, with rows in an order of its own; in half of the seeds as in the try before."""
        rng = random.Random(f"tasks {self.plan.seed}") if self.plan.seed // 10 % 2 else self.rng
        tasks: list[list[Row]] = [[] for _ in range(rng.randint(1, 3))]
        for row in rows:
            tasks[rng.randrange(len(tasks))].append(row)
        return tasks

    def _part(self, name: str, tasks: Sequence[Sequence[Row]], *, by_topic: bool) -> Part:
        mine = tuple(tuple(row for row in rows if not by_topic or attracts(name, row)) for rows in tasks)
        head = self.queues.base.handle(name).refresh()
        rows = Counter(text_of(columns_of(self.plan, row)) for each in mine for row in each)
        return Part(queue=name, rows=rows, shape=(head.layout.generation, head.columns, mine))

    # --- a person, and the end ----------------------------------------------------------------------------------------

    def _resolve(self, error: PartqError) -> None:
        """A person reads what was refused, and does one of the things that it says."""
        deed = self.rng.choice(("published", "new", "anew", "wait"))
        if deed == "wait" and not self.queues.calm:
            return
        commands = [_arguments(each) for each in re.findall(r"partq queue resolve [^`;,]+", str(error))]
        commands = [each for each in commands if each["--as"] == deed]
        self.note(f"a person: {deed} {commands}")
        self.counts[f"resolved: {deed if commands else 'anew'}"] += 1
        if not commands:
            self._begin_anew()
            if self.queues.calm or self.rng.random() < 0.7:
                self.application = self._name("app")
        self.judge.arrived()  # what had been late is known to the queues already
        for each in commands:
            writer, batch = each["--writer"], int(each["--batch"])
            with self.queues.undisturbed():
                queue = self.queues.queue(each["queue"])
                queue.resolve(writer=writer, batch=batch, published=deed == "published")
                told = repr(queue.describe())
            self.judge.resolved(writer, batch, published=deed == "published")
            demand(writer in told, "describe does not show what was resolved:", told)

    def _check_all_of_it(self) -> None:
        """A healthy query whose source gives each row once has written all of it, once, whatever the rules are."""
        for name in self.queues.names:
            self.judge.look_at_all(name)
            if not self.plan.healthy or self.plan.grouped:
                continue
            wanted = Counter(
                text_of(columns_of(self.plan, row))
                for row in self.source.rows[0]
                if (self.plan.kind != "fan-out" or attracts(name, row))
                and (self.plan.kind != "two queues" or name == "orders" or row.number % 2)
            )
            found = Counter(row for row in self.judge.contents[name].values() if not row.startswith(NOISE))
            demand(found == wanted, name, "lacks", wanted - found, "and has too much of", found - wanted)


def _is_refusal(error: BaseException | None) -> bool:
    """Not something that another try may end otherwise."""
    return isinstance(error, PartqError) and not isinstance(error, (Unavailable, Outdated, Full))


def _arguments(command: str) -> dict[str, str]:
    """The queue, and the options with a value."""
    _, _, _, queue, *rest = shlex.split(command)
    options = [each for each in rest if each != "--yes"]
    return {"queue": queue, **dict(zip(options[::2], options[1::2], strict=True))}


def run_seed(seed: int, *, keep: int = 0) -> Outcome:
    """One world from beginning to end."""
    return World(Plan.draw(seed), keep=keep).play()
