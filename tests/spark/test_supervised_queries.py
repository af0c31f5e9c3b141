"""`partq.supervise` with real queries: what fails is started again, and what would fail again is raised.

So is what ends everything: a session that was stopped, a JVM that is dead.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import partq
from tests.support.processes import Program, spark_environment
from tests.support.spark import Lab

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


class Starts:
    """`start()`, counted."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self.count = 0

    def __call__(self) -> StreamingQuery:
        self.count += 1
        return self._start()


@pytest.fixture
def orders(lab: Lab) -> Lab:
    lab.create("orders", max_message_bytes=5000)
    lab.publish("orders", [("k", b"one"), ("k", b"two")])
    return lab


def test_a_query_that_fails_is_started_again_until_it_has_done_its_work(orders: Lab) -> None:
    consumer = orders.consumer()
    stream = orders.stream("orders", startingOffsets="earliest")
    starts = Starts(lambda: consumer.start(stream, available_now=True))
    consumer.failing = lambda _batch: starts.count < 3
    partq.supervise(starts)
    assert starts.count == 3
    assert consumer.values == [b"one", b"two"]


def test_the_example_of_the_page_runs_until_its_query_is_stopped(orders: Lab) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "supervise" in each)
    store = orders.spark._jvm.java.lang.System.getenv("PARTQ_STORE")  # type: ignore[union-attr]
    queue = partq.create_queue("orders", partitions=1, exist_ok=True, store=store)
    queue.create_group("billing", starting="earliest")
    with queue.publisher() as publisher:
        publisher.send("paid")
    seen: list[bytes] = []

    def handle(batch: DataFrame, _batch_id: int) -> None:
        seen.extend(bytes(row.value) for row in batch.collect())
        if seen:  # by another thread: to stop a query takes the end of its batch
            threads = [threading.Thread(target=query.stop) for query in orders.spark.streams.active]
            for thread in threads:
                thread.start()

    block = block.replace("/data/checkpoints", str(orders.folder))
    names: dict[str, Any] = {"handle": handle, "spark": orders.spark}
    exec(compile(block, "docs/operations.md", "exec"), names)  # noqa: S102 - our own page
    assert b"paid" in seen


def in_the_reader(orders: Lab) -> StreamingQuery:
    return orders.consumer().start(orders.stream("orders", endingOffsets="latest"))


def in_a_task_of_the_sink(orders: Lab) -> StreamingQuery:
    rows = orders.stream("orders", startingOffsets="earliest").selectExpr("'k' key", "nullif('v', 'v') value")
    return orders.publisher(rows, "orders", "publisher")


def in_the_sink(orders: Lab) -> StreamingQuery:
    return orders.publisher(orders.stream("orders", startingOffsets="earliest"), "bills", "publisher")


def in_for_each_batch(orders: Lab) -> StreamingQuery:
    def take(_batch: DataFrame, _batch_id: int) -> None:
        try:
            raise ValueError("a cause")
        except ValueError as cause:
            raise partq.Invalid("enough, says the application") from cause

    return foreach(orders, take)


def in_a_read_of_for_each_batch(orders: Lab) -> StreamingQuery:
    return foreach(orders, lambda _batch, _batch_id: orders.read("nothing").show())


def foreach(orders: Lab, take: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = orders.stream("orders", startingOffsets="earliest").writeStream.foreachBatch(take)
    return writer.option("checkpointLocation", str(orders.folder / "foreach")).start()


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (in_the_reader, "option 'endingOffsets' (value 'latest') is for batch reads"),
        (in_a_task_of_the_sink, "row 0 has no value: every message needs one"),
        (in_the_sink, "queue 'bills'"),
        (in_for_each_batch, "enough, says the application"),
        (in_a_read_of_for_each_batch, "queue 'nothing'"),
    ],
)
def test_invalid_is_raised_wherever_it_was_raised(
    orders: Lab, start: Callable[[Lab], StreamingQuery], says: str
) -> None:
    starts = Starts(lambda: start(orders))
    with pytest.raises(partq.Invalid) as caught:
        partq.supervise(starts)
    assert str(caught.value).startswith(says)
    assert starts.count == 1


def test_invalid_that_was_dealt_with_is_not_what_the_query_failed_with(orders: Lab) -> None:
    consumer = orders.consumer()
    stream = orders.stream("orders", startingOffsets="earliest")
    starts = Starts(lambda: consumer.start(stream, available_now=True))

    def failing(_batch: int) -> bool:
        try:
            raise partq.Invalid("an inner matter")
        except partq.Invalid as error:
            if starts.count == 1:
                raise RuntimeError("another matter") from error
        return False

    consumer.failing = failing
    partq.supervise(starts)
    assert starts.count == 2


