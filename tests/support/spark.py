"""One Spark session for all tests that need one, and short words for what they do with queues.

The session is made once per pytest run, on first use. `Lab` is a store of a test's own: it creates queues and
publishes to them by `import partq`, without Spark, so that a test spends Spark's time only on what it is about. Nothing
here knows what a test wants to show.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import partq
from partq_spark.spark.local import QUICK_LOGS
from tests.support import jvm
from tests.support.messages import browse, opened
from tools.servers import Azurite, S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY_WAIT_S: Final = 90
"""For a query to end or to get somewhere; seconds on an idle machine, much longer on a busy one."""

RETRY_S: Final = 10.0

Header = tuple[str, bytes | None]
FORMS: Final = {
    "key": pa.string(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
Given = tuple[str | None, bytes] | tuple[str | None, bytes, list[Header] | None]


# --- the session ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark_azurite() -> Iterator[Azurite]:
    """The Azurite that Spark's processes have credentials for. Tests start and stop it, so it is not running yet.

    Workers have the environment of the JVM's start (spark-traps.md 26), so its address has to be known by then.
    """
    server = Azurite()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark_s3() -> Iterator[S3Server]:
    """The same of a server that speaks S3."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_azurite: Azurite, spark_s3: S3Server
) -> Iterator[SparkSession]:
    """Classic Spark in this process, two cores, four attempts per task. It finds partq by itself: nothing registers it.

    Sessions are cheap beside it: a test that changes settings takes `spark.newSession()`.
    """
    folder = tmp_path_factory.mktemp("spark")
    environment = {
        "SPARK_HOME": str(jvm.home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PARTQ_STORE": f"file://{folder}/default-store",
        **spark_azurite.variables(),
        **spark_s3.variables(),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        interrupt = signal.getsignal(signal.SIGINT)
        session = _session(folder)
        signal.signal(signal.SIGINT, interrupt)  # Spark puts its own in place, and other tests run in this process
    try:
        yield session
    finally:
        session.stop()


def _session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2,4]")
        .appName("partq tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder} {jvm.options()}")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")  # what fails on purpose would fill the output; tests read the exceptions
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")  # never the machine's: what depends on it shows
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config(*QUICK_LOGS)  # drivers that are killed on purpose keep Spark's default
        .getOrCreate()
    )


