"""What Spark's MicroBatchExecution does with a query and its checkpoint, in Spark's order, over simulated reader
processes (spark-traps.md 1, 4, 5, 6, 13, 23, 24, 29).

Offsets are compared and kept as text. What a batch is made of is asked for as often as the application acts on it. On
a restart the last batch that is in the offset log is repeated, unless the commit log has it; it is planned before
anything else is asked. Nothing here knows what an offset means.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from partq_spark.query import offsets
from partq_spark.query.consumer import ConsumerLoop
from partq_spark.query.offsets import BatchSpan
from tests.simulation.history import History
from tests.simulation.links import Weather
from tests.simulation.queries.exact import ExactJudge
from tests.simulation.queries.judge import Identity, Judge, Planned, Row
from tests.simulation.queries.plan import QueryPlan
from tests.simulation.queries.reader import Interrupted, Reader
from tests.support.judge import demand
from tests.support.scheduler import SECOND_US, Process

POLLING_US = 10_000  # Spark's pause after a trigger without a batch
COMMIT_US = 60_000  # to write offset log or commit log


class QueryFailed(Exception):
    """The query ends with an exception that is not partq's: the application's, or Spark's own."""


@dataclass(slots=True)
class SparkCheckpoint:
    """Offset log and commit log. `journal`: what was written, in order, as a copy made in time has it."""

    offsets: dict[int, tuple[str, ...]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    journal: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)

    def write_offsets(self, batch: int, ends: tuple[str, ...]) -> None:
        """Raises `QueryFailed` if another run of the query was faster."""
        if batch in self.offsets:
            raise QueryFailed(f"another run has written offsets/{batch}")
        self.offsets[batch] = ends
        self.journal.append(("offsets", batch, ends))

    def write_commit(self, batch: int) -> None:
        """As `write_offsets`."""
        if batch in self.commits:
            raise QueryFailed(f"another run has written commits/{batch}")
        self.commits.add(batch)
        self.journal.append(("commits", batch, ()))

    def restore(self, entries: int) -> None:
        """Become the copy that was made so many entries ago."""
        kept = self.journal[: max(0, len(self.journal) - entries)]
        self.offsets.clear()
        self.commits.clear()
        self.journal.clear()
        for kind, batch, ends in kept:
            if kind == "offsets":
                self.write_offsets(batch, ends)
            else:
                self.write_commit(batch)


class Application(Protocol):
    """What a query's own code does with its batches."""

    def handle(self, batch: Batch) -> None:
        """One call of foreachBatch. Raises `QueryFailed`."""

    def perhaps_replace(self, part: float) -> None:
        """Whether reader processes are replaced now."""


@dataclass(slots=True)
class Execution:
    """One run of a query, from its start to its end."""

    plan: QueryPlan
    process: Process
    spark: SparkCheckpoint
    readers: list[Reader]
    new_reader: Callable[[int], Reader]
    application: Application
    judge: Judge
    exact: ExactJudge
    history: History
    weather: Weather
    rng: random.Random
    counts: Counter[str]
    stopping: bool = False
    abandoned: bool = False  # it froze, and was started elsewhere
    otherwise: bool = False  # its options are not what they should be
    batch: int = 0
    committed: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    made_us: list[int] = field(default_factory=list)
    repeats: bool = False  # the present batch, from its log
    _unwritten: int = 0

    @property
    def now_us(self) -> int:
        """True time."""
        return self.process.scheduler.now_us

    @property
    def trigger(self) -> str:
        """In the end every query goes on for ever."""
        return "processing" if self.weather.calm else self.plan.trigger

    def sleep_us(self, duration_us: int) -> None:
        """Whatever the query waits for."""
        self.process.scheduler.sleep_us(duration_us)
        if self.stopping:
            raise Interrupted

    # --- Spark's loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the trigger has nothing more to do. Raises what ends a query."""
        trigger = self.trigger
        self.made_us = [self.now_us for _ in self.readers]
        if trigger == "available":
            for reader in self.readers:
                reader.ask(lambda consumer: consumer.fix_target())
        constructed = self.repeats = self._populate()
        while True:
            begun_us = self.now_us
            self.application.perhaps_replace(0.1)
            if not constructed:
                constructed = self._construct(limited=trigger != "once")
            if constructed:
                self._run_batch()
                constructed = False
            elif trigger == "available":
                return
            if trigger == "once":
                return
            if trigger == "processing":
                interval_us = 0 if self.weather.calm else self.plan.interval_us
                self.sleep_us(max(POLLING_US, begun_us + interval_us - self.now_us))

    def _populate(self) -> bool:
        """Where the last run came to; whether a batch is to be repeated."""
        initial = tuple("" for _ in self.readers)
        if not self.spark.offsets:
            self.batch, self.committed, self.available = 0, initial, initial
            return False
        latest, *before = sorted(self.spark.offsets, reverse=True)
        self.available = self.spark.offsets[latest]
        if latest in self.spark.commits:
            self.batch, self.committed = latest + 1, self.available
            return False
        self.batch, self.committed = latest, self.spark.offsets[before[0]] if before else initial
        self.counts["batches repeated"] += 1
        return True

    def _construct(self, *, limited: bool) -> bool:
        ends: list[str] = []
        self.repeats = False
        for number, reader in enumerate(self.readers):
            self.made_us[number] = self.now_us
            begins = tuple(self.judge.ends)
            question = partial(_next_end, start=_decoded(self.available[number]), limited=limited)
            ends.append(_text(reader.ask(question)))
            if ends[-1] == self.available[number]:
                continue
            if reader.source.group:
                self.judge.given(reader.source.group, self.identity(number, ends[-1]), self.made_us[number])
            else:
                is_latest = reader.source.options["startingOffsets"] == "latest"
                latest = begins if is_latest else None
                self.exact.made(self.plan.name, number, self.available[number], ends[-1], latest=latest)
        self.available = tuple(ends)
        if self.available == self.committed:
            return False
        self._unwritten += 1
        if self._unwritten >= self.plan.logs_every or self.batch == 0:
            self._unwritten = 0
            self.sleep_us(COMMIT_US)
            self.spark.write_offsets(self.batch, self.available)
        self.history.note(f"{self.now_us} {self.process.name} batch {self.batch}: {self.available}")
        return True

    def _run_batch(self) -> None:
        batch = Batch(self)
        self.application.handle(batch)
        for planned in batch.planned:
            self.judge_completed(planned)
        self.counts["batches"] += 1
        self.sleep_us(COMMIT_US)
        if self.batch in self.spark.offsets:
            self.spark.write_commit(self.batch)
        self.history.note(f"{self.now_us} {self.process.name} batch {self.batch} is complete")
        if self.plan.listener:
            for number, reader in enumerate(self.readers):
                if self.available[number] and reader.source.group:
                    reader.complete(offsets.digest(json.loads(self.available[number])))
        self.committed = self.available
        self.batch += 1

    def identity(self, source: int, end: str) -> Identity:
        """Of the present batch, as a source has it up to this end."""
        digest = hashlib.blake2b(end.encode(), digest_size=8).hexdigest()
        return Identity(self.plan.name, source, digest, self.batch)

    def freezes(self) -> bool:
        """Whether it freezes in what it is asked now."""
        found = not self.weather.calm and self.rng.random() < self.plan.freezes
        self.counts["frozen while it plans"] += found
        return found

    def freeze(self, reader: Reader) -> None:
        """For long enough, now and then, to be taken for gone."""
        reader.freeze(self.rng.randint(SECOND_US, self.weather.rates.freeze_us[1]))

    def judge_completed(self, planned: Planned) -> None:
        """Where Spark's word counts."""
        options = self.readers[planned.identity.source].options
        if options.group is not None and not options.group.manual_acks:
            self.judge.completed(planned)


