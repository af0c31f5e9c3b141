"""A Spark driver with one streaming query of a group, for tests that freeze it, cut it off and kill it.

Run as a script: the argument names a JSON file (see `Plan`). What every batch had is written to `there.rows`, what
ended the query to `there.errors`, one JSON line each; then it is started again on the same Spark checkpoint.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final, TypedDict

from pyspark.sql import DataFrame, SparkSession

_LIFE_S: Final = 600.0  # the test kills this process long before
_NO_WORKER: Final = "Python worker failed to connect back"
"""Spark waits 10 s for a worker, which may be too short on a busy machine: no error of the query."""


class Plan(TypedDict):
    """Everything is written below `folder`."""

    folder: str
    queue: str
    options: dict[str, str]


def tell(path: Path, what: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(what) + "\n")


def main(plan: Plan) -> None:
    folder = Path(plan["folder"])
    made = SparkSession.builder.master("local[2]").config("spark.driver.memory", "640m")
    made = made.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = made.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()

    def take(batch: DataFrame, batch_id: int) -> None:
        rows = [[row.partition, row.offset, row.redelivered] for row in batch.collect()]
        tell(folder / "there.rows", {"batch": batch_id, "rows": rows})

    deadline_s = time.monotonic() + _LIFE_S
    while time.monotonic() < deadline_s:
        rows = spark.readStream.format("partq").options(**plan["options"]).load(plan["queue"])
        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "there.checkpoint"))
        query = writer.start()
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the test has to see it
            if _NO_WORKER not in str(error):
                tell(folder / "there.errors", str(error))


def read_lines(path: Path) -> list[Any]:
    """What is there so far; the last line of a driver that was killed may not be whole."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
