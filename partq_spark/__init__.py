"""partq: partitioned queues for Apache Spark Structured Streaming.

Importing this package imports no pyspark. `spark.readStream.format("partq")` finds the source by itself once partq is
installed for the Python that Spark's workers run; `register` is for the cases in which it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession

__version__ = "0.1.0"


def register(spark: SparkSession, metrics: CollectorRegistry | None = None) -> None:
    """Make the format `partq` known to this session, for `--py-files`, `addPyFile` and sources that were not found;
    and install a listener that tells queries with a group at once when a micro-batch is complete, so that handoffs do
    not wait for the next trigger.

    `metrics`, a registry of prometheus_client, tells what the session's queries say in their progress: serve it with
    `prometheus_client.start_http_server(port, registry=metrics)`, or push it, or write it to a file (docs/observe.md).

    Raises `Invalid` if the Python that Spark's workers run cannot import partq, naming the variable to set, and for
    metrics of a session of Spark Connect, whose queries run elsewhere.
    """
    from partq_spark.client.arguments import checked
    from partq_spark.spark.source import register as register_source

    checked(register_source)(spark, metrics)
