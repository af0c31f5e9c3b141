"""An Azurite and an S3 server for Spark's processes, beside the session that they have anyway
(`tests/support/spark.py`); Spark's calls without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.data_source import Calls
from tests.support.spark import Lab
from tools.servers import Azurite, S3Server


@pytest.fixture
def service_lab(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A lab on a service that Spark's processes have credentials for, running: the test's parameter says which."""
    server: Azurite | S3Server = request.getfixturevalue(request.param)
    key = server.key
    for name, value in server.variables().items():
        monkeypatch.setenv(name, value)
    server.start()
    try:
        yield Lab(spark=spark, folder=tmp_path, url=server.fresh_url())
    finally:
        for query in spark.streams.active:
            query.stop()
        server.key = key
        server.kill()


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")
