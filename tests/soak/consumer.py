"""The consumer of a soak run, as a process: `python -m tests.soak.consumer STORE QUEUE GROUP KEYS`.

One flow in plain Python (`run_flow`) that reads every message, notes whether each key's numbers come once and in order,
and acknowledges with real checkpoints. SIGTERM ends it; then it writes what it found as a line of JSON. Judges nothing.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass, field
from typing import Final

from partq_spark.group import lifecycle
from partq_spark.group.claims import Claim
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.log import tree
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.objects import open_store
from tests.support.flow_loop import Batch, run_flow

IDLE_S: Final = 0.25
MOST_MESSAGES: Final = 10_000  # of one partition at once
_MOST_STRANGE: Final = 10


@dataclass(slots=True)
class Found:
    """What came. `strange`: the first numbers that were not the next of their key."""

    messages: int = 0
    marked: int = 0
    out_of_order: int = 0
    strange: list[str] = field(default_factory=list)


class Counted:
    """Counts what came, each message against the one of its key before. Numbers of one key rise by `keys`."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._last: dict[int, int] = {}
        self.found = Found()

    def take(self, batch: Batch[int]) -> None:
        """One batch."""
        found = self.found
        found.messages += len(batch.messages)
        found.marked += max(min(batch.redelivered_below, batch.end) - batch.begin, 0)
        for number in batch.messages:
            key = number % self._keys
            expected = self._last.get(key, key - self._keys) + self._keys
            if number != expected:
                found.out_of_order += 1
                if len(found.strange) < _MOST_STRANGE:
                    found.strange.append(f"partition {batch.partition}: {number} came, {expected} was next of its key")
            self._last[key] = number


class Reader:
    """Reads what a claim is owed."""

    def __init__(self, queue: QueueLog) -> None:
        self._queue = queue
        self._queue_id = queue.refresh().queue_id

    def poll(self, claim: Claim) -> Batch[int] | None:
        """What follows the claim's position."""
        head = self._queue.require(self._queue_id)
        begin, end = claim.position, min(head.next[claim.partition], claim.position + MOST_MESSAGES)
        if end <= begin:
            return None
        log = tree.view(head, {claim.partition: (begin, end)})
        numbers: list[int] = []
        for piece in RangeReader(self._queue, self._queue_id, log).pieces():
            numbers += [int(value) for value in piece.batch.column("value").to_pylist()]
        return Batch(
            partition=claim.partition,
            begin=begin,
            end=end,
            messages=numbers,
            redelivered_below=claim.redelivered_below,
        )


def main(store_url: str, name: str, group: str, keys: int) -> None:
    """Consume until SIGTERM."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    store = open_store(store_url)
    queue = QueueLog(store, "default", name)
    key = GroupKey("default", name, group)
    reader, counted = Reader(queue), Counted(keys)
    session = Session(
        open_ownership("store", store=store, group=key),
        lifecycle.checkpoints_of(queue, key.group),
        key,
        queue.head.queue_id,
        "soak",
        SessionSettings(session_timeout_s=10.0, beat_interval_s=2.0, checkpoint_interval_s=1.0),
    )
    run_flow(session, reader.poll, counted.take, keep_on=lambda: not stop, idle_s=IDLE_S)
    sys.stdout.write(json.dumps(asdict(counted.found)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
