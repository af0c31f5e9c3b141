"""An Azurite for Spark's processes, beside the session that they have anyway (`tests/support/spark.py`); Spark's calls
without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.data_source import Calls
from tests.support.spark import Lab
from tools.servers import Azurite


@pytest.fixture
def azure_lab(
    spark: SparkSession, spark_azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A lab on the Azurite that Spark's processes have credentials for, running."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", spark_azurite.connection_string)
    key = spark_azurite.key
    spark_azurite.start()
    try:
        yield Lab(spark=spark, folder=tmp_path, url=spark_azurite.fresh_url())
    finally:
        for query in spark.streams.active:
            query.stop()
        spark_azurite.key = key
        spark_azurite.kill()


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")
