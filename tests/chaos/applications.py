"""What applications do with their micro-batches, in the driver's process (`foreachBatch`). They write down as facts
what they are given and what they have dealt with. Those of the other modes fail now and then. Nothing is judged here.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from partq import Acknowledger, InHand, Unavailable
from tests.cast.consumers import FAILURE
from tests.cast.journal import NAME, Journal, now_us
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
