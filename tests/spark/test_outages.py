"""Stores that cannot be used: wrong credentials, no answer. Clear, bounded in time, nothing half done."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from pyspark.errors import PySparkException

from tests.support.servers import Azurite
from tests.support.spark import Lab, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.azurite]

PATIENCE_S = 2


def go_away(server: Azurite) -> None:
    """End it so that it finds its data again when it starts: Azurite writes its index down when it is told to end."""
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_ZOMBIE, "the end of Azurite", 30)
    server.kill()


def refusals(*attempts: Callable[[], object]) -> list[str]:
    said = []
    for attempt in attempts:
        with pytest.raises(PySparkException) as caught:
            attempt()
        said.append(str(caught.value))
    return said


def test_wrong_credentials_are_said_at_once_by_every_role_without_the_secret(
    azure_lab: Lab, spark_azurite: Azurite
) -> None:
    """The account has another key now; Spark's processes still have the old one."""
    lab = azure_lab
    lab.create("orders")
    lab.publish("orders", [("k", b"there before")])
    stream = lab.stream("orders", startingOffsets="earliest")
    rows = lab.spark.createDataFrame([("k", "v")], "key string, value string")
    go_away(spark_azurite)
    old = spark_azurite.key
    spark_azurite.key = base64.b64encode(secrets.token_bytes(48)).decode()
    spark_azurite.start()

    begun_s = time.monotonic()
    said = refusals(lambda: lab.read("orders"), lambda: lab.stream("orders"), lambda: lab.append(rows, "orders"))
    said.append(failure(lab.consumer().start(stream)))
    assert time.monotonic() - begun_s < 120, "the default patience: waiting does not help against wrong credentials"
    for each in said:
        assert "no credentials that account" in each
        assert "AZURE_STORAGE_CONNECTION_STRING" in each
        assert old not in each
        assert "sig=" not in each

    go_away(spark_azurite)
    spark_azurite.key = old
    spark_azurite.start()
    assert [message.value for message in lab.browse("orders")] == [b"there before"]


@pytest.mark.nightly
def test_an_unreachable_store_is_tried_for_retry_timeout_and_queries_survive_a_shorter_outage(
    azure_lab: Lab, spark_azurite: Azurite
) -> None:
    """What reads, what writes, and a copy from queue to queue; and with credentials of Spark's processes alone."""
    lab = azure_lab
    for name in ("orders", "copy"):
        lab.create(name, 4)
    rows = lab.spark.range(50).selectExpr("cast(id % 9 as string) key", "cast(id as string) value")
    lab.append(rows.repartition(2), "orders")
    impatient = {"retryTimeout": f"{PATIENCE_S}s"}
    patient = lab.consumer("patient")
    hasty = lab.stream("orders", startingOffsets="earliest", **impatient)
    copying = lab.stream("orders", startingOffsets="earliest").writeStream.format("partq")
    copying = copying.options(store=lab.url, queue="copy", checkpointLocation=str(lab.folder / "copy"))
    survivors = [patient.start(lab.stream("copy", startingOffsets="earliest")), copying.start()]
    wait_until(lambda: len(patient.rows) == 50, "the first messages, by way of the copy")
    go_away(spark_azurite)

    begun_s = time.monotonic()
    said = refusals(lambda: lab.read("orders", **impatient), lambda: lab.append(rows, "orders", **impatient))
    said.append(failure(lab.consumer().start(hasty)))
    assert time.monotonic() - begun_s >= len(said) * PATIENCE_S
    for each in said:
        assert lab.url in each
        assert "retryTimeout, 2 s" in each
        assert spark_azurite.key not in each

    spark_azurite.start()
    lab.publish("orders", [("k", b"50")])
    wait_until(lambda: len(patient.rows) == 51, "what came after the outage", 120)
    assert sorted(patient.values, key=int) == [b"%d" % n for n in range(51)]
    assert [query.exception() for query in survivors] == [None, None]
    assert [(each.partition, each.key, each.value) for each in lab.browse("copy")] == [
        (each.partition, each.key, each.value) for each in lab.browse("orders")
    ]
