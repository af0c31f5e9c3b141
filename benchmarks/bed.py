"""What the throughput and memory parts run on: one driver, the rows as Parquet, queues, and Kafka if asked for."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka import Kafka, Topics, connector_jars
from benchmarks.messages import write_parquet
from benchmarks.settings import PARTITIONS, Settings
from benchmarks.spark import NOTHING, Run, parquet_stream, run_to_end, session
from partq_spark.log.admin import create_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.support.servers import running

NAMESPACE: Final = "bench"
logger = logging.getLogger(__name__)


class Bed:
    """Makes queries of each kind over the same rows. Every queue, folder and Spark checkpoint is a new one."""

    def __init__(self, spark: SparkSession, work: Path, rows: Path, topics: Topics | None) -> None:
        self.spark = spark
        self.topics = topics
        self._work = work
        self._rows = rows
        self._numbers = count()

    def rows(self) -> DataFrame:
        """The rows, as a stream from Parquet: what every publishing query reads."""
        return parquet_stream(self.spark, self._rows)

    def fresh_folder(self) -> Path:
        """A path that nobody used; nothing is there."""
        return self._work / f"folder-{next(self._numbers)}"

    def fresh_queue(self) -> QueueLog:
        """A new queue of 8 partitions."""
        return create_queue(open_store(self.store), NAMESPACE, f"queue-{next(self._numbers)}", PARTITIONS)

    @property
    def store(self) -> str:
        return f"file://{self._work}/store"

    def options(self, queue: QueueLog) -> dict[str, str]:
        """What source and sink need to find a queue; all else is left as it is by default."""
        return {"store": self.store, "namespace": NAMESPACE, "queue": queue.name}

    def reading(self, load: Callable[[], DataFrame]) -> Run:
        """One query from the stream that `load` gives into noop."""
        return run_to_end(load().writeStream.format("noop"), self.fresh_folder())

    def publishing(self, sink: str, options: dict[str, str]) -> Run:
        """One query from the rows' Parquet into a sink."""
        return run_to_end(self.rows().writeStream.format(sink).options(**options), self.fresh_folder())


@contextmanager
def bed(settings: Settings, *, home: Path | None = None, spark: Mapping[str, str] = NOTHING) -> Iterator[Bed]:
    """Make the rows if this is the part's first bed, start what is needed, stop it in the end. `home` and `spark`:
    Spark home and settings of the driver.
    """
    with ExitStack() as stack:
        rows = settings.work / "rows"
        if not rows.exists():
            begun_s = time.monotonic()
            write_parquet(rows, settings.rows)
            logger.info("made %d rows in %.0f s", settings.rows, time.monotonic() - begun_s)
        folder = Path(tempfile.mkdtemp(prefix="bed-", dir=settings.work))
        if settings.peer is None:
            driver = stack.enter_context(session(folder, home=home, settings=spark))
            yield Bed(driver, folder, rows, None)
            return
        broker = stack.enter_context(running(Kafka()))
        driver = stack.enter_context(session(folder, connector_jars(), home=home, settings=spark))
        yield Bed(driver, folder, rows, Topics(driver, broker.address))
