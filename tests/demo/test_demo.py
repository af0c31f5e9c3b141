"""The main job on real data, as a stranger runs it: `partq demo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from partq_spark.demo.flights import load, prepare


def test_flights_are_in_order_of_departure(tmp_path: Path) -> None:
    table = load()
    departures = table["departure"].to_pylist()
    assert len(departures) == 336_776
    assert all(before <= after for before, after in pairwise(departures))
    assert table["id"].to_pylist() == list(range(336_776))
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["tailnum"], first["dep_time"], str(first["departure"])) == ("N14228", 517, "2013-01-01 05:17:00")
    prepared = prepare(tmp_path)
    assert (prepared.flights, prepared.aircraft, prepared.files) == (336_776, 4_043, 6)
    assert len(list(tmp_path.glob("*.parquet"))) == 6


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_publishes_and_reads_every_flight_in_order(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "partq_spark", "demo", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["ok"]
    assert summary["published"] == summary["read"] == summary["delivered"] == 336_776
    assert (summary["missing"], summary["twice"], summary["aircraft_out_of_order"]) == (0, 0, 0)
    assert summary["aircraft"] == 4_043
    assert sum(summary["per_partition"]) == 336_776
    assert min(summary["per_partition"]) > 30_000  # eight partitions, spread about evenly
