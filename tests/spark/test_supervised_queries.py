"""`partq.supervise` with real queries: what fails is started again, what would fail again is raised; so is what ends
everything: a session that was stopped, a JVM that is dead. For Spark Connect see `test_discovery`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import partq
from tests.support.processes import Program, spark_environment
from tests.support.servers import ROOT
from tests.support.spark import Lab

pytestmark = pytest.mark.spark


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
    lab.create("orders")
    lab.publish("orders", [("k", b"one"), ("k", b"two")])
    return lab


def test_a_query_that_fails_is_started_again_until_it_has_done_its_work(orders: Lab) -> None:
    """Also if an `Invalid` is in its error, that was dealt with."""
    consumer = orders.consumer()
    stream = orders.stream("orders", startingOffsets="earliest")
    starts = Starts(lambda: consumer.start(stream, available_now=True))

    def failing(_batch: int) -> bool:
        try:
            raise partq.Invalid("an inner matter")
        except partq.Invalid as error:
            if starts.count == 1:
                raise RuntimeError("another matter") from error
        return starts.count < 3

    consumer.failing = failing
    partq.supervise(starts)
    assert starts.count == 3
    assert consumer.values == [b"one", b"two"]


def foreach(orders: Lab, take: Callable[[DataFrame, int], object]) -> StreamingQuery:
    def handle(batch: DataFrame, batch_id: int) -> None:
        take(batch, batch_id)

    writer = orders.stream("orders", startingOffsets="earliest").writeStream.foreachBatch(handle)
    return writer.option("checkpointLocation", str(orders.folder / "foreach")).start()


def enough(_batch: DataFrame, _batch_id: int) -> None:
    try:
        raise ValueError("a cause")
    except ValueError as cause:
        raise partq.Invalid("enough, says the application") from cause


REFUSALS: dict[str, tuple[Callable[[Lab], StreamingQuery], str]] = {
    "in the reader": (
        lambda lab: lab.consumer().start(lab.stream("orders", endingOffsets="latest")),
        "option 'endingOffsets' (value 'latest') is for batch reads",
    ),
    "in a task of the sink": (
        lambda lab: lab.publisher(
            lab.stream("orders", startingOffsets="earliest").selectExpr("'k' key", "nullif('v', 'v') value"),
            "orders",
            "publisher",
        ),
        "row 0 has no value: every message needs one",
    ),
    "in foreachBatch": (lambda lab: foreach(lab, enough), "enough, says the application"),
    "in a read of foreachBatch": (lambda lab: foreach(lab, lambda *_: lab.read("nothing").show()), "queue 'nothing'"),
}


@pytest.mark.parametrize("where", REFUSALS)
def test_invalid_is_raised_wherever_it_was_raised(orders: Lab, where: str) -> None:
    start, says = REFUSALS[where]
    starts = Starts(lambda: start(orders))
    with pytest.raises(partq.Invalid) as caught:
        partq.supervise(starts)
    assert str(caught.value).startswith(says)
    assert starts.count == 1


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


@pytest.mark.nightly
@pytest.mark.crash
def test_a_stopped_session_and_a_dead_jvm_are_raised(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = spark_environment(tmp_path, {"PYTHONPATH": str(ROOT)})
    with Program.script(script, None, name="driver", folder=tmp_path, environment=environment) as driver:
        driver.wait_until(lambda: "runs" in driver.text().splitlines(), "a query that runs, in the second session")
        (jvm,) = (each for each in driver.family() if each.name() == "java")
        jvm.kill()
        assert driver.wait_end() == 0, driver.tail()
    lines = driver.text().splitlines()
    raised = [each for each in lines if each.startswith("raised")]
    assert "No active or default Spark session" in raised[0], raised
    assert raised[1].startswith(("raised Py4J", "raised Connection")), raised
    assert lines.count("start") == 3, "once, again with the stopped session, and once with the new one"