# --- a store of a test's own ------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Lab:
    """A store with queues, a folder for checkpoints, and Spark's readers and writers pointed at it."""

    spark: SparkSession
    folder: Path
    url: str

    @property
    def store_folder(self) -> Path:
        return Path(self.url.removeprefix("file://"))

    def queue(self, name: str) -> partq.Queue:
        return opened(self.url, name)

    def create(
        self, name: str, partitions: int = 1, schema: str | pa.Schema | None = None, key: str | None = None, **more: Any
    ) -> partq.Queue:
        """With `schema` a typed queue; `more` are its settings."""
        return partq.create_queue(
            name, partitions=partitions, schema=schema, key=key, store=self.url, retry_timeout_s=RETRY_S, **more
        )

    def head(self, name: str) -> bytes:
        """The one object that says what a queue is, on `file:`: the same means that nothing has happened to it."""
        return (self.store_folder / "default" / name / "_head.json").read_bytes()

    def ends(self, name: str) -> list[int]:
        """The offset of the next message of each partition, also of those that were removed and are not finished."""
        return [each.next for each in self.queue(name).describe().partitions]

    def publish(self, name: str, messages: Sequence[Given]) -> datetime:
        """One publish, without Spark; when that was. Headers are published if the first message has some or None."""
        columns = dict(zip(("key", "value", "headers"), zip(*messages, strict=True), strict=False))
        table = pa.table({column: pa.array(values, FORMS[column]) for column, values in columns.items()})
        with self.queue(name).publication() as publication:
            publication.add(table)
            (published,) = publication.commit().queues
        assert published.timestamp is not None
        return published.timestamp

    def browse(self, name: str) -> list[partq.Message]:
        """All messages of a queue, partition by partition, read without Spark."""
        return browse(self.url, name)

    def segments(self, name: str) -> list[Path]:
        """The segment files of a queue on `file:`, oldest first."""
        return sorted((self.store_folder / "default" / name / "_segments").rglob("*.arrow"))

    def objects(self, name: str) -> list[str]:
        """Everything stored under a queue's folder on `file:`, relative to it; not the locks, which are no objects."""
        base = self.store_folder / "default" / name
        files = (path for path in base.rglob("*") if path.is_file() and path.name != ".lock")
        return sorted(str(path.relative_to(base)) for path in files)

    # --- Spark's side -------------------------------------------------------------------------------------------------

    def read(self, name: str, **options: str) -> DataFrame:
        """A batch read of a queue."""
        return self.spark.read.format("partq").options(store=self.url, **options).load(name)

    def stream(self, name: str, **options: str) -> DataFrame:
        """A stream from a queue."""
        return self.spark.readStream.format("partq").options(store=self.url, **options).load(name)

    def append(self, rows: DataFrame, name: str, **options: str) -> None:
        """A batch write to a queue."""
        rows.write.format("partq").options(store=self.url, queue=name, **options).mode("append").save()

    def publisher(self, rows: DataFrame, name: str, checkpoint: str, **options: str) -> StreamingQuery:
        """A query that publishes a stream to a queue and ends when everything there is has been published."""
        return (
            rows.writeStream.format("partq")
            .options(store=self.url, queue=name, **options)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def consumer(self, checkpoint: str = "consumer") -> Consumer:
        return Consumer(checkpoint=self.folder / checkpoint)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """A store on this machine, empty, not even made yet. Queries that the test leaves running are stopped."""
    # Makes this session the active one, by which Spark finds what was registered: another test may have left its own.
    spark.createDataFrame([], "number int")
    yield Lab(spark=spark, folder=tmp_path, url=f"file://{tmp_path}/store")
    for query in spark.streams.active:
        query.stop()


# --- queries ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Consumer:
    """Collects what a query delivers, micro-batch by micro-batch; restarted on its Spark checkpoint as often as wanted.

    `batches` holds every delivery in order, also repeated ones: (batch id, rows).
    """

    checkpoint: Path
    batches: list[tuple[int, list[Row]]] = field(default_factory=list)
    failing: Callable[[int], bool] = lambda _batch: False

    def start(
        self, rows: DataFrame, *, available_now: bool = False, once: bool = False, trigger: str | None = None
    ) -> StreamingQuery:
        def take(batch: DataFrame, batch_id: int) -> None:
            if self.failing(batch_id):
                raise RuntimeError(f"batch {batch_id} fails on purpose")
            self.batches.append((batch_id, batch.collect()))

        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif once:
            writer = writer.trigger(once=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        return writer.start()

    def run(self, rows: DataFrame) -> list[Row]:
        """Everything there is now, with AvailableNow; returns the rows that this run delivered."""
        before = len(self.batches)
        ended(self.start(rows, available_now=True))
        return [row for _, delivered in self.batches[before:] for row in delivered]

    @property
    def rows(self) -> list[Row]:
        return [row for _, delivered in self.batches for row in delivered]

    @property
    def values(self) -> list[bytes]:
        return [bytes(row.value) for row in self.rows]

    @property
    def sizes(self) -> list[int]:
        """Rows of each delivery that had any."""
        return [len(delivered) for _, delivered in self.batches if delivered]

    def log_files(self, kind: str) -> list[int]:
        """The batch ids in `offsets` or `commits` of the Spark checkpoint."""
        return sorted(int(path.name) for path in (self.checkpoint / kind).iterdir() if path.name.isdigit())

    def forget_commit(self) -> int:
        """Undo the newest entry of the commit log, as if the driver had died just before it; returns its batch id."""
        batch_id = self.log_files("commits")[-1]
        for path in (self.checkpoint / "commits").iterdir():
            if path.name in (str(batch_id), f".{batch_id}.crc"):
                path.unlink()
        return batch_id


def ended(query: StreamingQuery, wait_s: int = QUERY_WAIT_S) -> StreamingQuery:
    """The query, which has ended by itself and well. Raises what ended it otherwise."""
    try:
        assert query.awaitTermination(wait_s), f"query {query.name or query.id} did not end in {wait_s} s"
    finally:
        query.stop()
    return query


def failure(query: StreamingQuery, wait_s: int = QUERY_WAIT_S) -> str:
    """The message of the exception that ended the query."""
    with contextlib.suppress(Exception):  # awaitTermination raises it too, without a way to wait for it alone
        assert query.awaitTermination(wait_s), f"query {query.name or query.id} did not fail in {wait_s} s"
    found = query.exception()
    query.stop()
    assert found is not None, f"query {query.name or query.id} did not fail"
    return str(found)
