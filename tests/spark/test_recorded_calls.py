"""What real Spark asks of a source and a sink, in which order, and whether the simulated world's Spark asks the same:
each plan is played by both, and a probe writes down every call.

A Spark that differs fails here, and then `tests/world/spark.py` is to be changed. What else partq leans on is shown by
the tests of partq itself (docs/spark-traps.md names them).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage

from tests.spark.probe import Log, ProbeReader, ProbeWriter, install
from tests.support.spark import QUERY_WAIT_S, Lab
from tests.world.machine import Machine
from tests.world.scheduler import SECOND_US, Scheduler
from tests.world.sinks import written
from tests.world.spark import Batch, QueryFailed, Reader, Run, SparkCheckpoint

pytestmark = pytest.mark.spark


class Step(NamedTuple):
    """One run of a query. Before it the newest so many entries of both logs are gone, or Spark's checkpoint is put back
    to what it was before that run of the plan. `ends`: of the source's batches. `fails`: in a batch, before or after
    its rows are looked at. `looks`: how often they are.
    """

    trigger: str = "available"
    ends: tuple[int, ...] = (3, 5)
    looks: int = 1
    fails: tuple[int, str] = (-1, "")
    cut: tuple[int, int] = (0, 0)  # of the offset log, of the commit log
    older: int | None = None


AFTER, BEFORE = "after", "before"
PLANS: Final[dict[str, tuple[Step, ...]]] = {
    "it begins, and ends when everything was read": (Step(),),
    "it begins again, and something is new": (Step(ends=(3,)), Step(ends=(3, 5, 9))),
    "it begins where nothing is": (Step(ends=()), Step()),
    "one batch and no more": (Step("once"), Step("once")),
    "batch after batch": (Step("processing"), Step("processing")),
    "rows that are looked at twice": (Step(looks=2),),
    "batch 0 fails before its rows are looked at": (Step(fails=(0, BEFORE)), Step()),
    "batch 1 fails when its rows were looked at": (Step(fails=(1, AFTER)), Step()),
    "the driver dies before the last entry of the commit log": (Step(), Step(cut=(0, 1))),
    "the last entry of both logs is gone": (Step(), Step(cut=(1, 1))),
    "the last entry of the offset log is gone": (Step(), Step(cut=(1, 0)), Step()),
    "an older copy of Spark's checkpoint": (Step(ends=(3,)), Step(), Step(older=1)),
}


# --- by real Spark ----------------------------------------------------------------------------------------------------


def recorded(lab: Lab, steps: Sequence[Step], *, sink: bool) -> list[str]:
    """The calls of real Spark."""
    path, checkpoint = lab.folder / "calls", lab.folder / "checkpoint"
    for number, step in enumerate(steps):
        _befall(checkpoint, lab.folder, number, step)
        Log(str(path)).add("run", number)
        _run(lab, path, checkpoint, step, sink=sink)
    return _in_short(path)


def _befall(checkpoint: Path, folder: Path, number: int, step: Step) -> None:
    if step.older is not None:
        shutil.rmtree(checkpoint)
        shutil.copytree(folder / f"before-{step.older}", checkpoint)
    elif checkpoint.exists():
        shutil.copytree(checkpoint, folder / f"before-{number}")
    for kind, entries in zip(("offsets", "commits"), step.cut, strict=True):
        known = sorted(int(each.name) for each in (checkpoint / kind).glob("[0-9]*"))
        for batch in known[len(known) - entries :]:
            (checkpoint / kind / f"{batch}").unlink()
            (checkpoint / kind / f".{batch}.crc").unlink(missing_ok=True)


def _run(lab: Lab, path: Path, checkpoint: Path, step: Step, *, sink: bool) -> None:
    log, done = Log(str(path)), []

    def handle(rows: DataFrame, batch: int) -> None:
        log.add("handle", batch)
        if step.fails == (batch, BEFORE):
            raise RuntimeError("it fails on purpose")
        for _ in range(step.looks):
            rows.collect()
        if step.fails == (batch, AFTER):
            raise RuntimeError("it fails on purpose")
        done.append(batch)

    options = {"log": str(path), "ends": json.dumps(step.ends)}
    rows = lab.spark.readStream.format("probe").options(**options).load()
    writer: Any = rows.writeStream.option("checkpointLocation", str(checkpoint))
    if sink:
        writer = writer.format("probe").options(log=str(path), fails=json.dumps(step.fails))
    else:
        writer = writer.foreachBatch(handle)
    triggers: dict[str, dict[str, Any]] = {"available": {"availableNow": True}, "once": {"once": True}}
    query = writer.trigger(**triggers.get(step.trigger, {"processingTime": "0 seconds"})).start()
    if step.trigger == "processing":
        query.processAllAvailable()
    else:
        try:
            query.awaitTermination(QUERY_WAIT_S)
        except Exception:  # noqa: BLE001 - it failed on purpose, or the calls say that it should not have
            log.add("it fails")
    query.stop()


def _in_short(path: Path) -> list[str]:
    """What is repeated while nothing happens is told once."""
    lines = path.read_text().splitlines()
    return [
        line for at, line in enumerate(lines) if not (line.startswith("latestOffset") and line in lines[at - 1 : at])
    ]


# --- by the world's Spark ---------------------------------------------------------------------------------------------


class Played:
    """The same runs by the world's Spark; it is the application of their batches, too."""

    def __init__(self, path: Path, *, sink: bool) -> None:
        scheduler = Scheduler(random.Random(0))
        self.machine = Machine(scheduler, "recorded calls", _no_store)
        self.path, self.sink = path, sink
        self.log = Log(str(path))
        self.spark = SparkCheckpoint("query")
        self.step = Step()

    def play(self, steps: Sequence[Step]) -> list[str]:
        copies: list[int] = []
        for number, step in enumerate(steps):
            copies.append(len(self.spark.journal))
            if step.older is not None:
                self.spark.restore(len(self.spark.journal) - copies[step.older])
            self.spark.cut(*step.cut)
            self.log.add("run", number)
            self._play(step)
        return _in_short(self.path)

    def _play(self, step: Step) -> None:
        self.step, scheduler = step, self.machine.scheduler
        driver = self.machine.host_of(scheduler.process("driver"))
        options = {"log": str(self.path), "ends": json.dumps(step.ends), "fails": json.dumps(step.fails)}
        self.writer = ProbeWriter(options)
        self.reader = ProbeReader(options)

        def main() -> None:
            reader = Reader(self.machine, "reader", driver, lambda: ProbeReader(options))
            run = Run(self.machine, self.spark, [reader], self, lambda: step.trigger, lambda: 0.0, 1, count(1))
            try:
                run.go()
            except (QueryFailed, RuntimeError):
                self.log.add("it fails")

        self.machine.begin(driver, main)
        scheduler.run(scheduler.now_us + 10 * SECOND_US, 100_000)
        assert not self.machine.deaths
        scheduler.kill(driver.process)

    def committed(self, batch: Batch) -> None:
        pass

    def handle(self, batch: Batch) -> None:
        if self.sink:
            tasks = [partial(self._write, part) for each in batch.planned() for part in each.parts]
            written(lambda: self.writer, tasks, batch.number)
            return
        planned = list(batch.planned())
        self.log.add("handle", batch.number)
        self._fail(batch, BEFORE)
        for _ in range(self.step.looks):
            for each in planned:
                for part in each.parts:
                    self._read(part)
        self._fail(batch, AFTER)

    def _write(self, part: Any, writer: ProbeWriter) -> WriterCommitMessage:
        return writer.write(iter([pa.RecordBatch.from_pydict({"number": [number for (number,) in self._read(part)]})]))

    def _read(self, part: Any) -> list[Any]:
        return list(self.reader.read(part))

    def _fail(self, batch: Batch, when: str) -> None:
        if self.step.fails == (batch.number, when):
            raise RuntimeError("it fails on purpose")


def _no_store(url: str, _retry_timeout_s: float) -> Any:
    raise AssertionError(f"nobody asks for {url}")


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def recording(lab: Lab) -> Lab:
    install(lab.spark)
    return lab


@pytest.mark.parametrize("name", PLANS)
def test_the_worlds_spark_asks_a_source_what_spark_asks(recording: Lab, name: str) -> None:
    real = recorded(recording, PLANS[name], sink=False)
    assert Played(recording.folder / "model", sink=False).play(PLANS[name]) == real


OF_A_SINK: Final = (
    "batch 1 fails when its rows were looked at",
    "the driver dies before the last entry of the commit log",
)


@pytest.mark.parametrize("name", OF_A_SINK)
def test_the_worlds_spark_asks_a_sink_what_spark_asks(recording: Lab, name: str) -> None:
    real = recorded(recording, PLANS[name], sink=True)
    assert Played(recording.folder / "model", sink=True).play(PLANS[name]) == real
