"""How the tests' JVMs are started: quickly. Half of what a short-lived Spark driver costs is loading classes.

`scripts/setup` runs this module once, which has a Spark driver do what tests do and keeps the classes that it loaded in
an archive; every later JVM maps that into memory (class data sharing) and takes about 6 s of processor time instead of
12. Without an archive, or with one of another Java or Spark, a JVM just loads its classes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partq_spark.spark.local import make_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"

# Of an archive it would tell every class that is left out, and each that has changed.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
# The quick compiler alone: a driver of a test lives too short for the thorough one to pay.
_SHORT_LIVED: Final = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_END_S: Final = 120
_PASSED_ON: Final = ("PATH", "JAVA_HOME", "LANG", "LC_ALL")


@cache
def home() -> Path:
    """SPARK_HOME for tests: their workers start faster than with the installed one."""
    return make_home(Path(sys.prefix) / "spark-home").folder


def environment() -> dict[str, str]:
    """For a process that starts Spark as it likes: a notebook's kernel, the demo."""
    return {"SPARK_HOME": str(home()), "SPARK_SUBMIT_OPTS": options()}


def spark_environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a program that runs Spark: home and temporary files below `folder`, no credentials.

    Nothing of the caller's own environment but what finds programs; `extra` comes on top.
    """
    own, temporary = folder / "home", folder / "tmp"
    for each in (own, temporary):
        each.mkdir(parents=True, exist_ok=True)
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "HOME": str(own),
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary} {options()}",
        "SPARK_HOME": str(home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **(extra or {}),
    }


def options() -> str:
    """What a JVM of the tests is started with."""
    return f"{_SHORT_LIVED} {_QUIET} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _SHORT_LIVED


def make_archive(path: Path) -> None:
    """Run a driver that loads what tests load, and have its JVM leave the classes at `path`."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import partq

    os.environ["SPARK_HOME"] = str(home())  # an archive is good for one class path
    with tempfile.TemporaryDirectory() as folder:
        unfinished = path.with_suffix(".unfinished")
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "640m")
            .config("spark.driver.extraJavaOptions", f"{_SHORT_LIVED} {_QUIET} -XX:ArchiveClassesAtExit={unfinished}")
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        url = f"file://{folder}/store"
        partq.create_queue("orders", partitions=2, store=url)
        rows = spark.range(100).selectExpr("cast(id % 7 as string) key", "cast(cast(id as string) as binary) value")
        rows.write.format("partq").option("store", url).mode("append").save("orders")
        spark.read.format("partq").option("store", url).load("orders").groupBy("key").count().orderBy("key").collect()
        for group in ({}, {"group": "billing", "ownership": "none"}):
            stream = spark.readStream.format("partq").options(store=url, startingOffsets="earliest", **group)
            writer = stream.load("orders").writeStream.trigger(availableNow=True)
            query = (
                writer.option("checkpointLocation", f"{folder}/checkpoint-{len(group)}").foreachBatch(_counted).start()
            )
            assert query.awaitTermination(_END_S), "a query with ten messages did not end"
        gateway = SparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.proc.stdin.close()  # its JVM ends, and writes the archive
        gateway.proc.wait(_END_S)
        unfinished.replace(path)


def _counted(batch: DataFrame, _number: int) -> None:
    sys.stdout.write(f"{batch.count()} messages\n")


if __name__ == "__main__":
    make_archive(ARCHIVE)
