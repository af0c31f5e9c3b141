"""What Spark finds under the name `partq`. Thin: options, schema, and the choice of a reader or writer.

Readers and writers are imported when asked for, since Spark imports this module afresh in many short-lived processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from partq_spark.base.errors import Invalid
from partq_spark.log.queue import open_queue
from partq_spark.spark import options
from partq_spark.spark.columns import default_schema
from partq_spark.spark.local import prepare_worker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from partq_spark.spark.listener import PartqListener
    from partq_spark.spark.reader import PartqBatchReader, PartqStreamReader
    from partq_spark.spark.writer import PartqBatchWriter, PartqStreamWriter


_listening: list[tuple[SparkSession, PartqListener]] = []  # a process has few sessions


class PartqDataSource(DataSource):
    """Partitioned queues: `format("partq")` for `read`, `readStream`, `write` and `writeStream`."""

    _sent = False

    def __setstate__(self, state: dict[str, object]) -> None:
        # Spark makes a source anew where it plans a write, and sends one along to where it commits or aborts.
        # There the head is read for a publish alone: in an outage an abort would wait for it and bury what failed.
        self.__dict__.update(state)
        self._sent = True

    @classmethod
    def name(cls) -> str:
        return "partq"

    def schema(self) -> StructType | str:
        """The source's columns. Runs at `.load()`, so unknown options and an unknown queue are refused here; not where
        `.schema()` names columns, since Spark calls nothing before it plans then (spark-traps.md 36).
        """
        parsed = options.source_options(self.options)
        return default_schema(open_queue(parsed.target).refresh().columns, parsed.include_headers)

    def reader(self, schema: StructType) -> PartqBatchReader:
        from partq_spark.spark.reader import PartqBatchReader

        return PartqBatchReader(options.batch_source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> PartqStreamReader:
        prepare_worker()
        # What is wrong is said by the reader's first call: raised here, Spark would bury the message.
        from partq_spark.spark.reader import PartqStreamReader

        return PartqStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> PartqBatchWriter:
        from partq_spark.spark.writer import PartqBatchWriter

        if overwrite:
            raise Invalid('a queue is only ever appended to, mode("overwrite") is refused: write with .mode("append")')
        parsed = options.batch_sink_options(self.options, topic_column=_has_topics(schema))
        return PartqBatchWriter(parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PartqStreamWriter:
        from partq_spark.spark.writer import PartqStreamWriter

        prepare_worker()
        if overwrite:
            raise Invalid('a queue is only ever appended to, output mode "complete" is refused: use "append"')
        parsed = options.stream_sink_options(self.options, topic_column=_has_topics(schema))
        return PartqStreamWriter(parsed, schema, plans=not self._sent)


def _has_topics(schema: StructType) -> bool:
    """Whether rows of these columns may have topics: of keys and values by `topic`, of typed queues by `_topic`."""
    return not {"topic", "_topic"}.isdisjoint(schema.fieldNames())


def register(spark: SparkSession, metrics: CollectorRegistry | None = None) -> None:
    """Register the source with a session, after a look at whether its workers can import partq (spark-traps.md 27), and
    install the listener, unless the driver is on another side of a connection (Spark Connect). `metrics`: where the
    session's queries tell of themselves.

    Raises `Invalid` if the workers' Python, as far as it is known here, has no partq, and for metrics of a session of
    Spark Connect.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        if metrics is not None:
            raise Invalid(
                "metrics= needs the driver itself, and with Spark Connect that is the server: leave it out, and take "
                "a group's lag from its coordinator"
            )
        if "SPARK_LOCAL_REMOTE" in os.environ:  # the server runs on this machine, with this environment
            python = os.environ.get("PYSPARK_PYTHON") or os.environ.get("PYSPARK_DRIVER_PYTHON") or "python3"
            _require_importable(python, None)
        spark.dataSource.register(PartqDataSource)
        return
    context = spark.sparkContext
    shipped = _shipped()
    _require_importable(context.pythonExec, shipped)
    before = context.environment
    if shipped is not None:
        # Spark 4.3 looks for shipped files in the wrong folder in the one process that plans a stream's batches.
        path = os.pathsep.join(filter(None, (shipped, before.get("PYTHONPATH"))))
        context.environment = {**before, "PYTHONPATH": path}
    try:
        spark.dataSource.register(PartqDataSource)
    finally:
        context.environment = before
    listener = listen(spark)
    if metrics is not None:
        _tell_metrics(listener, metrics)


def listen(spark: SparkSession) -> PartqListener:
    """The listener of a session, installed once."""
    from partq_spark.spark.listener import PartqListener

    for known, listener in _listening:
        if known is spark:
            return listener
    made = PartqListener()
    spark.streams.addListener(made)
    _listening.append((spark, made))
    return made


def _tell_metrics(listener: PartqListener, registry: CollectorRegistry) -> None:
    """From now on what the listener hears is told by the registry; said twice, it is told once."""
    from partq_spark.base.metrics import Collector
    from partq_spark.spark.listener import QueryMetrics

    if listener.metrics is None:
        listener.metrics = QueryMetrics()
    if registry not in listener.registries:
        listener.registries.append(registry)
        registry.register(Collector(listener.metrics.samples))


def _shipped() -> str | None:
    """The folder or archive that partq was imported from, if it is one that Spark ships (`--py-files`, `addPyFile`)."""
    from pyspark import SparkFiles

    here = Path(__file__).resolve().parents[2]  # above partq_spark/spark
    return str(here) if here.is_relative_to(Path(SparkFiles.getRootDirectory()).resolve()) else None


def _require_importable(python: str, shipped: str | None) -> None:
    path = os.pathsep.join(filter(None, (shipped, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path} if path else None
    probe = [python, "-c", "import partq_spark.spark.source"]
    try:
        result = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(
            f"Spark's workers run {python!r}, which does not start ({error}): set PYSPARK_PYTHON={sys.executable} "
            "before the session starts"
        ) from error
    if result.returncode != 0:
        cause = result.stderr.strip().splitlines()[-1:] or ["no message"]
        raise Invalid(
            f"Spark's workers run {python!r}, which cannot import partq ({cause[0]}): set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts"
        )
