"""An observer that looks at all checkpoints of a group again and again and writes down what it finds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

import partq
from tests.cast.journal import Journal, now_us
from tests.cast.sidecars import checkpoints
from tests.world.facts import Checkpointed

_EVERY_S: Final = 0.2


class Observer:
    """A thread. A context manager that looks once more at its end."""

    def __init__(self, queue: partq.Queue, group: str, journal: Path) -> None:
        self._queue, self._group, self._journal = queue, group, Journal(journal)
        self._known: dict[int, tuple[int, str, int, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """One look. What is as it was is not told again."""
        for each in checkpoints(self._queue, self._group):
            place = (each.epoch, each.flow or "", each.acknowledged, each.redelivered_below)
            if self._known.get(each.partition) != place:
                self._known[each.partition] = place
                epoch, flow, offset, below = place
                fact = Checkpointed(now_us(), self._group, each.partition, epoch, flow, "", offset, below)
                self._journal.write(fact)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.look()
            except partq.Unavailable:
                continue  # the next look will do
