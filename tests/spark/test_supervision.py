"""When a query is started again, after which pause, and what ends it: with a clock of the test's own, without Spark.

`test_supervised_queries.py` shows the same with real queries, whose errors' texts stand here shortened.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib import import_module

import pytest

from partq import Invalid, Unavailable
from partq_spark.base.effects import Effects
from partq_spark.spark.supervision import Raised, Restarts, StreamingQuery, keep_running, raised, refusal, supervise


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


class Starts:
    """`start()`, whose answers are given: lives, or what it raises."""

    def __init__(self, time: Time, lives: Iterable[Life | Exception]) -> None:
        self._time, self._lives = time, iter(lives)
        self.count = 0

    def __call__(self) -> StreamingQuery:
        self.count += 1
        life = next(self._lives)
        if isinstance(life, Exception):
            raise life
        return Query(self._time, life)


def run(*lives: Life | Exception, session: bool = True) -> tuple[Time, Starts]:
    """`session`: whether a query's session is still there when it has failed."""
    time = Time()
    starts = Starts(time, lives)
    keep_running(starts, time.effects, lambda _query: session)
    return time, starts


BROKEN = Life(RuntimeError("the store is away"))
WELL = Life()
AWAY = Unavailable("the store is away")


@pytest.mark.parametrize(
    ("lives", "pauses"),
    [
        ([WELL], []),
        ([*[BROKEN] * 9, WELL], [1.125, 2.25, 4.5, 9, 18, 36, 54, 54, 54]),
        (
            [BROKEN, BROKEN, replace(BROKEN, ran_s=59.9), replace(BROKEN, ran_s=60.0), BROKEN, WELL],
            [1.125, 2.25, 4.5, 1.125, 2.25],  # anew after a healthy minute
        ),
        ([BROKEN, AWAY, AWAY, replace(BROKEN, ran_s=61.0), AWAY, WELL], [1.125, 2.25, 4.5, 1.125, 2.25]),
    ],
)
def test_what_fails_is_started_again_with_growing_pauses(lives: list[Life | Exception], pauses: list[float]) -> None:
    """Also a start that fails later, which is no healthy minute."""
    time, starts = run(*lives)
    assert starts.count == len(lives)
    assert time.pauses == pytest.approx(pauses)


@pytest.mark.parametrize(("chance", "first", "longest"), [(0.0, 1.0, 48.0), (1.0, 1.25, 60.0)])
def test_whatever_chance_says_a_pause_takes_1_to_60_seconds(chance: float, first: float, longest: float) -> None:
    restarts = Restarts()
    uniform: Callable[[float, float], float] = lambda low, high: low + chance * (high - low)  # noqa: E731
    pauses = [restarts.failed(ran_s=0.0, now_s=0.0, uniform=uniform) for _ in range(2000)]
    assert (pauses[0], pauses[-1]) == pytest.approx((first, longest))
    assert restarts.failures == 2000


def test_each_failure_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="partq.supervise"):
        run(Life(RuntimeError(IN_A_TASK)), Life(RuntimeError("two\nlines")), Life(RuntimeError()), WELL)
    assert [record.getMessage() for record in caplog.records] == [
        f"the query failed ({number} in a row), it is started again in {pause_s} s: {reason}"
        for number, pause_s, reason in (
            (1, 1.1, "partq_spark.base.errors.Corrupt: segment x of queue 'orders' is damaged"),
            (2, 2.2, "two"),
            (3, 4.5, "RuntimeError"),
        )
    ]


# --- what ends it -----------------------------------------------------------------------------------------------------

DEAD = ConnectionError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("lives", "session", "error"),
    [
        ([AWAY], True, AWAY),  # what the first start raises
        ([Life(DEAD, answers=False)], True, DEAD),  # a dead JVM: what waiting for the query raised
        ([BROKEN, DEAD], False, DEAD),  # one that died meanwhile, or a session that was stopped
        (
            [Life(DEAD, failed=False)],
            True,
            DEAD,
        ),  # a client that lost its server: another start would be a second query
    ],
)
def test_what_no_start_can_mend_is_raised(lives: list[Life | Exception], session: bool, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(*lives, session=session)
    assert caught.value is error


def test_a_start_that_makes_another_session_goes_on() -> None:
    assert len(run(BROKEN, WELL, session=False)[0].pauses) == 1


def test_invalid_is_raised_also_if_it_was_raised_in_another_process() -> None:
    for lives in ([BROKEN, Invalid("wrong")], [Life(Invalid("wrong"))]):
        with pytest.raises(Invalid, match=r"^wrong$"):
            run(*lives)
    error = RuntimeError(IN_THE_READER)
    with pytest.raises(Invalid, match=r"^option 'endingOffsets' .* leave it out$") as caught:
        run(BROKEN, Life(error))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("first", [True, False])
def test_a_start_that_returns_no_query_is_refused(first: bool) -> None:
    answers: list[object] = [None] if first else [Query(Time(), BROKEN), None]
    with pytest.raises(Invalid, match=r"start\(\) returned None, which is no streaming query"):
        keep_running(lambda: answers.pop(0), Time().effects, lambda _: True)  # type: ignore[arg-type, return-value] # a mistake


def test_ctrl_c_gets_through() -> None:
    time = Time()

    def interrupted(_wait_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_running(Starts(time, [BROKEN, WELL]), replace(time.effects, sleep=interrupted), lambda _: True)


# --- what Spark says of an error --------------------------------------------------------------------------------------

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
    assert {name.rpartition(".")[2] for name in every} == {"Invalid", "Full", "NumberUsed", "BatchRefused"}
    assert all(Raised(kind=name, message="").is_refusal for name in every)


def test_it_brings_no_spark() -> None:
    assert supervise.__module__ == "partq_spark.spark.supervision"
    code = "import sys, partq; partq.supervise; print({'pyspark', 'py4j'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"