def test_what_the_first_start_raises_is_raised_and_what_a_later_one_refuses_is_invalid(orders: Lab) -> None:
    """`.load()` tells of both as Spark's error."""
    with pytest.raises(PySparkException, match="queue 'bills'"):
        partq.supervise(lambda: orders.consumer().start(orders.stream("bills")))
    consumer = orders.consumer()
    consumer.failing = lambda _batch: True

    def start() -> StreamingQuery:
        name = "orders" if starts.count == 1 else "bills"
        return consumer.start(orders.stream(name, startingOffsets="earliest"))

    starts = Starts(start)
    with pytest.raises(partq.Invalid, match=r"^queue 'bills'"):
        partq.supervise(starts)
    assert starts.count == 2


DRIVER = """
import sys

from pyspark.sql import SparkSession

import partq


def session():
    made = SparkSession.builder.master("local[1]").config("spark.driver.memory", "1g")
    return made.config("spark.ui.enabled", "false").getOrCreate()


def supervised(start):
    try:
        partq.supervise(start)
    except Exception as error:
        print("raised", type(error).__name__, str(error).replace(chr(10), " "), flush=True)


def start():
    print("start", flush=True)
    rows = spark.readStream.format("rate").load().writeStream.foreachBatch(handle)
    return rows.option("checkpointLocation", "checkpoint").start()


def handle(batch, number):
    if stops:
        stops.pop().stop()
        raise RuntimeError("the session was stopped")
    print("runs", flush=True)


spark = session()
stops = [spark]
supervised(start)
spark = session()
supervised(start)
"""


@pytest.mark.crash
def test_a_stopped_session_and_a_dead_jvm_are_raised(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = spark_environment(tmp_path, {"PYTHONPATH": str(ROOT)})
    with Program.script(script, None, name="driver", folder=tmp_path, environment=environment) as driver:
        driver.wait_until(lambda: "runs" in lines(driver), "a query that runs, in the second session")
        (jvm,) = (each for each in driver.family() if each.name() == "java")
        jvm.kill()
        assert driver.wait_end() == 0, driver.tail()
    told = [line for line in lines(driver) if line in ("start", "runs") or line.startswith("raised")]
    starts = [each for each in told if each == "start"]
    raised = [each for each in told if each.startswith("raised")]
    assert "No active or default Spark session" in raised[0], raised
    assert raised[1].startswith(("raised Py4J", "raised Connection")), raised
    assert len(starts) == 3, "once, again with the stopped session, and once with the new one"


def lines(driver: Program) -> list[str]:
    return driver.log.read_text().splitlines()


CLIENT = """
import logging
import os
import sys

from pyspark.sql import SparkSession

import partq

logging.basicConfig(format="%(message)s", stream=sys.stdout)
store = "file://" + os.path.abspath("store")
partq.create_queue("orders", partitions=1, store=store)
made = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "1g")
spark = made.config("spark.ui.enabled", "false").getOrCreate()
starts = []


def start(**options):
    starts.append(options)
    if len(starts) == 1:  # a query that fails, but not with Invalid
        return started(spark.readStream.format("rate").load().selectExpr("raise_error('away')"))
    return started(spark.readStream.format("partq").option("store", store).options(**options).load("orders"))


def started(rows):
    writer = rows.writeStream.format("noop").option("checkpointLocation", os.path.abspath(f"checkpoint-{len(starts)}"))
    return writer.trigger(**({"availableNow": True} if len(starts) == 2 else {"processingTime": "0 seconds"})).start()


partq.supervise(start)
print("ended after", len(starts), "starts", flush=True)
try:
    partq.supervise(lambda: start(endingOffsets="latest"))
except partq.Invalid as error:
    print("refused:", error, flush=True)
os._exit(0)
"""


@pytest.mark.connect
def test_it_is_the_same_with_spark_connect(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    environment = spark_environment(tmp_path, {"PYTHONPATH": str(ROOT)})
    with Program.script(script, None, name="client", folder=tmp_path, environment=environment) as client:
        assert client.wait_end() == 0, client.tail()
    told = [line for line in lines(client) if line.startswith(("the query failed", "ended", "refused"))]
    assert [line.split(":")[0].split(",")[0] for line in told] == [
        "the query failed (1 in a row)",
        "ended after 2 starts",
        "refused",
    ], told
    assert "option 'endingOffsets' (value 'latest') is for batch reads" in told[-1]
