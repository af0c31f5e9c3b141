"""What Spark does with a streaming query, in Spark's order and without a JVM: a driver that asks a reader process of
its own for each source, two logs, a batch that a restart repeats, triggers (spark-traps.md 1 to 6, 13, 23, 24, 25, 29).

Nothing here knows what an offset means, nor what an application does with a batch. `tests/spark/test_recorded_calls.py`
compares the calls with real Spark's.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from unittest import mock

from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable

import partq
from partq_spark.spark.listener import PartqListener
from partq_spark.spark.local import prepare_worker
from tests.world.machine import Host, Machine
from tests.world.mailboxes import Mailboxes
from tests.world.scheduler import SECOND_US, Strand
from tests.world.threads import SimpleQueue

T = TypeVar("T")
POLLING_S: Final = 0.01  # Spark's pause after a trigger without a batch
LOG_S: Final = 0.05  # to write an entry of a log


class QueryFailed(Exception):
    """The query ends with an exception that is not partq's: the application's, or Spark's own."""


class ReaderDied(QueryFailed):
    """Spark finds its reader process gone."""


class Interrupted(BaseException):
    """The query is stopped: its thread ends where it is."""


# --- Spark's checkpoint -----------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """An end that the source gave to Spark. `number`: of the answer, so that two of the same text are told apart;
    `after`: that of the end at which it begins. 0: before the first.
    """

    text: str = ""
    number: int = 0
    at_us: int = 0
    after: int = 0


Ends = tuple[Made, ...]
"""Of each source of a query."""


@dataclass(slots=True)
class SparkCheckpoint:
    """Offset log and commit log, which outlive drivers. `journal`: what was written, in order, as a copy made in time
    has it.
    """

    query: str
    offsets: dict[int, Ends] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    journal: list[tuple[int, Ends | None]] = field(default_factory=list)

    def write(self, batch: int, ends: Ends | None) -> None:
        """An entry of the offset log, or of the commit log (None). Raises `QueryFailed` if another run was faster."""
        if batch in (self.commits if ends is None else self.offsets):
            raise QueryFailed(f"another run has written {'commits' if ends is None else 'offsets'}/{batch}")
        if ends is None:
            self.commits.add(batch)
        else:
            self.offsets[batch] = ends
        self.journal.append((batch, ends))

    def restore(self, entries: int) -> None:
        """Become the copy that was made so many entries ago."""
        kept = self.journal[: max(0, len(self.journal) - entries)]
        self.offsets, self.commits, self.journal = {}, set(), []
        for batch, ends in kept:
            self.write(batch, ends)

    def cut(self, offsets: int, commits: int) -> None:
        """The newest entries of the logs are gone, as after a power failure."""
        gone = set(sorted(self.offsets)[len(self.offsets) - offsets :])
        lost = set(sorted(self.commits)[len(self.commits) - commits :])
        self.offsets = {batch: ends for batch, ends in self.offsets.items() if batch not in gone}
        self.commits -= lost
        self.journal = [each for each in self.journal if each[0] not in (lost if each[1] is None else gone)]

    def forget_commits(self) -> None:
        """Of batches that the offset log does not have, or has last: the commit log was further than that."""
        last = max(self.offsets, default=-1)
        self.commits = {batch for batch in self.commits if batch < last}
        self.journal = [each for each in self.journal if each[1] is not None or each[0] < last]

    def begin(self, sources: int) -> tuple[int, Ends, Ends, bool]:
        """Where a run begins (`populateStartOffsets`): the number of the batch, its start, its end, whether it is
        repeated.
        """
        initial = tuple(Made() for _ in range(sources))
        if not self.offsets:
            return 0, initial, initial, False
        latest, *before = sorted(self.offsets, reverse=True)
        if latest == max(self.commits, default=-1):
            return latest + 1, self.offsets[latest], self.offsets[latest], False
        return latest, self.offsets[before[0]] if before else initial, self.offsets[latest], True


# --- processes --------------------------------------------------------------------------------------------------------


class _Question:
    """What the driver wants to know, and what came of it."""

    def __init__(self, call: Callable[[Any], Any], asker: Strand) -> None:
        self.call, self.asker = call, asker
        self.is_done = False
        self.found: Any = None
        self.error: Exception | None = None


class Reader:
    """The process that Spark asks of one source, one question at a time. It ends as soon as nobody can ask any more."""

    def __init__(self, machine: Machine, name: str, driver: Host, make: Callable[[], Any]) -> None:
        self._machine, self._make = machine, make
        parent = driver.process
        self.process = machine.scheduler.process(name, origin_s=parent.origin_s, rate=parent.rate)
        self.host = machine.host_of(self.process)
        self.host.parent = driver
        self._questions = SimpleQueue(machine)
        self._asker: Strand | None = None
        self.process.on_killed = self._gone
        machine.begin(self.host, self._main)

    def ask(self, call: Callable[[Any], T]) -> T:
        """By the driver. Raises as the source does, and `ReaderDied`."""
        question = _Question(call, self._machine.strand)
        self._asker = question.asker
        self._questions.put(question)
        while not question.is_done and self.process.alive:
            self._machine.wait(60.0)
        self._asker = None
        if not question.is_done:
            raise ReaderDied(f"{self.process.name} is gone")
        if question.error is not None:
            raise question.error
        return question.found  # type: ignore[no-any-return]

    def leave(self) -> None:
        """The driver is gone, and with it the connection: what is being answered is answered first."""
        if self.process.alive:
            self._questions.put(None)

    def terminate(self) -> None:
        """SIGTERM. Without a handler that ends the process at once."""
        if not self.process.alive:
            return
        if self.host.handlers.get(signal.SIGTERM) in (None, signal.SIG_DFL, signal.SIG_IGN):
            self._machine.scheduler.kill(self.process)
        else:
            self.host.handlers[signal.SIGTERM] = signal.SIG_IGN  # as the handler's first act: a second one is nothing
            strand = self.host.main.strand
            assert strand is not None
            self._machine.scheduler.interrupt(strand, SystemExit(0))

    def _main(self) -> None:
        reader = self._make()
        try:
            while (question := self._questions.get()) is not None:
                try:
                    question.found = question.call(reader)
                except Exception as error:  # noqa: BLE001 - it is for who asks
                    question.error = error
                question.is_done = True
                self._machine.scheduler.wake(question.asker)
        except SystemExit:
            pass
        reader.stop()
        self._machine.scheduler.kill(self.process)

    def _gone(self) -> None:
        if self._asker is not None:
            self._machine.scheduler.wake(self._asker)


class Context:
    """What Spark tells the tasks of a batch, in place of `TaskContext.get`."""

    def __init__(self, query: str | None, batch: int, task: int) -> None:
        self._task = task
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)} if query else {}

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._task

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


class Around:
    """What Spark's processes of one machine find around them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.mailboxes = Mailboxes(machine)
        self.contexts: dict[Strand, Context] = {}

    @contextmanager
    def as_task(self, context: Context) -> Iterator[None]:
        """What this strand does meanwhile is a task."""
        strand = self.machine.strand
        self.contexts[strand] = context
        try:
            yield
        finally:
            del self.contexts[strand]

    def _context(self) -> Context | None:
        return self.contexts.get(self.machine.strand)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Tasks know of their batch, applications of their readers."""
        self.mailboxes.put_in_place()
        self.machine.stand_ins[id(prepare_worker)] = lambda: None
        with mock.patch.object(TaskContext, "get", self._context):
            yield


# --- one run of a query -----------------------------------------------------------------------------------------------


class Application(Protocol):
    """What a query's own code, or its sink, does with its batches, and who looks on. May raise."""

    def handle(self, batch: Batch) -> None: ...

    def committed(self, batch: Batch) -> None:
        """Spark's log says that it is complete."""


