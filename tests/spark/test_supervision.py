"""When a query is started again, after which pause, and what ends it: with a clock of the test's own, without Spark;
then with real queries, whose errors' texts stand here shortened. For Spark Connect see `test_discovery`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import partq
from partq import Invalid, Unavailable
from partq_spark.base.effects import Effects
from partq_spark.spark.supervision import Raised, keep_running, raised, refusal
from tests.support.jvm import spark_environment
from tests.support.spark import Lab
from tools import ROOT
from tools.processes import Program

IN_THE_READER = """\
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform getDefaultReadLimit: \
Traceback (most recent call last):
  File "/opt/partq_spark/spark/option_values.py", line 50, in refuse
    raise Invalid(f"option {name!r} (value {shown}) {why}: {do}")
partq_spark.base.errors.Invalid: option 'endingOffsets' (value 'latest') is for batch reads: leave it out
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = 26fcda4f-6f9d-4b78-ac67-d41c46e579d0, runId = f266650f-acef-4ee3-bf19-11ec2f4e5860]
"""
IN_A_TASK = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/opt/partq_spark/log/segment.py", line 48, in read_slice
    raise Corrupt(f"segment {name} of {queue} is damaged")
partq_spark.base.errors.Corrupt: segment x of queue 'orders' is damaged
 SQLSTATE: 38000
=== Streaming Query ===
"""
IN_THE_PLAN = """\
[SPARK] something
=== Streaming Query ===
Project [Traceback (most recent call last):
partq_spark.base.errors.Invalid: a text of the query's own]
"""


@dataclass
class Time:
    """Time passes when somebody waits."""

    now_s: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, wait_s: float) -> None:
        self.pauses.append(wait_s)
        self.now_s += wait_s

    @property
    def effects(self) -> Effects:
        return Effects(now_s=lambda: self.now_s, sleep=self.sleep, uniform=lambda low, high: (low + high) / 2)


@dataclass(frozen=True)
class Life:
    """What becomes of one start: a query that runs for `ran_s`, then fails with `error` (None: it ends well)."""

    error: Exception | None = None
    ran_s: float = 1.0
    answers: bool = True  # False: its JVM is gone when it is asked what it failed with
    failed: bool = True  # False: it did not fail, waiting for it did


class Query:
    def __init__(self, time: Time, life: Life) -> None:
        self._time, self._life = time, life

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        self._time.now_s += self._life.ran_s
        if self._life.error is not None:
            raise self._life.error

    def exception(self) -> Exception | None:
        if not self._life.answers:
            raise ConnectionRefusedError("the JVM is gone")
        return self._life.error if self._life.failed else None


def run(lives: Iterable[Life | BaseException | None], *, session: bool = True) -> list[float]:
    """The pauses. `start()` returns these queries or None, or raises; `session`: whether a query's session is still
    there when it has failed.
    """
    time, left = Time(), list(lives)

    def start() -> StreamingQuery:
        life = left.pop(0)
        if isinstance(life, BaseException):
            raise life
        return life and Query(time, life)  # type: ignore[return-value] # as far as it is asked

    keep_running(start, time.effects, lambda _query: session)
    assert left == []
    return time.pauses


BROKEN = Life(RuntimeError("the store is away"))
WELL = Life()
AWAY = Unavailable("the store is away")
DEAD = ConnectionError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("lives", "session", "pauses"),
    [
        ([WELL], True, []),
        ([*[BROKEN] * 9, WELL], True, [1.125, 2.25, 4.5, 9, 18, 36, 54, 54, 54]),
        (  # anew after a healthy minute
            [BROKEN, BROKEN, replace(BROKEN, ran_s=59.9), replace(BROKEN, ran_s=60.0), BROKEN, WELL],
            True,
            [1.125, 2.25, 4.5, 1.125, 2.25],
        ),
        ([BROKEN, AWAY, AWAY, replace(BROKEN, ran_s=61.0), AWAY, WELL], True, [1.125, 2.25, 4.5, 1.125, 2.25]),
        ([BROKEN, WELL], False, [1.125]),  # it made another session
    ],
)
def test_what_fails_starts_again(lives: list[Life | BaseException | None], session: bool, pauses: list[float]) -> None:
    """Also a start that fails later, which is no healthy minute."""
    assert run(lives, session=session) == pytest.approx(pauses)


