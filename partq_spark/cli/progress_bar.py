"""A progress bar on standard error, for people who wait: none where no terminal is, none for what is quick."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from partq_spark.base.words import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOWN_AFTER_S = 0.5


class Bar:
    """Use as a context manager. Shows the share done where it is known, the number of messages, and the rate."""

    def __init__(self, doing: str) -> None:
        self._doing = printable(doing)
        self._watched = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def update(self, messages: int, done: int, total: int | None) -> None:
        """`done` of `total` is read (None: nobody knows of how much), `messages` so far."""
        elapsed_s = time.monotonic() - self._begun_s
        if not self._watched or elapsed_s < _SHOWN_AFTER_S:
            return
        if self._shown is None:
            self._shown = self._start()
        bar, task = self._shown
        bar.update(task, completed=done, total=total, messages=messages, rate=messages / elapsed_s)

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[messages]:,} messages"),
            TextColumn("{task.fields[rate]:,.0f}/s", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(self._doing, total=None, messages=0, rate=0.0)
        bar.start()
        return bar, task
