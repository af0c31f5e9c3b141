"""Part `start`: how long a new Spark session takes to write its first messages, and a query to start, read and end.

Once with the Spark home that is installed, whose `pyspark.zip` every Python worker imports from, and once with one that
has no such archive (`partq_spark.spark.local`). Each sample is a driver of its own; the two take turns.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Measure, Series
from benchmarks.settings import Settings
from partq_spark.log.admin import create_queue
from partq_spark.objects import open_store
from partq_spark.spark.local import make_home

logger = logging.getLogger(__name__)

QUERIES: Final = 6  # of one driver; the first starts what all of them need, and does not count
_ROWS: Final = 100
_LIMIT_S: Final = 300


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Both homes, round by round, after one round to warm up the page cache."""
    homes = (make_home(settings.work / "spark-home").folder, None)
    found: list[list[dict[str, float]]] = [[], []]
    for number in range(settings.rounds + 1):
        for home, samples in zip(homes, found, strict=True):
            samples.append(_driver(settings.work / f"{number}-{'light' if home else 'installed'}", home))
        logger.info("round %d: without the archive %s, with it %s", number, found[0][-1], found[1][-1])

    def compared(what: str, name: str) -> Measure:
        light, installed = (
            Series(name=title, unit="s", samples=tuple(sample[name] for sample in samples[1:]))
            for title, samples in zip(("without the archive", "installed Spark home"), found, strict=True)
        )
        return Measure(what=what, subject=light, reference=installed)

    return [
        compared("a session's first write, of 100 messages", "write_s"),
        compared("a streaming query of one micro-batch, from `start()` to its end", "query_s"),
    ], []


def _driver(folder: Path, home: Path | None) -> dict[str, float]:
    """What one driver takes, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment |= {"SPARK_HOME": str(home)} if home else {}
    command = [sys.executable, "-m", "benchmarks.starting", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a driver of the benchmark ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(work: Path) -> None:
    """One driver: a write, then queries, each of which reads everything."""
    from benchmarks.spark import checked, run_to_end, session

    url = f"file://{work}/store"
    create_queue(open_store(url), "default", "orders", 4)
    with session(work) as spark:
        rows = spark.createDataFrame(
            [(f"key{number % 7}", b"value") for number in range(_ROWS)], "key string, value binary"
        )
        begun_s = time.perf_counter()
        rows.write.format("partq").option("store", url).mode("append").save("orders")
        write_s = time.perf_counter() - begun_s
        taken_s = []
        for _ in range(QUERIES):
            stream = spark.readStream.format("partq").options(store=url, startingOffsets="earliest").load("orders")
            run = run_to_end(stream.writeStream.format("noop"), work / "checkpoint")
            taken_s.append(checked(run, _ROWS, "a query").wall_s)
    sys.stdout.write(json.dumps({"write_s": write_s, "query_s": statistics.median(taken_s[1:])}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
