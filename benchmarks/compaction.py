"""Part `compaction`: what many small publishes cost a reader, and what is left of it when they are compacted.

The same messages are published twice: by 10,000 publishes, and at once. Both are read as a task reads them, all
partitions one after the other, to the source's Arrow batches; then by streaming queries. Rounds take turns.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import pyarrow as pa

from benchmarks.bed import NAMESPACE
from benchmarks.messages import make_messages
from benchmarks.report import Goal, Measure, Series
from benchmarks.settings import PARTITIONS, Settings
from benchmarks.staging import staged
from partq_spark.log import tree
from partq_spark.log.admin import create_queue
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.staged import stage_of
from partq_spark.objects import open_store
from partq_spark.query.columns import batches, default_columns

logger = logging.getLogger(__name__)

PUBLISHES: Final = 10_000
_ROWS: Final = 100  # of one small publish
GOAL: Final = Goal(sign=">=", limit=0.9)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Reading before and after compaction against one publish of all; how long compaction takes, and how much it
    writes.
    """
    publishes = PUBLISHES // 10 if settings.quick else PUBLISHES
    store = open_store(f"file://{settings.work}/store")
    small, whole = (create_queue(store, NAMESPACE, name, PARTITIONS) for name in ("small", "whole"))
    rows = make_messages(publishes * _ROWS)
    for number in range(publishes):
        _publish(small, rows.slice(number * _ROWS, _ROWS))
    _publish(whole, rows)
    before = _turns(small, whole, rows.num_rows, 1)  # takes most of the time, and is no close call
    begun_s = time.perf_counter()
    steps: list[Compacted] = []
    while (done := compact(small, min_age_s=0.0)) is not None:
        steps.append(done)
    took_s = time.perf_counter() - begun_s
    after = _turns(small, whole, rows.num_rows, settings.rounds)
    slices = f"{sum(step.slices_before for step in steps):,} slices became {sum(step.slices for step in steps):,}"
    logger.info("compacted in %.1f s: %s", took_s, slices)
    written = sum(step.messages for step in steps) / rows.num_rows
    return [
        _compared(f"{publishes:,} small publishes, as they came", before, None),
        _compared(f"{publishes:,} small publishes, compacted", after, GOAL),
        _compared(
            "the same by a streaming query, its micro-batches", _queries(small, whole, rows.num_rows, settings), GOAL
        ),
        Measure(what="compaction", subject=Series(name="partq", unit="s", samples=(took_s,))),
    ], [f"{slices}; each message was written anew {written:.2f} times."]


def _publish(queue: QueueLog, rows: pa.Table) -> None:
    stage = stage_of(queue.refresh())
    publish(queue, stage, [staged(queue, stage, rows)])


def _turns(one: QueueLog, other: QueueLog, rows: int, rounds: int) -> list[tuple[float, float]]:
    """Messages per second of both, round by round; the first round warms up and does not count."""
    found = [(_rate(one, rows), _rate(other, rows)) for _ in range(rounds + 1)]
    return found[1:]


def _queries(one: QueueLog, other: QueueLog, rows: int, settings: Settings) -> list[tuple[float, float]]:
    """The same by streaming queries with AvailableNow into noop: without how a query starts and ends."""
    from benchmarks.spark import checked, run_to_end, session

    with session(settings.work) as spark:

        def rate(queue: QueueLog) -> float:
            where = {"store": queue.store.url, "namespace": queue.namespace}
            stream = spark.readStream.format("partq").options(**where, startingOffsets="earliest")
            run = run_to_end(stream.load(queue.name).writeStream.format("noop"), settings.work / "checkpoint")
            return rows / checked(run, rows, f"reading {queue}").batches_s

        found = [(rate(one), rate(other)) for _ in range(settings.rounds + 1)]
    return found[1:]


def _rate(queue: QueueLog, rows: int) -> float:
    head = queue.refresh()
    read = 0
    begun_s = time.perf_counter()
    for partition, (start, end) in enumerate(zip(head.earliest, head.next, strict=True)):
        view = tree.view(head, {partition: (start, end)})
        pieces = RangeReader(queue, head.queue_id, view).pieces()
        made = batches(pieces, queue=queue.name, wanted=default_columns(None, False), redelivered_below={})
        read += sum(batch.num_rows for batch in made)
    took_s = time.perf_counter() - begun_s
    if read != rows:
        raise RuntimeError(f"{queue} gave {read} messages, {rows} were published")
    return rows / took_s


def _compared(what: str, found: list[tuple[float, float]], goal: Goal | None) -> Measure:
    ours, theirs = zip(*found, strict=True)
    return Measure(
        what=what,
        subject=Series(name="partq", unit="rows/s", samples=tuple(ours)),
        reference=Series(name="published at once", unit="rows/s", samples=tuple(theirs)),
        goal=goal,
    )
