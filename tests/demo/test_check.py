"""The demo's own proof is proven: it finds what is missing, twice, or out of order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partq_spark.demo.check import Outcome, check

Row = tuple[str | None, int, int, int]  # key, partition, offset, id

GOOD: list[Row] = [("a", 0, 0, 0), ("b", 1, 0, 1), ("a", 0, 1, 2), (None, 0, 2, 3), ("b", 1, 1, 4)]


def _checked(folder: Path, *files: Sequence[Row]) -> Outcome:
    for number, rows in enumerate(files):
        columns = list(zip(*rows, strict=True))
        table = pa.table(
            {
                "key": pa.array(columns[0], pa.string()),
                "partition": columns[1],
                "offset": columns[2],
                "id": columns[3],
                "redelivered": [False] * len(rows),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
    return check(folder, 5, 2)


def test_all_is_well(tmp_path: Path) -> None:
    outcome = _checked(tmp_path, GOOD[:3], GOOD[3:])
    assert outcome.ok
    assert (outcome.delivered, outcome.aircraft, list(outcome.per_partition)) == (5, 2, [3, 2])


def test_a_missing_flight_is_found(tmp_path: Path) -> None:
    outcome = _checked(tmp_path, GOOD[:-1])
    assert (outcome.ok, outcome.missing, outcome.twice) == (False, 1, 0)


def test_a_flight_that_came_twice_is_found(tmp_path: Path) -> None:
    outcome = _checked(tmp_path, GOOD, GOOD[:1])
    assert (outcome.ok, outcome.missing, outcome.twice) == (False, 0, 1)


@pytest.mark.parametrize("swapped", [(0, 2), (1, 4)])
def test_an_aircraft_out_of_order_is_found(tmp_path: Path, swapped: tuple[int, int]) -> None:
    rows = list(GOOD)
    first, second = swapped
    rows[first] = (*rows[first][:3], GOOD[second][3])
    rows[second] = (*rows[second][:3], GOOD[first][3])
    outcome = _checked(tmp_path, rows)
    assert (outcome.ok, outcome.missing, outcome.aircraft_out_of_order) == (False, 0, 1)


def test_a_delivery_against_the_order_of_offsets_is_found(tmp_path: Path) -> None:
    outcome = _checked(tmp_path, [GOOD[2], GOOD[0], GOOD[1], GOOD[3], GOOD[4]])
    assert (outcome.ok, outcome.aircraft_out_of_order, outcome.offsets_out_of_order) == (False, 0, 1)
