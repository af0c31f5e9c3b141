"""What a run left behind, read from disk: what every batch planned, what the sinks have. No judgement.

Spark's own records are the evidence. A driver's offset log says which partitions a batch was to read, at which epoch
and with which marks. The log of the file sink names the files of each batch that it took, once per batch; a file that
no batch names is what a killed task left, and does not count. Both logs are kept whole by the driver's settings.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from tests.cast.consumers import FAILURE
from tests.support.judge import Delivery, Ownership

READER_GONE: Final = "reader gone"
NO_WORKER: Final = "worker not there in time"  # Spark waits 10 s for one
_PARTQ: Final = re.compile(r"\b(?:partq|partq_spark(?:\.base)?\.errors)\.(\w+):")


class Row(NamedTuple):
    """One row of a sink. `place`: among the rows of its batch."""

    driver: str
    batch: int
    place: int
    partition: int
    offset: int
    key: str
    number: int
    redelivered: bool

    def delivery(self, epoch: int = 0) -> Delivery:
        """For the judge. Time says nothing of a row: a batch may reach its sink long after it was planned."""
        by = Ownership(epoch, f"{self.driver} batch {self.batch}", "")
        return Delivery.of_one(by, self.offset, self.redelivered)

    def __str__(self) -> str:
        mark = ", redelivered" if self.redelivered else ""
        return f"message {self.number} ({self.partition}/{self.offset}, {self.driver} batch {self.batch}{mark})"


class Planned(NamedTuple):
    """What a batch was to read of one partition: offsets `[start, to)`, marked below `redelivered_below`."""

    driver: str
    batch: int
    partition: int
    epoch: int
    start: int
    to: int
    redelivered_below: int
    flow: str
    round: int = 0  # how often its owner had given back what it had of the partition, at this epoch

    def delivery(self) -> Delivery:
        """All of it, for the judge."""
        return Delivery(Ownership(self.epoch, self.flow, ""), self.start, self.to, self.redelivered_below)

    def __str__(self) -> str:
        return f"{self.driver} batch {self.batch}, {self.partition}/{self.start} to {self.to} at epoch {self.epoch}"


class Times(NamedTuple):
    """When a batch was planned and when it was complete, by the wall clock in s: Spark had written it down by then.
    Infinite: it never was complete.
    """

    planned_s: float
    complete_s: float


def read_times(driver: str, spark_checkpoint: Path) -> Iterator[tuple[tuple[str, int], Times]]:
    """By driver and batch."""
    for path in (spark_checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            commit = spark_checkpoint / "commits" / path.name
            complete_s = commit.stat().st_mtime if commit.exists() else math.inf
            yield (driver, int(path.name)), Times(path.stat().st_mtime, complete_s)


def read_planned(driver: str, spark_checkpoint: Path) -> Iterator[Planned]:
    """All spans of a driver's offset log, batch by batch, also empty ones."""
    for batch, lines in _entries(spark_checkpoint / "offsets"):
        end = json.loads(lines[-1])
        for partition, span in sorted((int(partition), span) for partition, span in end.get("p", {}).items()):
            epoch, start, to, below = map(int, span)
            yield Planned(driver, batch, partition, epoch, start, to, below, flow=end["flow"] or "")


def read_rows(driver: str, sink: Path) -> Iterator[Row]:
    """All rows that a driver's file sink has, batch by batch, in the order of its tasks and of each task's file."""
    for batch, lines in _entries(sink / "_spark_metadata"):
        entries = [json.loads(line) for line in lines[1:]]
        yield from _rows_of(driver, batch, [Path(unquote(urlparse(entry["path"]).path)) for entry in entries])


def read_rows_by_batch(driver: str, sink: Path) -> Iterator[Row]:
    """As `read_rows`, of a sink that has a folder for each batch; what was not written to its end does not count."""
    for batch, folder in sorted((int(path.name), path) for path in sink.glob("[0-9]*")):
        if (folder / "_SUCCESS").exists():
            yield from _rows_of(driver, batch, folder.glob("*.parquet"))


