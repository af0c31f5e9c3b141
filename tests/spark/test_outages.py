"""Stores that cannot be used: wrong credentials, no answer, a full disk. Clear, bounded in time, nothing half done."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from partq_spark.base.errors import Unavailable
from tests.support.servers import Azurite
from tests.support.spark import Lab, ended, failure

pytestmark = pytest.mark.spark

PATIENCE_S = 2
BOUND_S = 60
"""For what takes `PATIENCE_S` and the start of some processes on a busy machine; the default patience is 120 s."""


# --- Azure ------------------------------------------------------------------------------------------------------------


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


def go_away(server: Azurite) -> None:
    """End it so that it finds its data again when it starts: Azurite writes its index down when it is told to end."""
    os.kill(server.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + 30
    while psutil.Process(server.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "Azurite does not end"
        time.sleep(0.05)
    server.kill()


@pytest.mark.azurite
def test_a_queue_on_azure_is_published_to_and_read_in_batch_and_in_stream(azure_lab: Lab) -> None:
    lab = azure_lab
    lab.create("orders", 4)
    rows = lab.spark.range(500).selectExpr("cast(id % 9 as string) key", "cast(id as string) value")
    lab.append(rows.repartition(2), "orders")
    lab.create("copy", 4)
    stream = lab.stream("orders", startingOffsets="earliest", maxMessagesPerTrigger="300")
    ended(lab.publisher(stream, "copy", "copy"))
    consumer = lab.consumer()
    consumer.run(lab.stream("copy", startingOffsets="earliest"))
    assert sorted(consumer.values, key=int) == [b"%d" % n for n in range(500)]
    assert [(each.partition, each.key, each.value) for each in lab.browse("copy")] == [
        (each.partition, each.key, each.value) for each in lab.browse("orders")
    ]


@pytest.mark.azurite
def test_wrong_credentials_are_said_at_once_by_every_role_without_the_secret(
    azure_lab: Lab, spark_azurite: Azurite
) -> None:
    """The account has another key now; Spark's processes still have the old one."""
    lab = azure_lab
    lab.create("orders", 1)
    lab.publish("orders", [("k", b"there before")])
    consumer = lab.consumer()
    stream = lab.stream("orders", startingOffsets="earliest")
    rows = lab.spark.createDataFrame([("k", "v")], "key string, value string")
    go_away(spark_azurite)
    old = spark_azurite.key
    spark_azurite.key = base64.b64encode(secrets.token_bytes(48)).decode()
    spark_azurite.start()

    begun_s = time.monotonic()
    said = []
    for attempt in (lambda: lab.read("orders"), lambda: lab.stream("orders"), lambda: lab.append(rows, "orders")):
        with pytest.raises(PySparkException) as caught:
            attempt()
        said.append(str(caught.value))
    said.append(failure(consumer.start(stream)))
    assert time.monotonic() - begun_s < 4 * BOUND_S / 2, "waiting does not help against wrong credentials"
    for each in said:
        assert "no credentials that account" in each
        assert "AZURE_STORAGE_CONNECTION_STRING" in each
        assert old not in each
        assert "sig=" not in each

    go_away(spark_azurite)
    spark_azurite.key = old
    spark_azurite.start()
    assert [message.value for message in lab.browse("orders")] == [b"there before"]


@pytest.mark.azurite
def test_an_unreachable_store_is_tried_for_retry_timeout_and_a_query_survives_a_shorter_outage(
    azure_lab: Lab, spark_azurite: Azurite
) -> None:
    lab = azure_lab
    lab.create("orders", 1)
    lab.publish("orders", [("k", b"1")])
    impatient = {"retryTimeout": f"{PATIENCE_S}s"}
    rows = lab.spark.createDataFrame([("k", "v")], "key string, value string")
    consumer, patient = lab.consumer(), lab.consumer("patient")
    stream = lab.stream("orders", startingOffsets="earliest", **impatient)
    survivor = patient.start(lab.stream("orders", startingOffsets="earliest"))
    go_away(spark_azurite)

    said = []
    for attempt in (
        lambda: lab.read("orders", **impatient),
        lambda: lab.append(rows, "orders", **impatient),
    ):
        begun_s = time.monotonic()
        with pytest.raises(PySparkException) as caught:
            attempt()
        assert PATIENCE_S <= time.monotonic() - begun_s < BOUND_S
        said.append(str(caught.value))
    begun_s = time.monotonic()
    said.append(failure(consumer.start(stream)))
    assert time.monotonic() - begun_s < BOUND_S
    for each in said:
        assert lab.url in each
        assert "retryTimeout, 2 s" in each

    spark_azurite.start()
    lab.publish("orders", [("k", b"2")])
    deadline_s = time.monotonic() + BOUND_S
    while patient.values != [b"1", b"2"]:
        assert time.monotonic() < deadline_s, (patient.values, survivor.exception())
        time.sleep(0.05)
    assert [message.value for message in lab.browse("orders")] == [b"1", b"2"]


# --- a full disk ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """A file system of this size at `folder`; False where this machine lets nobody mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "partq-test", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, timeout=30).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


@contextlib.contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond this size: where nothing can be mounted, the next best thing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_publishes_nothing_leaves_nothing_and_hinders_nothing_afterwards(lab: Lab) -> None:
    with small_disk(lab.store_folder, 3_000_000) as mounted:
        lab.create("orders", 2)
        lab.publish("orders", [("k", b"there before")])
        head = lab.head("orders")
        if mounted:
            rows = lab.spark.range(0, 10_000, 1, 2).selectExpr("cast(id as string) key", "randstr(1000, 1) value")
            with pytest.raises(PySparkException, match=r"No space left on device.*free space on that disk"):
                lab.append(rows, "orders", compression="none", retryTimeout="1s")
            rows.write.parquet(str(lab.folder / "rows"))
            stream = lab.spark.readStream.schema(rows.schema).parquet(str(lab.folder / "rows"))
            query = lab.publisher(stream, "orders", "publisher", compression="none", retryTimeout="1s")
            assert "No space left on device" in failure(query)
        else:
            with limited_files(100_000), pytest.raises(Unavailable, match="raise the limit on file size"):
                lab.publish("orders", [("k", os.urandom(1_000_000))])
        assert lab.head("orders") == head
        assert len(lab.segments("orders")) <= 2, "a task that was done before another failed; collection takes it"
        assert not list(lab.store_folder.rglob("*.tmp*")), "half-written files were left"

        lab.append(lab.spark.createDataFrame([("k", "new")], "key string, value string"), "orders")
        assert sorted(message.value for message in lab.browse("orders")) == [b"new", b"there before"]
