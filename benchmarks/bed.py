"""What the throughput and memory parts run on: one driver, the rows as Parquet, queues, and Kafka if asked for."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import partq
from benchmarks.kafka import Kafka, Topics, connector
from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.spark import NOTHING, Run, and_synced, parquet_stream, run_to_end, session
from partq_spark.log.admin import create_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.spark.source import PartqDataSource
from tools.messages import DDL, write_parquet
from tools.servers import running

logger = logging.getLogger(__name__)


class Bed:
    """Makes queries of each kind over the same rows, which lie in `folder`. Every queue, folder and Spark checkpoint is
    a new one.
    """

    def __init__(self, spark: SparkSession, work: Path, folder: Path, ddl: str, topics: Topics | None) -> None:
        self.spark = spark
        self.topics = topics
        self.folder = folder
        self.ddl = ddl
        self._work = work
        self._numbers = count()

    def rows(self) -> DataFrame:
        """The rows, as a stream from Parquet: what every publishing query reads."""
        return parquet_stream(self.spark, self.folder, self.ddl)

    def fresh_folder(self) -> Path:
        """A path that nobody used; nothing is there."""
        return self._work / f"folder-{next(self._numbers)}"

    def fresh_name(self) -> str:
        """A name that no queue has."""
        return f"queue-{next(self._numbers)}"

    def fresh_queue(self) -> QueueLog:
        """A new queue of 8 partitions."""
        return create_queue(open_store(self.store), NAMESPACE, self.fresh_name(), PARTITIONS)

    @property
    def kafka(self) -> Topics:
        """The broker's topics."""
        if self.topics is None:
            raise RuntimeError("Kafka is not running: ask for it with --peer kafka")
        return self.topics

    @property
    def store(self) -> str:
        return f"file://{self._work}/store"

    def options(self, queue: QueueLog | partq.Queue) -> dict[str, str]:
        """What source and sink need to find a queue; all else is left as it is by default."""
        return {"store": self.store, "namespace": NAMESPACE, "queue": queue.name}

    def reading(self, load: Callable[[], DataFrame]) -> Run:
        """One query from the stream that `load` gives into noop."""
        return run_to_end(load().writeStream.format("noop"), self.fresh_folder())

    def publishing(
        self, sink: str, options: dict[str, str], rows: DataFrame | None = None, *, synced: bool = False
    ) -> Run:
        """One query from the rows' Parquet (None: as they are) into a sink; `synced`: until all is on the disk."""
        stream = self.rows() if rows is None else rows
        run = run_to_end(stream.writeStream.format(sink).options(**options), self.fresh_folder())
        return and_synced(run) if synced else run


@contextmanager
def bed(
    settings: Settings,
    *,
    write: Callable[[Path, int], object] = write_parquet,
    ddl: str = DDL,
    jars: tuple[Path, ...] = (),
    home: Path | None = None,
    spark: Mapping[str, str] = NOTHING,
) -> Iterator[Bed]:
    """Make the rows if this is the part's first bed, start what is needed, stop it in the end. `write` puts so many
    rows of the columns `ddl` into a new folder of Parquet files. `jars`, `home` and `spark`: what the driver has on its
    class path, its Spark home and settings.
    """
    with ExitStack() as stack:
        folder = settings.work / "rows"
        if not folder.exists():
            begun_s = time.monotonic()
            write(folder, settings.rows)
            logger.info("made %d rows in %.0f s", settings.rows, time.monotonic() - begun_s)
        broker = stack.enter_context(running(Kafka())) if settings.peer else None
        jars += connector().jars.paths if broker else ()
        work = Path(tempfile.mkdtemp(prefix="bed-", dir=settings.work))
        driver = stack.enter_context(session(work, jars, home=home, settings=spark))
        # As the bare sources are: then all have the same Python workers, which Spark ends after an idle minute, with
        # Kafka in every other round. How long they take to start is part `start`.
        driver.dataSource.register(PartqDataSource)
        yield Bed(driver, work, folder, ddl, Topics(driver, broker.address) if broker else None)
