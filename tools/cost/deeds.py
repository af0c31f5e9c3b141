"""What partq does, one thing after the other, with the requests that each asks for: what part `cost` writes down, and a
test compares with the document (OBS-05).

Reading and writing go by the reader and the writer that Spark calls, in the order of its calls, without Spark; what
Spark itself stores is not partq's. Everything here is counted exactly; of what is done several times, that counts which
asked for least: what comes by the clock (a heartbeat, a look at the group's state) only adds to it. What depends on
time alone is in `idle`.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from partq_spark import client
from partq_spark.spark.options import batch_sink_options
from partq_spark.spark.reader import PartqStreamReader
from partq_spark.spark.writer import PartqBatchWriter
from tools.cost.meter import Meter
from tools.cost.requests import Counts, least
from tools.messages import make_messages
from tools.processes import coordinator
from tools.servers import Azurite, S3Server

NAMESPACE: Final = "bench"
QUEUE: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 4
TASKS: Final = 4
REPEATED: Final = 10
"""Batches that are read, looks that are averaged."""

# How docs/cost.md calls them.
PUBLISH: Final = "publish a batch of less than 8 MiB"
PUBLISH_SPARK: Final = f"publish a micro-batch of {TASKS} tasks from Spark"
READ: Final = f"read a batch that lies in {PARTITIONS} partitions, without a group"
READ_ALONE: Final = "the same, by a query that has its group to itself"
READ_REDIS: Final = "the same, by a flow of a group shared by Redis"
READ_OBJECTS: Final = "the same, by a flow of a group shared with `ownership=store`"
CHECKPOINT: Final = "write the checkpoint of a partition"
LOOK: Final = "an idle look, with or without a group"
BEAT: Final = "a heartbeat with `ownership=store`"

COLUMNS: Final = StructType().add("key", "string").add("value", "binary")
_MOST_LOOKS: Final = 100


class Query:
    """A streaming query as Spark asks its reader. `options` are the source's, but for queue and store."""

    def __init__(self, url: str, **options: str) -> None:
        given = {"queue": QUEUE, "store": url, "namespace": NAMESPACE, **options}
        self.reader = PartqStreamReader({name.lower(): value for name, value in given.items()}, COLUMNS)
        self.at: dict[str, Any] = self.reader.initialOffset()

    def trigger(self) -> int | None:
        """One trigger: the rows of its batch, which is read; None: there was none."""
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        if end == self.at:
            return None
        tasks = self.reader.partitions(self.at, end)
        rows: int = sum(batch.num_rows for task in tasks for batch in self.reader.read(task))
        self.at = end
        return rows

    def batch(self) -> int:
        """Triggers until one has messages."""
        for _ in range(_MOST_LOOKS):
            if rows := self.trigger():
                return rows
        raise RuntimeError(f"{_MOST_LOOKS} looks found no message: what is counted is void")

    @property
    def member(self) -> Any:
        """The flow, once it is bound."""
        with self.reader.process.asked() as consumer:
            return consumer.participant.member


@contextmanager
def query(url: str, **options: str) -> Iterator[Query]:
    """A query that is past its first, empty batches."""
    made = Query(url, **options)
    former = signal.getsignal(signal.SIGTERM)  # a flow's reader takes it, where it is the process's own
    try:
        for _ in range(3):
            made.trigger()
        yield made
    finally:
        made.reader.stop()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, former)


@contextmanager
def coordinated(work: Path, url: str, ownership: str, meter: Meter) -> Iterator[None]:
    """A coordinator, with its defaults and a meter of its own, for the length of a `with` block."""
    folder = Path(tempfile.mkdtemp(dir=work))
    with coordinator(folder, url, ownership, namespace=NAMESPACE, variables=meter.variables):
        yield


def made(server: Azurite | S3Server) -> str:
    """The URL of a new store with the queue that the deeds are done to. Groups settle at once: what is counted is not
    how long that takes.
    """
    url = server.fresh_url()
    client.create_queue(QUEUE, partitions=PARTITIONS, store=url, namespace=NAMESPACE, rebalance_delay_s=0.0)
    return url


def opened(url: str) -> client.Queue:
    """The queue."""
    return client.open_queue(QUEUE, store=url, namespace=NAMESPACE)


def publish(queue: client.Queue, rows: int, part: int = 0) -> None:
    """One batch, by the Python client."""
    with queue.publication() as publication:
        publication.add(make_messages(rows, part))
        publication.commit()


def publish_from_spark(url: str, rows: int, tasks: int = TASKS) -> None:
    """One batch of so many tasks, by the writer that Spark calls."""
    writer = PartqBatchWriter(batch_sink_options({"queue": QUEUE, "store": url, "namespace": NAMESPACE}), COLUMNS)
    messages = make_messages(rows).cast(pa.schema([("key", pa.string()), ("value", pa.binary())]))
    share = -(-rows // tasks)
    writer.commit([writer.write(iter(messages.slice(n * share, share).to_batches())) for n in range(tasks)])


# --- counted ----------------------------------------------------------------------------------------------------------


def publishing(meter: Meter, url: str, rows: int, batches: int) -> Counts:
    """A batch of `rows` messages, on average over so many."""
    queue = opened(url)
    meter.begin()
    for number in range(batches):
        publish(queue, rows, number)
    return meter.counts(url).times(1 / batches)


def publishing_from_spark(meter: Meter, url: str) -> Counts:
    """A micro-batch of `TASKS` tasks."""
    meter.begin()
    publish_from_spark(url, 1000)
    return meter.counts(url)


def reading(meter: Meter, url: str, rows: int, batches: int = REPEATED, **options: str) -> Counts:
    """A batch of `rows` messages as soon as it was published, in all partitions; without checkpoints."""
    found: list[Counts] = []
    seldom = {"checkpointInterval": "1h"} if "group" in options else {}
    with query(url, startingOffsets="latest", **seldom, **options) as reading_query:
        queue = opened(url)
        publish(queue, rows)
        reading_query.batch()  # the first after joining
        for number in range(batches):
            publish(queue, rows, number)
            meter.begin()
            reading_query.batch()
            found.append(meter.counts(url))
    return least(found)


def checkpointing(meter: Meter, url: str) -> Counts:
    """The acknowledgement of one partition, written down."""
    with query(url, startingOffsets="latest", checkpointInterval="1h", group=GROUP, ownership="none") as reading_query:
        for number in range(2):  # the first delivery marks the checkpoints
            publish(opened(url), 1000, number)
            reading_query.batch()
        reading_query.trigger()  # which says that the batch is complete
        meter.begin()
        reading_query.member.flush()
        return meter.counts(url).times(1 / PARTITIONS)


def looking(meter: Meter, url: str, looks: int = REPEATED, **options: str) -> Counts:
    """A trigger that finds nothing, where Spark asks again at once."""
    with query(url, startingOffsets="latest", **options) as reading_query:
        reading_query.trigger()
        meter.begin()
        for _ in range(looks):
            if reading_query.trigger() is not None:
                raise RuntimeError("an idle query made a batch: what is counted is void")
        return meter.counts(url).times(1 / looks)


def beating(meter: Meter, url: str) -> Counts:
    """A heartbeat of a flow with `ownership=store`; needs a coordinator."""
    found: list[Counts] = []
    with query(url, startingOffsets="latest", group=GROUP, ownership="store", sessionTimeout="1h") as reading_query:
        member = reading_query.member
        for _ in range(REPEATED):
            meter.begin()
            member.beat()
            found.append(meter.counts(url, f"/{GROUP}/ownership/"))
    return least(found)
