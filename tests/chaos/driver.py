"""A Spark driver with one streaming query of a group, and the application that takes its batches, until SIGTERM.

Run as a script: the argument names a JSON file (see `Plan`). A query that fails is started again in the same JVM, on
the same Spark checkpoint; what happened to it is written to `events`, one JSON line each. Applications write down as
facts what they are given and what they have dealt with; those of the other modes fail now and then. Nothing is judged
here.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partq import Acknowledger, InHand, Unavailable
from partq_spark import register
from tests.cast.consumers import FAILURE
from tests.cast.journal import EVENTS, NAME, Journal, now_us
from tests.chaos.course import Mode
from tests.world.facts import Given, Handled, Refused, Row

_FAILS: Final = 0.08  # of the batches with rows, before anything is acknowledged or dealt with
_FAILS_AFTER: Final = 0.04
_HOLDS: Final = 0.25  # of them are acknowledged with a later one, or when nothing comes
_QUIET_S: Final = 1.0
_WAIT_S: Final = 10.0  # for a reader's answer
_CLOCK_US: Final = 20_000  # the file system's clock ticks
_COLUMNS: Final = ("partition", "offset", "key", "CAST(value AS STRING) AS value", "redelivered")


class Application:
    """Takes what comes. `folder`: its driver's, where Spark's checkpoint says when a batch was planned."""

    def __init__(self, group: str, folder: Path, *, fails: bool) -> None:
        self._name, self._group, self._checkpoint = folder.name, group, folder / "checkpoint"
        self._journal = Journal(folder / NAME)
        self._fails = fails
        self._chance = random.Random()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = self._take(batch, batch_id)
        if self._fails and rows and self._chance.random() < _FAILS:
            raise RuntimeError(f"{FAILURE} before it has dealt with a batch")
        self._done(rows)

    def settle(self) -> None:
        """Do what is to be done while nothing comes."""

    def _take(self, batch: DataFrame, batch_id: int) -> list[Row]:
        """A batch was planned after the one before it was complete, and before it was written down."""
        rows = [Row(*row) for row in batch.selectExpr(*_COLUMNS).collect()]
        asked_us = _written_us(self._checkpoint / "commits" / str(batch_id - 1))
        at_us = _written_us(self._checkpoint / "offsets" / str(batch_id)) + _CLOCK_US
        name = f"{self._name}/{batch_id}"
        self._journal.write(Given(at_us, asked_us, self._group, self._name, self._name, tuple(rows), name))
        return rows

    def _done(self, rows: list[Row]) -> None:
        self._journal.write(Handled(now_us(), self._group, self._name, tuple(rows)))


def _written_us(path: Path) -> int:
    return path.stat().st_mtime_ns // 1000 if path.exists() else 0


class ByHand(Application):
    """Acknowledges by hand. One for every start of the query with these options: what it has in mind goes with it."""

    def __init__(self, options: dict[str, str], queue: str, folder: Path) -> None:
        super().__init__(options["group"], folder, fails=True)
        names = {name: options[name] for name in ("group", "flow", "store")}
        self._acknowledger = Acknowledger(queue=queue, timeout_s=_WAIT_S, **names)
        self._lock = threading.Lock()
        self._process = ""
        self._held: dict[int, tuple[int, list[Row]]] = {}  # not acknowledged yet: epoch and rows, by partition
        self._busy_s = time.monotonic()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            hand = self._remembering(self._acknowledger.in_hand())
            # Two jobs of one batch are planned one after another, perhaps by two reader processes.
            if self._chance.random() < 0.5:
                batch.isEmpty()
            rows = self._take(batch, batch_id)
            for row in rows:
                if row.partition in hand.partitions and row.partition not in hand.lost:
                    epoch = hand.partitions[row.partition].epoch
                    self._held.setdefault(row.partition, (epoch, []))[1].append(row)
            fate = self._chance.random() if rows else 0.5
            self._busy_s = time.monotonic()
            if fate < _FAILS:
                raise RuntimeError(f"{FAILURE} before it acknowledges")
            if fate < _FAILS + _HOLDS and rows:
                return
            self._acknowledge(hand)
            if fate > 1 - _FAILS_AFTER:
                raise RuntimeError(f"{FAILURE} after it has acknowledged")

    def settle(self) -> None:
        """Acknowledge what is held back, if nothing has come for a while."""
        if time.monotonic() - self._busy_s < _QUIET_S or not self._held or not self._lock.acquire(blocking=False):
            return
        try:
            self._acknowledge(self._remembering(self._acknowledger.in_hand()))
        except Unavailable:
            pass  # the reader is gone, or just being started: the next time will do
        finally:
            self._busy_s = time.monotonic()
            self._lock.release()

    def _remembering(self, hand: InHand) -> InHand:
        """Forget what comes again: it was given by another process, or at another epoch."""
        if hand.process != self._process:
            self._process, self._held = hand.process, {}
        epochs = {p: each.epoch for p, each in hand.partitions.items() if p not in hand.lost}
        self._held = {p: known for p, known in self._held.items() if epochs.get(p) == known[0]}
        return hand

    def _acknowledge(self, hand: InHand) -> None:
        ends = {partition: rows[-1].offset + 1 for partition, (_, rows) in self._held.items()}
        if not ends:
            return
        said = [row for _, rows in self._held.values() for row in rows]
        self._done(said)
        counted = hand.acknowledge(ends)
        refused = tuple(row for row in said if row.partition not in counted)
        self._journal.write(Refused(now_us(), self._group, self._name, refused))
        self._held = {}


# --- the driver -------------------------------------------------------------------------------------------------------

_LOOK_S: Final = 0.05
_PAUSE_S: Final = 0.3  # before a query that failed is started again
_LONG_PAUSE_S: Final = 12.0  # the longest of an application's own: longer than a flow is missed
_KEPT: Final = 1_000_000  # batches, of which Spark says when they were planned


class Plan(TypedDict):
    """What to do."""

    queue: str
    options: dict[str, str]  # of the source
    trigger: str
    listener: bool  # whether partq's listener tells the source of complete batches
    folder: str  # whose name is the driver's
    mode: str  # of `tests.chaos.course`


def session(plan: Plan) -> SparkSession:
    """Two cores, little memory, and nothing forgotten."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "640m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{plan['folder']}/warehouse")
        .config("spark.sql.streaming.minBatchesToRetain", _KEPT)
        .getOrCreate()
    )


