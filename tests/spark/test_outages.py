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

from tests.support.spark import Lab, failure
from tests.support.waiting import wait_until
from tools.servers import Azurite

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


@pytest.mark.parametrize("service_lab", ["spark_azurite"], indirect=True)
def test_a_store_that_refuses_or_is_away_is_told_and_survived(service_lab: Lab, spark_azurite: Azurite) -> None:
    """The account has another key now, while Spark's processes still have the old one: that is said at once. Then it is
    away: what reads and what writes tries for retryTimeout.
    """
    lab = service_lab
    for name in ("orders", "copy"):
        lab.create(name, 4)
    rows = lab.spark.range(50).selectExpr("cast(id % 9 as string) key", "cast(id as string) value")
    lab.append(rows.repartition(2), "orders")
    impatient = {"retryTimeout": f"{PATIENCE_S}s"}
    patient = lab.consumer("patient")
    stream = lab.stream("orders", startingOffsets="earliest")
    hasty = lab.stream("orders", startingOffsets="earliest", **impatient)
    go_away(spark_azurite)
    old = spark_azurite.key
    spark_azurite.key = base64.b64encode(secrets.token_bytes(48)).decode()
    spark_azurite.start()

    begun_s = time.monotonic()
    said = refusals(lambda: lab.read("orders"), lambda: lab.append(rows, "orders"))
    said.append(failure(lab.consumer("refused").start(stream)))
    assert time.monotonic() - begun_s < 120, "the default patience: waiting does not help against wrong credentials"
    for each in said:
        assert "no credentials that account" in each
        assert "AZURE_STORAGE_CONNECTION_STRING" in each
        assert old not in each
        assert "sig=" not in each

    go_away(spark_azurite)
    spark_azurite.key = old
    spark_azurite.start()
    copying = stream.writeStream.format("partq").options(store=lab.url, queue="copy")
    copying = copying.option("checkpointLocation", str(lab.folder / "copy"))
    survivors = [patient.start(lab.stream("copy", startingOffsets="earliest")), copying.start()]
    wait_until(lambda: len(patient.rows) == 50, "the first messages, by way of the copy")
    go_away(spark_azurite)
    begun_s = time.monotonic()
    said = refusals(lambda: lab.read("orders", **impatient), lambda: lab.append(rows, "orders", **impatient))
    said.append(failure(lab.consumer("hasty").start(hasty)))
    assert time.monotonic() - begun_s >= len(said) * PATIENCE_S
    for each in said:
        assert lab.url in each
        assert "retryTimeout, 2 s" in each
        assert old not in each

    spark_azurite.start()
    lab.publish("orders", [("k", b"50")])
    wait_until(lambda: len(patient.rows) == 51, "what came after the outage", 120)
    assert sorted(patient.values, key=int) == [b"%d" % n for n in range(51)]
    assert [query.exception() for query in survivors] == [None, None]