@pytest.mark.parametrize(
    ("lives", "session", "error"),
    [
        ([AWAY], True, AWAY),  # what the first start raises
        ([Life(DEAD, answers=False)], True, DEAD),  # a dead JVM: what waiting for the query raised
        ([BROKEN, DEAD], False, DEAD),  # one that died meanwhile, or a session that was stopped
        # A client that lost its server: another start would be a second query.
        ([Life(DEAD, failed=False)], True, DEAD),
        ([BROKEN, KeyboardInterrupt()], True, KeyboardInterrupt()),
        ([BROKEN, Invalid("wrong")], True, Invalid("wrong")),
        ([Life(Invalid("wrong"))], True, Invalid("wrong")),
        ([None], True, Invalid("start() returned None, which is no streaming query")),
        ([BROKEN, None], True, Invalid("start() returned None, which is no streaming query")),
        ([BROKEN, Life(RuntimeError(IN_THE_READER))], True, Invalid("option 'endingOffsets' (value 'latest') is for")),
    ],
)
def test_what_no_start_mends(lives: list[Life | BaseException | None], session: bool, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run(lives, session=session)
    assert str(caught.value).startswith(str(error))


def test_each_failure_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="partq.supervise"):
        run([*(Life(RuntimeError(text)) for text in (IN_A_TASK, "two\nlines")), Life(RuntimeError()), WELL])
    assert [record.getMessage() for record in caplog.records] == [
        f"the query failed ({number} in a row), it is started again in {pause_s} s: {reason}"
        for number, pause_s, reason in (
            (1, 1.1, "partq_spark.base.errors.Corrupt: segment x of queue 'orders' is damaged"),
            (2, 2.2, "two"),
            (3, 4.5, "RuntimeError"),
        )
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (IN_THE_READER, "partq_spark.base.errors.Invalid"),
        (IN_THE_READER.replace("=== Str", "\nJVM stacktrace:\n\tat x…\n=== Str"), "partq_spark.base.errors.Invalid"),
        (
            IN_A_TASK.replace("base.errors.Corrupt: segment x", "log.publish.Full: queue"),
            "partq_spark.log.publish.Full",
        ),
        (IN_A_TASK, "partq_spark.base.errors.Corrupt"),
        (IN_A_TASK.replace("partq_spark.base.errors.Corrupt: seg", "other.Invalid: seg"), "other.Invalid"),
        ("Traceback (most recent call last):\n  File …\nValueError\n", "ValueError"),
    ],
)
def test_the_last_traceback_says_what_was_raised(text: str, kind: str) -> None:
    found = raised(text)
    assert found is not None
    assert found.kind == kind
    assert found.is_refusal == (refusal(RuntimeError(text)) is not None) == kind.endswith(("errors.Invalid", "Full"))
    assert (found.message == "") == (kind == "ValueError"), "an error without a message has its class alone"


@pytest.mark.parametrize("text", ["", "no traceback", IN_THE_PLAN, "Traceback (most recent call last):\n  cut off"])
def test_an_error_without_a_traceback_says_nothing(text: str) -> None:
    assert raised(text) is None
    assert refusal(RuntimeError(text)) is None


def test_every_kind_of_invalid_is_known() -> None:
    """A query's error has only the name of its class, which is there when its module was imported."""
    import_module("partq_spark.log.publish")
    import_module("partq_spark.log.repetition")
    kinds: list[type[Invalid]] = [Invalid, *Invalid.__subclasses__()]
    every = {f"{each.__module__}.{each.__name__}" for each in kinds if each.__module__.startswith("partq_spark")}
    refused = {"Invalid", "BadRow", "WrongUse", "Full", "BatchRefused", "QueueGone"}
    assert {name.rpartition(".")[2] for name in every} == refused
    assert all(Raised(kind=name, message="").is_refusal for name in every)


# --- real queries -----------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(lab: Lab) -> Lab:
    lab.create("orders")
    lab.publish("orders", [("k", b"one"), ("k", b"two")])
    return lab


@pytest.mark.spark
def test_a_query_that_fails_is_started_again_until_it_has_done_its_work_or_is_refused(orders: Lab) -> None:
    """Also if an `Invalid` is in its error, that was dealt with. What the first start raises is raised."""
    consumer, starts = orders.consumer(), []
    stream = orders.stream("orders", startingOffsets="earliest")

    def start() -> StreamingQuery:
        starts.append("start")
        return consumer.start(stream if len(starts) < 4 else orders.stream("bills"), available_now=True)

    def failing(_batch: int) -> bool:
        try:
            raise Invalid("an inner matter")
        except Invalid as error:
            if len(starts) == 1:
                raise RuntimeError("another matter") from error
        return len(starts) < 3

    consumer.failing = failing
    partq.supervise(start)
    assert len(starts) == 3
    assert consumer.values == [b"one", b"two"]

    with pytest.raises(PySparkException, match="queue 'bills'"):  # `.load()` tells of it as Spark's error
        partq.supervise(start)
    del starts[2:]
    orders.publish("orders", [("k", b"three")])
    consumer.failing = lambda _batch: len(starts) < 4
    with pytest.raises(Invalid, match=r"^queue 'bills'"):
        partq.supervise(start)
    assert len(starts) == 4


@pytest.mark.spark
def test_invalid_is_raised_wherever_it_was_raised(orders: Lab) -> None:
    """In the reader, in a task of the sink, in `foreachBatch`."""
    rows = orders.stream("orders", startingOffsets="earliest")

    def handle(_batch: DataFrame, _batch_id: int) -> None:
        try:
            raise ValueError("a cause")
        except ValueError as cause:
            raise Invalid("enough, says the application") from cause

    by_hand = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(orders.folder / "foreach"))
    starts: tuple[tuple[str, Callable[[], StreamingQuery]], ...] = (
        (
            "option 'endingOffsets' (value 'latest') is for batch reads",
            lambda: orders.consumer().start(orders.stream("orders", endingOffsets="latest")),
        ),
        (
            "row 0 has no value: every message needs one",
            lambda: orders.publisher(rows.selectExpr("'k' key", "nullif('v', 'v') value"), "orders", "publisher"),
        ),
        ("enough, says the application", by_hand.start),
    )
    for says, start in starts:
        with pytest.raises(Invalid) as caught:
            partq.supervise(start)
        assert str(caught.value).startswith(says)
        assert caught.value.__cause__ is not None


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


@pytest.mark.spark
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
