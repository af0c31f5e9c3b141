"""Part `planning`: what it takes to plan a micro-batch for a query that is 10,000 publishes behind, or 100,000.

The calls are those that Spark makes in the reader's process: `latestOffset`, then `partitions`, without a limit, and
the pickling of the tasks. Cold: in a new process with the source imported, as Spark has it, whose first call this is.
Warm: a new reader in the same process, the slowest of five.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.processes import in_new_process
from benchmarks.staging import staged
from partq_spark.log.admin import create_queue
from partq_spark.log.destinations import stage_of
from partq_spark.log.publish import publish
from partq_spark.objects import open_store
from partq_spark.query.columns import default_columns
from partq_spark.spark.source import PartqDataSource
from tools.messages import make_messages
from tools.report import Measure, figure

PUBLISHES: Final = 10_000
WIDE: Final = 64
_ROWS: Final = 640
_CHILD_LIMIT_S: Final = 120


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """For a queue of 8 partitions, and as harder cases one of 64 and one with ten times as many entries; every publish
    with messages for all partitions.
    """
    few = PUBLISHES // 10 if settings.quick else PUBLISHES
    measures: list[Measure] = []
    for partitions, publishes, limit_s in ((PARTITIONS, few, 0.3), (WIDE, few, 0.3), (PARTITIONS, 10 * few, 0.5)):
        url, name = f"file://{settings.work}/store", f"behind-{partitions}-{publishes}"
        queue = create_queue(open_store(url), NAMESPACE, name, partitions)
        stage = stage_of(queue.refresh())
        segment = staged(queue, stage, make_messages(_ROWS))
        for _ in range(publishes):
            publish(queue, [segment])
        samples = [in_new_process(__name__, url, name, limit_s=_CHILD_LIMIT_S) for _ in range(settings.rounds)]
        measures += [
            figure(what, [sample[index] for sample in samples], "s", most=limit_s)
            for index, what in enumerate(
                f"{publishes:,} publishes behind, {partitions} partitions, {each}" for each in ("cold", "warm")
            )
        ]
    return measures, []


def _plan_s(url: str, queue: str) -> float:
    """Seconds from the first call of a new reader, which knows nothing, to the plan of its first micro-batch."""
    options = {"store": url, "namespace": NAMESPACE, "queue": queue, "startingOffsets": "earliest"}
    columns = from_arrow_schema(default_columns(None, False).schema)
    reader = PartqDataSource(CaseInsensitiveDict(options)).streamReader(columns)
    serializer: Any = CPickleSerializer()
    begun_s = time.perf_counter()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = [serializer.dumps(task) for task in reader.partitions(start, end)]
    took_s = time.perf_counter() - begun_s
    if not tasks:
        raise RuntimeError("nothing was planned")
    return took_s


if __name__ == "__main__":
    first_s = _plan_s(*sys.argv[1:3])
    sys.stdout.write(json.dumps([first_s, max(_plan_s(*sys.argv[1:3]) for _ in range(5))]))