@dataclass(slots=True)
class Run:
    """One life of a driver. `new_reader`: begins the reader process of a source; `count`: numbers of answers."""

    machine: Machine
    spark: SparkCheckpoint
    readers: list[Reader]
    application: Application
    trigger: Callable[[], str]
    interval_s: Callable[[], float]
    logs_every: int
    count: Iterator[int]
    batch: int = 0
    start: Ends = ()
    end: Ends = ()
    is_repeated: bool = False
    _unwritten: int = 0

    @property
    def now_us(self) -> int:
        """True time."""
        return self.machine.scheduler.now_us

    def go(self) -> None:
        """Until the trigger has nothing more to do. Raises what ends a query."""
        trigger = self.trigger()
        if trigger == "available":
            for reader in self.readers:
                reader.ask(lambda source: source.prepareForTriggerAvailableNow())
        self.batch, self.start, self.end, self.is_repeated = self.spark.begin(len(self.readers))
        constructed = self.is_repeated
        while True:
            begun_us = self.now_us
            if not constructed:
                constructed = self._construct(limited=trigger != "once")
            has_run = constructed
            if constructed:
                self._run_batch()
                constructed = False
            if trigger == "once" or (trigger == "available" and not has_run):
                return
            if trigger == "processing":
                due_s = self.interval_s() - (self.now_us - begun_us) / SECOND_US
                self.machine.sleep(max(due_s, 0.0 if has_run else POLLING_S))

    def _construct(self, *, limited: bool) -> bool:
        """The next batch: whether there is one."""
        self.is_repeated = False
        self.end = tuple(self._next_end(*each, limited=limited) for each in zip(self.readers, self.end, strict=True))
        if [each.text for each in self.end] == [each.text for each in self.start]:
            return False
        self._unwritten += 1
        if self._unwritten >= self.logs_every or self.batch == 0:
            self._unwritten = 0
            self.machine.sleep(LOG_S)
            self.spark.write(self.batch, self.end)
        for reader, start in zip(self.readers, self.start, strict=True):
            if start.text:
                reader.ask(partial(_commit, end=json.loads(start.text)))
        return True

    def _next_end(self, reader: Reader, last: Made, *, limited: bool) -> Made:
        asked_us = self.now_us

        def question(source: Any) -> Any:
            limit = source.getDefaultReadLimit() if limited else ReadAllAvailable()
            return source.latestOffset(start_of(source, last), limit)

        text = json.dumps(reader.ask(question))
        return last if text == last.text else Made(text, next(self.count), asked_us, last.number)

    def _run_batch(self) -> None:
        batch = Batch(self)
        self.application.handle(batch)
        self.machine.sleep(LOG_S)
        if self.batch in self.spark.offsets:
            self.spark.write(self.batch, None)
        self.application.committed(batch)
        self.start = self.end
        self.batch += 1