class Batch:
    """A micro-batch as the application sees it: each look at its rows is a plan of its own."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.number = execution.batch
        self.planned: list[Planned] = []

    def look(self) -> None:
        """Plan it, as any action on it does. What was planned last is in `planned`."""
        execution = self._execution
        self.planned = [
            self._plan(number, reader)
            for number, reader in enumerate(execution.readers)
            if execution.available[number] != execution.committed[number]
        ]

    def _plan(self, number: int, reader: Reader) -> Planned:
        execution = self._execution
        start, text = _decoded(execution.committed[number]), execution.available[number]
        asked_us = execution.now_us

        freezes, in_plan = execution.freezes(), execution.rng.random() < 0.5
        within = iter([freezes and in_plan])  # once in a question, however often it plans

        def plan(_head: object, spans: Mapping[int, BatchSpan]) -> Sequence[Row]:
            if next(within, False):
                execution.freeze(reader)
                reader.sleep(0.001)
            return _rows(spans)

        def question(consumer: ConsumerLoop) -> Sequence[Row]:
            return consumer.batch(start, json.loads(text), plan, ())

        if freezes and not in_plan:
            way_us = execution.weather.rates.way_us
            execution.process.scheduler.push(lambda: execution.freeze(reader), execution.rng.randint(0, 6 * way_us))
        rows = reader.ask(question)
        flow, member = json.loads(text).get("flow"), reader.consumer.member
        planned = Planned(
            identity=execution.identity(number, text),
            group=reader.source.group,
            flow=str(flow),
            made_us=min(execution.made_us[number], asked_us),
            asked_us=asked_us,
            planned_us=execution.now_us,
            rows=tuple(rows),
            instance=member.instance if member is not None else None,
            alone=reader.source.options.get("ownership") == "none",
            repeated=execution.repeats,
        )
        execution.history.note(f"{execution.now_us} {reader.name} plans batch {execution.batch}: {_outline(rows)}")
        if planned.group:
            execution.judge.planned(planned)
        else:
            execution.exact.planned(execution.plan.name, number, text, rows)
        return planned

    def read(self) -> list[tuple[Planned, tuple[Row, ...]]]:
        """The rows that were planned last, in each partition's order."""
        for planned in self.planned:
            self._execution.judge.read(planned)
        return [(planned, planned.rows) for planned in self.planned]


def _decoded(text: str) -> dict[str, Any]:
    """`initialOffset` is a constant (spark-traps.md 5)."""
    return dict(offsets.INITIAL) if not text else dict(json.loads(text))


def _next_end(consumer: ConsumerLoop, *, start: dict[str, Any], limited: bool) -> dict[str, Any]:
    return consumer.next_end(start, limited=limited)


def _text(raw: dict[str, Any]) -> str:
    demand(isinstance(raw, dict), "no offset:", raw)
    return json.dumps(raw)


def _rows(spans: Mapping[int, BatchSpan]) -> list[Row]:
    return [
        Row(partition, offset, offset < span.redelivered_below, span.epoch)
        for partition, span in sorted(spans.items())
        for offset in range(span.start, span.to)
    ]


def _outline(rows: Sequence[Row]) -> str:
    """Each partition's part in few words."""
    parts: dict[int, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.partition, []).append(row)
    return " ".join(
        f"{partition}:{found[0].offset}-{found[-1].offset + 1}@{found[0].epoch}"
        + (f"({sum(row.redelivered for row in found)} marked)" if any(row.redelivered for row in found) else "")
        for partition, found in parts.items()
    )
