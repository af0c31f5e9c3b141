"""Part `workers`: what two of Spark's settings for its Python workers are worth to partq's source and sink.

Unix sockets in place of TCP between the JVM and its workers, and a thread of its own for writing to a worker while the
task reads from it. Both are settings of a driver, so each sample has a driver of its own; the drivers take turns.
Within each, publishing and reading run once to warm up.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.bed import Bed, bed
from benchmarks.floor import BATCH_ROWS
from benchmarks.microbatch import FIRST_BATCHES, durations, publish_ahead
from benchmarks.report import Measure, Series
from benchmarks.settings import Settings
from benchmarks.spark import Run, checked
from partq_spark.log.queue import QueueLog

SIDES: Final[Mapping[str, Mapping[str, str]]] = {
    "Spark's default": {},
    "unix sockets": {"spark.python.unix.domain.socket.enabled": "true"},
    "pipelined": {"spark.python.udf.pipelined.enabled": "true"},
}
_BATCHES: Final = 100
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Of one driver. Rates are of whole queries, in thousands of rows a second; a micro-batch is in ms."""

    publishing: float
    reading: float
    reading_alone: float  # its micro-batches alone
    micro_batch: float


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """A driver for each side and round."""
    found: dict[str, list[Sample]] = {name: [] for name in SIDES}
    for number in range(settings.rounds):
        for name, given in SIDES.items():
            with bed(settings, spark=given) as made:
                found[name].append(_sample(made, settings))
            logger.info("round %d of %d: %s, %s", number + 1, settings.rounds, name, found[name][-1])

    def series(name: str, what: str, unit: str) -> Series:
        return Series(name=name, unit=unit, samples=tuple(getattr(sample, what) for sample in found[name]))

    default, *others = SIDES
    return [
        Measure(what=f"{title}: {name}", subject=series(name, what, unit), reference=series(default, what, unit))
        for what, title, unit in (
            ("publishing", "publishing, whole query", "k rows/s"),
            ("reading", "reading, whole query", "k rows/s"),
            ("reading_alone", "reading, micro-batches alone", "k rows/s"),
            ("micro_batch", f"a micro-batch of {BATCH_ROWS} rows, into noop", "ms"),
        )
        for name in others
    ], []


def _sample(made: Bed, settings: Settings) -> Sample:
    stream = made.spark.readStream.format("partq").option("startingOffsets", "earliest")

    def published() -> tuple[QueueLog, Run]:
        queue = made.fresh_queue()
        return queue, checked(made.publishing("partq", made.options(queue)), settings.rows, "publishing")

    def read(queue: QueueLog) -> Run:
        return checked(made.reading(stream.options(**made.options(queue)).load), settings.rows, "reading")

    published()  # warms up, and so does the first read
    queue, publishing = published()
    read(queue)
    reading = read(queue)
    wanted = 20 if settings.quick else _BATCHES
    small = made.fresh_queue()
    publish_ahead(small, FIRST_BATCHES + wanted)
    steady = stream.options(**made.options(small), maxMessagesPerTrigger=BATCH_ROWS).load()
    return Sample(
        publishing=settings.rows / publishing.wall_s / 1000,
        reading=settings.rows / reading.wall_s / 1000,
        reading_alone=settings.rows / reading.batches_s / 1000,
        micro_batch=statistics.median(durations(steady.writeStream.format("noop"), made.fresh_folder(), wanted)),
    )