def start_of(source: Any, made: Made) -> Any:
    """`initialOffset` is asked for as often as it is needed (spark-traps.md 5)."""
    return json.loads(made.text) if made.text else source.initialOffset()


class Planned(NamedTuple):
    """What one source has of a batch: `asked_us` is when Spark asked for the partitions. A self-union asks once more
    for each of its scans (spark-traps.md 29).
    """

    source: int
    made: Made
    asked_us: int
    at_us: int
    parts: Sequence[Any]


class Batch:
    """A micro-batch. What is to be read is asked for once, before an application hears of it; whatever that does with
    the rows reads the same again. `before`: what happens to a reader process that is just asked.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.number = run.batch
        self.is_repeated = run.is_repeated

    def planned(self, before: Callable[[int], None] = lambda _: None) -> Iterator[Planned]:
        """Of each source that has something in it."""
        run = self.run
        for number, reader in enumerate(run.readers):
            start, end = run.start[number], run.end[number]
            if start.text != end.text:
                before(number)
                asked_us = run.now_us
                parts, at_us = reader.ask(partial(self._partitions, start, end))
                yield Planned(number, end, asked_us, at_us, parts)

    def _partitions(self, start: Made, end: Made, source: Any) -> tuple[Sequence[Any], int]:
        """And when the reader was done with it."""
        return source.partitions(start_of(source, start), json.loads(end.text)), self.run.now_us

    def tell(self) -> None:
        """To the listener, some time after it is complete."""
        for reader, end in zip(self.run.readers, self.run.end, strict=True):
            report = json.dumps(reader.ask(lambda source: source.reportLatestOffset()) or {})
            self.run.machine.scheduler.push(partial(hear, report, end.text), SECOND_US // 10)


def _commit(source: Any, end: Any) -> None:
    source.commit(end)


def hear(report: str, end: str) -> None:
    """A listener hears that a batch is complete, by what its source reported and where the batch ends."""
    source = SimpleNamespace(latestOffset=report, endOffset=end)
    progress = SimpleNamespace(sources=[source], id="q", name=None)
    PartqListener().onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type] # of Spark's event


ENDS_A_QUERY: Final = (partq.PartqError, QueryFailed)
"""What a query may end with and be started again."""
