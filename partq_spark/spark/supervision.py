"""A streaming query that is started again when it fails.

When it is started again, after which pause, and what ends it, is decided here, from what Spark says of the failure and
the time; starting and waiting is the few lines of `keep_running`. What a Python worker raised stands in the text of
Spark's errors only. pyspark is imported when a start has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from partq_spark.base.effects import Effects, Retry, store_effects
from partq_spark.base.errors import BadRow, Invalid, WrongUse
from partq_spark.client.arguments import checked
from partq_spark.log.publish import Full
from partq_spark.log.queue import QueueGone
from partq_spark.log.repetition import BatchRefused

HEALTHY_S: Final = 60.0
"""A query that ran for so long was well: the next pause is the first again."""

FIRST_PAUSE_S: Final = 1.25
MOST_PAUSE_S: Final = 60.0
_LEAST: Final = 0.8
"""Of a pause; the rest is left to chance, so that queries that failed together do not come back together."""

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_OF_THE_QUERY: Final = "\n=== Streaming Query ===\n"
"""What Spark says of the query after what went wrong: its plan may hold any text."""

_REFUSALS: Final = frozenset(
    f"{kind.__module__}.{kind.__qualname__}" for kind in (Invalid, BadRow, WrongUse, Full, BatchRefused, QueueGone)
)

_log = logging.getLogger("partq.supervise")


class StreamingQuery(Protocol):
    """What is asked of a query of Spark, classic or Connect."""

    def awaitTermination(self) -> object:
        """Return when the query was stopped or has done its work; raise when it failed."""

    def exception(self) -> Exception | None:
        """What ended it; None if it did not fail. Raises if its JVM does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """What a Python worker raised: the full name of its class, and the first line of its message."""

    kind: str
    message: str

    @property
    def is_refusal(self) -> bool:
        """Whether it is an `Invalid`: the same start would meet it again."""
        return self.kind in _REFUSALS


def raised(text: str) -> Raised | None:
    """What was raised in Python, by an error's text as Spark has it; None if no traceback is in it.

    A text may have several tracebacks, of causes and of what wrapped what: the last one ends with what was raised, on
    the first line that is not indented.
    """
    _, found, last = text.partition(_OF_THE_QUERY)[0].rpartition(_TRACEBACK)
    line = next((line for line in last.splitlines() if line and not line[0].isspace()), "") if found else ""
    kind, _, message = line.partition(": ")
    return Raised(kind=kind, message=message) if kind else None


def refusal(error: Exception) -> Invalid | None:
    """The `Invalid` that `error` is, or that Spark tells of in it; None if it is something else."""
    if isinstance(error, Invalid):
        return error
    found = raised(str(error))
    if found is None or not found.is_refusal:
        return None
    made = Invalid(found.message)
    made.__cause__ = error
    return made


@checked
def supervise(start: Callable[[], StreamingQuery]) -> None:
    """Keep a streaming query running: start the one that `start()` returns, and start it again when it fails, until it
    is stopped or has done its work. Blocks.

    Pauses between two starts grow from 1 to 60 seconds, and begin anew after the query ran for a minute. What `start()`
    raises the first time is raised. So is `Invalid`, whether `start()` raises it or the query fails with it, since it
    would come again. A JVM (or a Spark Connect server) that does not answer any more raises Spark's error, and so does
    a `start()` that uses a stopped session.
    """
    keep_running(start, store_effects(), is_spark_there)


def keep_running(
    start: Callable[[], StreamingQuery], effects: Effects, is_spark_there: Callable[[StreamingQuery], bool]
) -> None:
    """`supervise`, with a clock, a sleep and a chance of the caller's. `is_spark_there`: whether anything can be
    started still, by a query that has failed.
    """
    retry = Retry(first_s=FIRST_PAUSE_S, most_s=MOST_PAUSE_S, least=_LEAST)
    query: StreamingQuery | None = None
    error: Exception | None
    while True:
        try:
            query = _started(start)
        except Exception as failed:  # told by the next pause, or raised where no start would mend it
            if query is None or not is_spark_there(query):
                raise
            began_s, error = effects.now_s(), failed
        else:
            began_s = effects.now_s()
            error = _failure(query)
        if error is None:
            return
        _pause(retry, error, effects.now_s() - began_s, effects)


def _pause(retry: Retry, error: Exception, ran_s: float, effects: Effects) -> None:
    """Before the next start, after the query had run for `ran_s` (0: it could not be started). Pauses grow from failure
    to failure, and begin anew after a run of a healthy minute. Raises what no start would mend.
    """
    refused = refusal(error)
    if refused is not None:
        raise refused
    if ran_s >= HEALTHY_S:
        retry.succeeded()
    now_s = effects.now_s()
    retry.failed(now_s)
    pause_s = retry.pause_s(now_s, effects.uniform) or MOST_PAUSE_S
    told = "the query failed (%d in a row), it is started again in %.1f s: %s"
    _log.warning(told, retry.failures, pause_s, _reason(error))
    effects.sleep(pause_s)


def _started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    query = start()
    if not (hasattr(query, "awaitTermination") and hasattr(query, "exception")):
        raise Invalid(f"start() returned {query!r}, which is no streaming query: return what `.start()` returned")
    return query


def _failure(query: StreamingQuery) -> Exception | None:
    """What the query failed with; None: it ended well. Raises what is not the query's: its JVM does not answer."""
    try:
        query.awaitTermination()
    except Exception:  # what is not of the query is raised again
        found = _ended_by(query)
        if found is None:
            raise
        return found
    return None


def _ended_by(query: StreamingQuery) -> Exception | None:
    """What the query failed with; None if it did not fail, or if the JVM in which it ran does not answer."""
    try:
        return query.exception()
    except Exception:  # noqa: BLE001 - of many kinds; the caller has a better one to raise
        return None


def _reason(error: Exception) -> str:
    """In a line."""
    found = raised(str(error))
    if found is not None:
        return f"{found.kind}: {found.message}"
    return str(error).partition("\n")[0] or type(error).__name__


def is_spark_there(query: StreamingQuery) -> bool:
    """Whether the JVM (or the server, with Spark Connect) of a query that failed answers, and has a context that was
    not stopped: this one, or one that was made since.
    """
    if type(query).__module__.startswith("pyspark.sql.connect"):
        return _ended_by(query) is not None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - Spark has no other word for it, here and below
    try:
        return context is not None and not context._jsc.sc().isStopped()  # noqa: SLF001
    except Exception:  # noqa: BLE001 - of many kinds, all of them a JVM that is gone
        return False
