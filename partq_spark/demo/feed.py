"""Gives prepared files to a stream at a steady pace, so that flights keep coming for as long as the story lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

PACE_S: Final = 1.2
"""Between two files, while there are plenty."""

SLOW_PACE_S: Final = 2.4
"""For the last third: a slow machine's story is longer."""

HELD_BACK: Final = 2
"""Files that only come at the end, so that something comes after whatever happens."""


class Feed:
    """Moves files from one folder to another, the first one when it is asked first."""

    def __init__(self, source: Path, target: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._waiting = sorted(source.glob("*.parquet"), reverse=True)
        self._target = target
        self._now_s = now_s
        self._due_s = now_s()
        self._hurried = False
        self._files = len(self._waiting)
        self.flights = sum(pq.read_metadata(path).num_rows for path in self._waiting)
        target.mkdir(parents=True, exist_ok=True)

    def give(self) -> None:
        """Move what is due."""
        while self._waiting and self._is_due():
            path = self._waiting.pop()
            path.rename(self._target / path.name)
            self._due_s = self._now_s() + (PACE_S if len(self._waiting) > self._files / 3 else SLOW_PACE_S)

    def hurry(self) -> None:
        """From now on everything is due."""
        self._hurried = True

    def _is_due(self) -> bool:
        return self._hurried or (len(self._waiting) > HELD_BACK and self._now_s() >= self._due_s)