def _rows_of(driver: str, batch: int, paths: Iterable[Path]) -> Iterator[Row]:
    place = 0
    names = ("partition", "offset", "key", "number", "redelivered")
    for path in sorted(paths):  # part-00000-…, part-00001-…: by task
        columns = pq.read_table(path).to_pydict()
        for partition, offset, key, number, redelivered in zip(*(columns[name] for name in names), strict=True):
            yield Row(driver, batch, place, partition, offset, key, number, redelivered)
            place += 1


class Consumed(NamedTuple):
    """What a consumer in plain Python wrote down of the batches that it was given, in their order."""

    rows: list[Row]
    planned: list[Planned]
    times: dict[tuple[str, int], Times]

    @property
    def unfinished(self) -> set[tuple[str, int]]:
        """By name and batch."""
        return {batch for batch, each in self.times.items() if math.isinf(each.complete_s)}


def read_consumed(name: str, journal: Path) -> Consumed:
    """What `tests.cast.consumers` wrote down; a killed one's last line may be a part."""
    found = Consumed([], [], {})
    at: dict[int, Planned] = {}  # the last span of a partition
    for text in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
        if not text.endswith("}"):
            continue
        line = json.loads(text)
        batch = int(line["batch"])
        if line["what"] == "handled":
            found.times[name, batch] = found.times[name, batch]._replace(complete_s=line["at_s"])
            continue
        found.times[name, batch] = Times(line["at_s"], math.inf)
        begins: dict[int, int] = {}
        for place, (partition, offset, key, number, redelivered) in enumerate(line["rows"]):
            begins.setdefault(partition, offset)
            found.rows.append(Row(name, batch, place, partition, offset, key, number, redelivered))
        for partition, (epoch, to, below) in sorted((int(p), each) for p, each in line["ends"].items()):
            before, start = at.get(partition), begins.get(partition, to)
            count = before.round if before is not None else 0
            if before is not None and before.epoch == epoch and start < before.to:
                count += 1  # it comes again, and so may all behind it
            at[partition] = Planned(name, batch, partition, epoch, start, to, below, flow=name, round=count)
            found.planned.append(at[partition])
    return found


def completed_ends(spark_checkpoint: Path) -> dict[int, int]:
    """Up to where the last complete batch of a query has read each partition."""
    log = spark_checkpoint / "commits"
    batches = [int(path.name) for path in log.iterdir() if path.name.isdigit()] if log.exists() else []
    if not batches:
        return {}
    lines = (spark_checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    return {int(partition): int(span[2]) for partition, span in json.loads(lines[-1]).get("p", {}).items()}


def read_errors(events: Path) -> Counter[str]:
    """What ended a driver's query, by kind: of partq by name, else in the last words of Spark or Python."""
    found: Counter[str] = Counter()
    for line in events.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):  # a killed driver's last line may be a part
            event: dict[str, str] = json.loads(line)
            if event["what"] in ("failed", "not started"):
                found[kind_of(event["error"])] += 1
    return found


def kind_of(error: str) -> str:
    """The kind of an error, from all that Spark says of it."""
    if FAILURE in error:
        return FAILURE
    named = _PARTQ.findall(error)
    if named:
        return str(named[-1])
    lines = error.partition("=== Streaming Query ===")[0].partition(" SQLSTATE:")[0].strip().splitlines()
    words = lines[-1].strip() if lines else "no words"
    # The end of the source's process: without a word (spark-traps.md 31), or while the JVM was talking to it.
    if "(no cause message)" in error or words in ("Connection reset", "Broken pipe"):
        return READER_GONE
    if words.startswith("Python worker failed to connect back"):
        return NO_WORKER
    return words[:160]


def _entries(log: Path) -> Iterator[tuple[int, list[str]]]:
    """The entries of one of Spark's logs: the batch id and the lines, the first of which is the version."""
    numbered = sorted((int(path.name), path) for path in log.iterdir() if path.name.isdigit())
    batches = [batch for batch, _ in numbered]
    if batches != list(range(len(batches))):
        raise ValueError(f"{log} does not have every batch from 0 on: was it cleaned up?")
    for batch, path in numbered:
        yield batch, path.read_text(encoding="utf-8").splitlines()
