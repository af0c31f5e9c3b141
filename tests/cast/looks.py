"""An observer that looks at all checkpoints of a group again and again and writes down what it finds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

import partq
from tests.cast.sidecars import checkpoints
from tests.support.judge import Position, went_back

_EVERY_S: Final = 0.2


class Seen(NamedTuple):
    """One checkpoint as it was found by a look. Times are of the wall clock, in s."""

    sent_s: float
    done_s: float
    partition: int
    epoch: int
    flow: str
    offset: int
    redelivered_below: int


class Observer:
    """A thread. A context manager that looks once more at its end."""

    def __init__(self, queue: partq.Queue, group: str, journal: Path) -> None:
        self._queue, self._group, self._journal = queue, group, journal
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
        """One look."""
        sent_s = time.time()
        found = checkpoints(self._queue, self._group)
        done_s = time.time()
        with self._journal.open("a") as file:
            for each in found:
                mark = (each.partition, each.epoch, each.flow or "", each.acknowledged, each.redelivered_below)
                file.write(json.dumps([sent_s, done_s, *mark]) + "\n")

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.look()
            except partq.Unavailable:
                continue  # the next look will do


def read_seen(journal: Path) -> list[Seen]:
    """What an observer wrote down."""
    return [Seen(*json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []


def backward(seen: Iterable[Seen]) -> Iterator[str]:
    """Checkpoints that did not go forward (CHK-04)."""
    looks: dict[int, list[Seen]] = {}
    for look in seen:
        looks.setdefault(look.partition, []).append(look)
    for partition, mine in looks.items():
        ordered = sorted(mine, key=lambda look: look.sent_s)
        places = [Position(each.epoch, each.flow, each.offset, each.redelivered_below) for each in ordered]
        for before, now in pairwise(places):
            yield from (f"partition {partition}: {told}" for told in went_back(before, now))
