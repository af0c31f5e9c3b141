"""The rows that the benchmark makes of the demo's flights: no JVM, no measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import rows
from benchmarks.messages import FILES
from partq_spark.demo.flights import COLUMNS, KEY, ddl


def test_flights_are_19_columns_with_types_that_spark_and_avro_know() -> None:
    names = list(COLUMNS)
    assert len(names) == 19
    assert {KEY, rows.CARRIER, rows.DELAY} < set(names)
    assert ddl(rows.CARRIER, rows.DELAY) == "carrier STRING, dep_delay BIGINT"
    assert len(ddl().split(", ")) == 19
    assert [field["name"] for field in json.loads(rows.avro_schema())["fields"]] == names


@pytest.mark.parametrize("count", [3, 100_000, 400_003])
def test_flights_are_repeated_in_their_order_until_there_are_enough(tmp_path: Path, count: int) -> None:
    rows.write_flights(tmp_path / "rows", count)
    files = sorted((tmp_path / "rows").iterdir())
    assert len(files) == min(count, FILES)
    written = [number for file in files for number in pq.read_table(file, columns=["flight"])["flight"].to_pylist()]
    once = rows._flights()["flight"].to_pylist()
    assert written == (once * 2)[:count]
