"""Part `memory`: peak memory of reading a queue, against reading one with eight times as many messages.

Each read has a driver of its own, in a new process. What is counted is resident memory of the driver's JVM and of every
process below it (Spark's Python daemon, the reader's process, the workers), added up, looked at 50 times a second; the
largest sum counts. Memory that processes share is counted in each of them, mapped files count as far as they are
resident. The Python program that starts the query is not counted: it does nothing but wait.

The larger queue has the same segments published eight times: its log and its ranges are eight times as long, which is
what a reader has to do with.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.processes import in_new_process
from benchmarks.spark import checked, driver_jvm, run_to_end, session
from benchmarks.staging import staged
from partq_spark.log.admin import create_queue
from partq_spark.log.destinations import StagedSegment, stage_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tools.messages import FILES, make_messages
from tools.report import Goal, Measure, compared

TIMES: Final = 8
_INTERVAL_S: Final = 0.02
_CHILD_LIMIT_S: Final = 900
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """In MiB. `jvm` and `python` are of the moment at which their sum, `total`, was largest."""

    jvm: float
    python: float

    @property
    def total(self) -> float:
        return self.jvm + self.python


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Rounds of one small and one large read, each in a process of its own."""
    url = f"file://{settings.work}/store"
    store = open_store(url)
    small, large = (create_queue(store, NAMESPACE, name, PARTITIONS) for name in ("small", "large"))
    for queue, times in ((small, 1), (large, TIMES)):
        segments = _staged(queue, settings.rows)
        for _ in range(times):
            publish(queue, segments)
    peaks: dict[str, list[Peak]] = {"small": [], "large": []}
    for number in range(settings.rounds):
        for name, rows in (("small", settings.rows), ("large", settings.rows * TIMES)):
            work = settings.work / f"{name}-{number}"
            peaks[name].append(Peak(**in_new_process(__name__, work, url, name, rows, limit_s=_CHILD_LIMIT_S)))
            logger.info("round %d, %s: %s", number + 1, name, peaks[name][-1])

    def line(what: str, pick: Callable[[Peak], float], large: str, small: str, goal: Goal | None = None) -> Measure:
        ours, theirs = ((name, map(pick, peaks[of])) for name, of in ((large, "large"), (small, "small")))
        return compared(what, "MiB", ours, theirs, goal)

    more, fewer = f"{settings.rows * TIMES:,} messages", f"{settings.rows:,} messages"
    return [
        line(f"peak memory of reading {more}", lambda peak: peak.total, more, fewer, Goal(sign="<=", limit=1.1)),
        line("of which the JVM", lambda peak: peak.jvm, "large", "the same"),
        line("of which Python", lambda peak: peak.python, "large", "the same"),
    ], []


def _staged(queue: QueueLog, rows: int) -> list[StagedSegment]:
    """The rows as eight segments, as eight tasks would stage them, in Spark's batches of 10,000 rows."""
    stage = stage_of(queue.refresh())
    tables = ((part, make_messages(rows // FILES + (part < rows % FILES), part)) for part in range(FILES))
    return [
        staged(queue, stage, table, seed=f"bench/{part}", batch_rows=10_000) for part, table in tables if table.num_rows
    ]


# --- in the process of its own ----------------------------------------------------------------------------------------


class Sampler(threading.Thread):
    """Looks at a process and everything below it until it is stopped, and keeps the largest sum."""

    def __init__(self, root: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._done = threading.Event()
        self.peak = Peak(jvm=0, python=0)

    def run(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            found = Peak(
                jvm=_resident_mib(self._root),
                python=sum(_resident_mib(child) for child in self._root.children(recursive=True)),
            )
            if found.total > self.peak.total:
                self.peak = found

    def stop(self) -> Peak:
        """The largest sum so far."""
        self._done.set()
        self.join(10)
        return self.peak


def _resident_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0  # it ended between two looks


def main(work: Path, url: str, queue: str, rows: int) -> None:
    """Read the queue once with AvailableNow into noop and print the peak as JSON."""
    with session(work) as spark:
        sampler = Sampler(driver_jvm())
        sampler.start()
        source = spark.readStream.format("partq").options(store=url, namespace=NAMESPACE, queue=queue)
        stream = source.option("startingOffsets", "earliest").load()
        checked(run_to_end(stream.writeStream.format("noop"), work / "checkpoint"), rows, "reading")
        peak = sampler.stop()
    sys.stdout.write(json.dumps({"jvm": peak.jvm, "python": peak.python}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
