"""The demo's proof: what was delivered is every flight once, and every aircraft's flights in order. Reads files, no
Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Counts of what went wrong (0 each if all is well), and how the messages spread over partitions."""

    delivered: int
    missing: int
    twice: int
    redelivered: int
    aircraft: int
    aircraft_out_of_order: int
    offsets_out_of_order: int  # in the order of delivery, within a file
    per_partition: Sequence[int]

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.aircraft_out_of_order or self.offsets_out_of_order)


def check(output: Path, expected: int, partitions: int) -> Outcome:
    """Compare the files that the reading query wrote with flights 0 to `expected` - 1."""
    tables = [pq.read_table(path) for path in sorted(output.glob("*.parquet"))]
    delivered = pa.concat_tables(tables)
    ids = delivered["id"]
    distinct = pc.count_distinct(ids).as_py()
    ordered = delivered.sort_by([("partition", "ascending"), ("offset", "ascending")])
    counts = {row["values"]: row["counts"] for row in pc.value_counts(delivered["partition"]).to_pylist()}
    return Outcome(
        delivered=len(delivered),
        missing=expected - distinct,
        twice=len(delivered) - distinct,
        redelivered=pc.sum(delivered["redelivered"]).as_py() or 0,
        aircraft=pc.count_distinct(delivered["key"]).as_py(),
        aircraft_out_of_order=len(_out_of_order(ordered["key"].to_pylist(), ordered["id"].to_pylist())),
        offsets_out_of_order=sum(
            len(_out_of_order(table["partition"].to_pylist(), table["offset"].to_pylist())) for table in tables
        ),
        per_partition=[counts.get(partition, 0) for partition in range(partitions)],
    )


def _out_of_order(keys: Sequence[object], numbers: Sequence[int]) -> set[object]:
    """The keys whose numbers do not strictly grow; None is no key."""
    last: dict[object, int] = {}
    wrong: set[object] = set()
    for key, number in zip(keys, numbers, strict=True):
        if key is None:
            continue
        if number <= last.get(key, -1):
            wrong.add(key)
        last[key] = number
    return wrong
