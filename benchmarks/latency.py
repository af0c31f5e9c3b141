"""Part `latency`: from publishing one message until `foreachBatch` has it, against Spark's Kafka connector.

A producer publishes one message every 137 ms, which is in step with nothing; each holds its number and is published
alone. A streaming query with the default trigger collects every micro-batch in `foreachBatch`. The clock of a message
starts before it is given to the producer and stops when its micro-batch has been collected. All sides take turns in one
session: partq without and with a group, Kafka with the connector's defaults and with a short fetch wait; each with
Spark's own logs as they are by default and with quick ones.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import partq
from benchmarks.bed import Bed, bed
from benchmarks.kafka import note as kafka_note
from benchmarks.parts import Settings
from benchmarks.spark import LOGS, logs
from tools.report import Goal, Measure, compared, figure

EVERY_S: Final = 0.137
MESSAGES: Final = 150
FIRST: Final = 20  # of every query, not counted: workers and code are warm then
VALUE_BYTES: Final = 100
FETCH_WAIT: Final = {"kafka.fetch.max.wait.ms": "10"}
_START_WAIT_S: Final = 120.0
_END_WAIT_S: Final = 60.0
logger = logging.getLogger(__name__)

Publish = Callable[[bytes], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way for messages to go: a new queue or topic, a producer to it and a stream from it, with every use."""

    name: str
    opened: Callable[[], AbstractContextManager[tuple[Publish, DataFrame]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Of one query, in ms."""

    p50: float
    p99: float


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """One round to warm up, then all sides in turns; without Kafka, partq's numbers alone."""
    count = 20 if settings.quick else MESSAGES
    with bed(settings) as made:
        ways = _ways(made)
        found: dict[tuple[str, str], list[Latencies]] = {(way.name, each): [] for each in LOGS for way in ways}
        for number in range(settings.rounds + 1):
            for each, quick in LOGS.items():
                for way in ways:
                    with logs(made.spark, quick=quick):
                        sample = _latencies(made, way, count if number else FIRST)
                    logger.info("round %d of %d: %s, %s, %s", number, settings.rounds, way.name, each, sample)
                    if number:  # the first warms up
                        found[way.name, each].append(sample)
    return _measures(found, count), [kafka_note()] if settings.peer else []


# --- the sides --------------------------------------------------------------------------------------------------------

_ALONE: Final = "partq"
_GROUP: Final = "partq, in a group"
_DEFAULT: Final = "Kafka, connector's defaults"
_TUNED: Final = "Kafka, fetch.max.wait.ms=10"


def _ways(made: Bed) -> list[Way]:
    ways = [
        Way(name=_ALONE, opened=lambda: _queue(made)),
        Way(name=_GROUP, opened=lambda: _queue(made, group="readers")),
    ]
    if made.topics is not None:
        ways += [
            Way(name=_DEFAULT, opened=lambda: _topic(made)),
            Way(name=_TUNED, opened=lambda: _topic(made, **FETCH_WAIT)),
        ]
    return ways


@contextmanager
def _queue(made: Bed, **options: str) -> Iterator[tuple[Publish, DataFrame]]:
    """A message does not wait for others (`linger_s`), as with Kafka's producer by default."""
    queue = made.fresh_queue()
    stream = made.spark.readStream.format("partq").options(**made.options(queue), **options).load()
    opened = partq.open_queue(queue.name, store=made.store, namespace=queue.namespace)
    with opened.publisher(linger_s=0) as publisher:

        def publish(value: bytes) -> None:
            publisher.send(value).result(_END_WAIT_S)

        yield publish, stream


@contextmanager
def _topic(made: Bed, **options: str) -> Iterator[tuple[Publish, DataFrame]]:
    topic = made.kafka.fresh()
    with made.kafka.producer(topic) as publish:
        yield publish, made.kafka.stream(topic, startingOffsets="latest", **options)


# --- one query --------------------------------------------------------------------------------------------------------


class _Arrivals:
    """When each message, by its number, was in `foreachBatch`, which Spark calls in a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_ns: dict[int, int] = {}

    def take(self, batch: DataFrame, _batch_id: int) -> None:
        numbers = [int(bytes(row.value)) for row in batch.collect()]
        now_ns = time.monotonic_ns()
        with self._changed:
            for number in numbers:
                if number in self._at_ns:
                    raise RuntimeError(f"message {number} came twice: the measurement is void")
                self._at_ns[number] = now_ns
            self._changed.notify_all()

    def wait_for(self, number: int, wait_s: float) -> bool:
        """Whether this message is there within so long."""
        with self._changed:
            return self._changed.wait_for(lambda: number in self._at_ns, wait_s)

    def wait_for_any(self, wait_s: float) -> bool:
        """Whether any message is there within so long."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._at_ns), wait_s)

    def at_ns(self, number: int) -> int:
        return self._at_ns[number]


def _latencies(made: Bed, way: Way, count: int) -> Latencies:
    """Of `count` messages, after those that wait for the query to run and those that do not count."""
    arrivals = _Arrivals()
    with way.opened() as (publish, stream):
        writer = stream.select("value").writeStream.foreachBatch(arrivals.take)
        query = writer.option("checkpointLocation", str(made.fresh_folder())).start()
        try:
            published = _publish_until_any_came(publish, arrivals, query)
            sent_ns = _publish_steadily(publish, published, FIRST + count)
            if not arrivals.wait_for(max(sent_ns), _END_WAIT_S):
                raise query.exception() or TimeoutError(f"{way.name}: a message did not come in {_END_WAIT_S:g} s")
            took_ms = [(arrivals.at_ns(number) - begun_ns) / 1e6 for number, begun_ns in sent_ns.items()][FIRST:]
        finally:
            query.stop()
    return Latencies(p50=statistics.median(took_ms), p99=statistics.quantiles(took_ms, n=100, method="inclusive")[98])


def _publish_until_any_came(publish: Publish, arrivals: _Arrivals, query: StreamingQuery) -> int:
    """A stream begins with what is published after it has begun. Returns how many were published."""
    until_s = time.monotonic() + _START_WAIT_S
    number = 0
    while not arrivals.wait_for_any(1.0):
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > until_s:
            raise TimeoutError(f"no message came within {_START_WAIT_S:g} s: {query.status}")
        publish(_value(number))
        number += 1
    return number


def _publish_steadily(publish: Publish, first: int, count: int) -> dict[int, int]:
    """One message every `EVERY_S`, each at its time; when each was given to the producer, by its number."""
    sent_ns: dict[int, int] = {}
    begun_s = time.monotonic()
    for number in range(first, first + count):
        time.sleep(max(0.0, begun_s + (number - first) * EVERY_S - time.monotonic()))
        sent_ns[number] = time.monotonic_ns()
        publish(_value(number))
    return sent_ns


def _value(number: int) -> bytes:
    return b"%0*d" % (VALUE_BYTES, number)


# --- the lines of the table -------------------------------------------------------------------------------------------


def _measures(found: dict[tuple[str, str], list[Latencies]], count: int) -> list[Measure]:
    """Each of partq's ways against each of Kafka's, with the same logs; the goals are about the median."""
    goals = {_TUNED: Goal(sign="<=", limit=1.0), _DEFAULT: Goal(sign="<=", limit=0.2)}

    def samples(name: str, each: str, percentile: Callable[[Latencies], float]) -> tuple[str, list[float]]:
        return name, [percentile(sample) for sample in found[name, each]]

    made = []
    for what, percentile, counts in (
        ("p50", lambda sample: sample.p50, True),
        ("p99", lambda sample: sample.p99, False),
    ):
        for each, way in product(LOGS, (_ALONE, _GROUP)):
            line = f"{way}: one message to foreachBatch, {what} of {count}, {each}"
            ours = samples(way, each, percentile)
            peers = [peer for peer in goals if (peer, each) in found]
            made += [
                compared(line, "ms", ours, samples(peer, each, percentile), goals[peer] if counts else None)
                for peer in peers
            ]
            if not peers:
                made.append(figure(line, ours[1], "ms", name=way))
    return made
