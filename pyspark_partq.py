"""Spark imports every top-level module named `pyspark_*` and takes its `DefaultSource`: keep this to one line."""

from partq_spark.spark.source import PartqDataSource as DefaultSource  # noqa: F401 - the name is what Spark looks for
