"""What the queries of the other modes do with their micro-batches, in the driver's process (`foreachBatch`). They fail
now and then, as applications do. What they do is written down; nothing is judged here.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from partq import Acknowledger, InHand, Unavailable
from tests.cast.consumers import FAILURE

_FAILS: Final = 0.08  # of the batches with rows, before anything is acknowledged or written
_FAILS_AFTER: Final = 0.04
_HOLDS: Final = 0.25  # of them are acknowledged with a later one, or when nothing comes
_QUIET_S: Final = 1.0
_WAIT_S: Final = 10.0  # for a reader's answer
_COLUMNS: Final = ("partition", "offset", "key", "number", "redelivered")


class ByHand:
    """Acknowledges by hand. One for every start of the query: what it has in mind goes with it.

    Of its journal each line is one fact, written before it goes on: `begun`, `given` (rows, and what the flow had in
    hand then), `acknowledges` (up to where) and `answered` (for which partitions that counted).
    """

    def __init__(self, acknowledger: Acknowledger, journal: Path, chance: random.Random) -> None:
        self._acknowledger = acknowledger
        self._journal = journal
        self._chance = chance
        self._run = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._number = 0
        self._process = ""
        self._ends: dict[int, tuple[int, int]] = {}  # not acknowledged yet: epoch and end, by partition
        self._busy_s = time.monotonic()
        self._write("begun")

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            hand = self._remembering(self._acknowledger.in_hand())
            # Two jobs of one batch are planned one after another, perhaps by two reader processes.
            twice = self._chance.random() < 0.5
            found = [] if twice and batch.isEmpty() else batch.select(*_COLUMNS).collect()
            rows = sorted([row[name] for name in _COLUMNS] for row in found)
            self._write(
                "given",
                batch=batch_id,
                process=hand.process,
                epochs={p: held.epoch for p, held in hand.partitions.items() if p not in hand.lost},
                rows=rows,
            )
            for partition, offset, *_ in rows:
                if partition in hand.partitions and partition not in hand.lost:
                    self._ends[partition] = (hand.partitions[partition].epoch, offset + 1)
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
        if time.monotonic() - self._busy_s < _QUIET_S or not self._ends or not self._lock.acquire(blocking=False):
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
            self._process, self._ends = hand.process, {}
        held = {p: each.epoch for p, each in hand.partitions.items() if p not in hand.lost}
        self._ends = {p: known for p, known in self._ends.items() if held.get(p) == known[0]}
        return hand

    def _acknowledge(self, hand: InHand) -> None:
        ends = {partition: end for partition, (_, end) in self._ends.items()}
        if not ends:
            return
        self._number += 1
        self._write("acknowledges", number=self._number, ends=ends)
        counted = hand.acknowledge(ends)
        self._write("answered", number=self._number, counted=sorted(counted))
        self._ends = {}

    def _write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at_s": time.time(), "run": self._run, **facts})
        with self._journal.open("a") as file:
            file.write(line + "\n")


def by_hand(store: str, queue: str, group: str, flow: str, journal: str) -> ByHand:
    """For the query with these options."""
    acknowledger = Acknowledger(store=store, queue=queue, group=group, flow=flow, timeout_s=_WAIT_S)
    return ByHand(acknowledger, Path(journal), random.Random())


class OncePerBatch:
    """Writes each batch to a folder of its number, once, as Spark's own file sink does; sometimes it fails before."""

    def __init__(self, sink: str) -> None:
        self._sink = Path(sink)
        self._chance = random.Random()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        folder = self._sink / str(batch_id)
        if (folder / "_SUCCESS").exists():
            return
        if self._chance.random() < _FAILS:
            raise RuntimeError(f"{FAILURE} before it writes")
        batch.write.mode("overwrite").parquet(str(folder))
