"""Part `head`: how large a queue's head becomes, and what a publish costs, over 100,000 publishes to 64 partitions.

Every publish has messages for all 64 partitions and an identity (one of 50 writers), which is what makes a head large.
All publishes are of one staged segment: what is measured is the log, not the staging.
"""

from __future__ import annotations

import logging
import statistics
import time
from typing import Final

from benchmarks.bed import NAMESPACE
from benchmarks.messages import make_messages
from benchmarks.report import Goal, Measure, Series
from benchmarks.settings import Settings
from benchmarks.staging import staged
from partq_spark.log import codec
from partq_spark.log.admin import create_queue
from partq_spark.log.publish import PublishIdentity, publish
from partq_spark.log.staged import stage_of
from partq_spark.objects import open_store

PUBLISHES: Final = 100_000
PARTITIONS: Final = 64
WRITERS: Final = 50
_ROWS: Final = 640
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """The largest and the last size, and how fast the first and the last tenth were published."""
    publishes = PUBLISHES // 50 if settings.quick else PUBLISHES
    queue = create_queue(open_store(f"file://{settings.work}/store"), NAMESPACE, "head", PARTITIONS)
    stage = stage_of(queue.refresh())
    segment = staged(queue, stage, make_messages(_ROWS))
    reached = {piece.partition for piece in segment.slices}
    if len(reached) != PARTITIONS:
        raise RuntimeError(f"the segment reaches {len(reached)} of {PARTITIONS} partitions: take more rows")
    sizes: list[int] = []
    times_s: list[float] = []
    for number in range(publishes):
        begun_s = time.perf_counter()
        publish(queue, stage, [segment], PublishIdentity(writer=f"writer-{number % WRITERS}", batch=number))
        times_s.append(time.perf_counter() - begun_s)
        # The size as a reader finds it. Encoding once more costs less than looking at the file would.
        sizes.append(len(codec.encode_head(queue.head)))
        if (number + 1) % (publishes // 5) == 0:
            logger.info("%d publishes, head %d bytes", number + 1, sizes[-1])
    queue.refresh()
    if queue.head.messages != publishes * _ROWS:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {publishes * _ROWS} were published")
    tenth = publishes // 10
    goal = Goal(sign="<=", limit=128, unit="kB")
    return [
        Measure(what=f"head, largest over {publishes:,} publishes", subject=_sizes((max(sizes),)), goal=goal),
        Measure(what="head, after the last", subject=_sizes((sizes[-1],))),
        Measure(what="a publish, first tenth", subject=_milliseconds(times_s[:tenth])),
        Measure(what="a publish, last tenth", subject=_milliseconds(times_s[-tenth:])),
    ], []


def _sizes(sizes: tuple[int, ...]) -> Series:
    return Series(name="head", unit="kB", samples=tuple(size / 1000 for size in sizes))


def _milliseconds(times_s: list[float]) -> Series:
    """The median, since a table of ten thousand samples says no more."""
    return Series(name="publish", unit="ms", samples=(statistics.median(times_s) * 1000,))