class Started(NamedTuple):
    """A query, and the application behind it."""

    query: StreamingQuery
    application: Application


def start(spark: SparkSession, plan: Plan) -> Started:
    """The query, on its Spark checkpoint."""
    rows = spark.readStream.format("partq").options(**plan["options"]).load(plan["queue"])
    options, folder = plan["options"], Path(plan["folder"])
    writing = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    writing = writing.trigger(processingTime=plan["trigger"])
    if plan["mode"] == Mode.MANUAL:
        application: Application = ByHand(options, plan["queue"], folder)
    else:
        application = Application(options["group"], folder, fails=plan["mode"] != Mode.AUTO)
    return Started(writing.foreachBatch(application).start(), application)


def main(plan: Plan) -> None:
    """Until SIGTERM; the query is stopped in good order then."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    events = Path(plan["folder"]) / EVENTS

    def tell(what: str, error: object = "") -> None:
        line: dict[str, Any] = {"at_s": time.monotonic(), "what": what, "error": str(error)}
        with events.open("a") as file:
            file.write(json.dumps(line) + "\n")

    spark = session(plan)
    if plan["listener"]:
        register(spark)
    started: Started | None = None
    while not stop:
        if started is None or not started.query.isActive:
            if started is not None:
                tell("failed", started.query.exception())
                time.sleep(_pause_s(plan["mode"]))
            try:
                started = start(spark, plan)
            except PySparkException as error:  # the queue is looked up when it is loaded
                tell("not started", error)
                time.sleep(_PAUSE_S)
                continue
            tell("started")
        else:
            started.application.settle()
        time.sleep(_LOOK_S)
    if started is not None:
        started.query.stop()
    tell("stopped")
    spark.stop()


def _pause_s(mode: str) -> float:
    """Of the other modes a query is away for so long, sometimes, that its partitions are taken from it."""
    return _PAUSE_S if mode == Mode.AUTO or random.random() < 0.5 else random.uniform(_PAUSE_S, _LONG_PAUSE_S)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
