"""What many small publishes cost a reader (`compaction`), how large the head becomes and what a publish costs then
(`head`), and how many of them several processes make beside each other (`publishers`).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Final

from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from benchmarks.staging import publish_rows, staged
from partq_spark.log import codec, tree
from partq_spark.log.admin import create_queue
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.destinations import stage_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.writers import PublishIdentity
from partq_spark.objects import open_store
from partq_spark.query.columns import batches, default_columns
from tools.messages import make_messages
from tools.report import Goal, Measure, compared, figure
from tools.servers import Azurite, S3Server, running

logger = logging.getLogger(__name__)


# --- compaction -------------------------------------------------------------------------------------------------------

_SMALL: Final = 10_000
_SMALL_ROWS: Final = 100  # of one small publish
_COMPACTED: Final = Goal(sign=">=", limit=0.9)


def compaction(settings: Settings) -> tuple[list[Measure], list[str]]:
    """The same messages, published by 10,000 publishes and at once, read as a task reads them to the source's Arrow
    batches, before and after compaction, then by streaming queries; how long compaction takes, and how much it writes.
    """
    publishes = _SMALL // 10 if settings.quick else _SMALL
    store = open_store(f"file://{settings.work}/store")
    queues = [create_queue(store, NAMESPACE, name, PARTITIONS) for name in ("small", "whole")]
    small, whole = queues
    rows = make_messages(publishes * _SMALL_ROWS)
    for number in range(publishes):
        publish_rows(small, rows.slice(number * _SMALL_ROWS, _SMALL_ROWS))
    publish_rows(whole, rows)
    rate = partial(_rate, rows.num_rows)
    before = _turns(rate, queues, 1)  # takes most of the time, and is no close call
    begun_s = time.perf_counter()
    steps: list[Compacted] = []
    while (done := compact(small, min_age_s=0.0)) is not None:
        steps.append(done)
    took_s = time.perf_counter() - begun_s
    after = _turns(rate, queues, settings.rounds)
    slices = f"{sum(step.slices_before for step in steps):,} slices became {sum(step.slices for step in steps):,}"
    written = sum(step.messages for step in steps) / rows.num_rows
    queries = _queries(queues, rows.num_rows, settings)
    return [
        _compared(f"{publishes:,} small publishes, as they came", before, None),
        _compared(f"{publishes:,} small publishes, compacted", after, _COMPACTED),
        _compared("the same by a streaming query, its micro-batches", queries, _COMPACTED),
        figure("compaction", [took_s], "s"),
    ], [f"{slices}; each message was written anew {written:.2f} times."]


def _turns(rate: Callable[[QueueLog], float], queues: Sequence[QueueLog], rounds: int) -> list[list[float]]:
    """Messages per second of each queue, round by round; the first round warms up and does not count."""
    return [[rate(queue) for queue in queues] for _ in range(rounds + 1)][1:]


def _queries(queues: Sequence[QueueLog], rows: int, settings: Settings) -> list[list[float]]:
    """The same by streaming queries with AvailableNow into noop: without how a query starts and ends."""
    from benchmarks.spark import checked, run_to_end, session

    with session(settings.work) as spark:

        def rate(queue: QueueLog) -> float:
            where = {"store": queue.store.url, "namespace": queue.namespace}
            stream = spark.readStream.format("partq").options(**where, startingOffsets="earliest")
            run = run_to_end(stream.load(queue.name).writeStream.format("noop"), settings.work / "checkpoint")
            return rows / checked(run, rows, f"reading {queue}").batches_s

        return _turns(rate, queues, settings.rounds)


def _rate(rows: int, queue: QueueLog) -> float:
    """All partitions, one after the other."""
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


def _compared(what: str, found: list[list[float]], goal: Goal | None) -> Measure:
    ours, theirs = zip(*found, strict=True)
    return compared(what, "rows/s", ("partq", ours), ("published at once", theirs), goal)


# --- the head ---------------------------------------------------------------------------------------------------------

_PUBLISHES: Final = 100_000
_WIDE: Final = 64
_WRITERS: Final = 50
_WIDE_ROWS: Final = 640


def head(settings: Settings) -> tuple[list[Measure], list[str]]:
    """The largest and the last size, and how fast the first and the last tenth were published.

    Every publish has messages for all 64 partitions and an identity (one of 50 writers), which is what makes a head
    large. All are of one staged segment: what is measured is the log, not the staging.
    """
    publishes = _PUBLISHES // 50 if settings.quick else _PUBLISHES
    queue = create_queue(open_store(f"file://{settings.work}/store"), NAMESPACE, "head", _WIDE)
    stage = stage_of(queue.refresh())
    segment = staged(queue, stage, make_messages(_WIDE_ROWS))
    if len({piece.partition for piece in segment.slices}) != _WIDE:
        raise RuntimeError(f"the segment does not reach all of {_WIDE} partitions: take more rows")
    sizes_kb: list[float] = []
    times_ms: list[float] = []
    for number in range(publishes):
        begun_s = time.perf_counter()
        publish(queue, [segment], PublishIdentity(writer=f"writer-{number % _WRITERS}", batch=number))
        times_ms.append(1000 * (time.perf_counter() - begun_s))
        # The size as a reader finds it. Encoding once more costs less than looking at the file would.
        sizes_kb.append(len(codec.HEAD.seal(queue.head)) / 1000)
    queue.refresh()
    if queue.head.messages != publishes * _WIDE_ROWS:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {publishes * _WIDE_ROWS} were published")
    tenth = publishes // 10
    # The medians of the times, since a table of ten thousand samples says no more.
    return [
        figure(f"head, largest over {publishes:,} publishes", [max(sizes_kb)], "kB", most=128, name="head"),
        figure("head, after the last", sizes_kb[-1:], "kB", name="head"),
        figure("a publish, first tenth", [statistics.median(times_ms[:tenth])], "ms", name="publish"),
        figure("a publish, last tenth", [statistics.median(times_ms[-tenth:])], "ms", name="publish"),
    ], []


# --- several publishers -----------------------------------------------------------------------------------------------

_PROCESSES: Final = (1, 4, 8)
_EACH: Final = 100
_ROWS: Final = 10
_LIMIT_S: Final = 300
_S3: Final = "an S3 server"
_NO_SLOWER: Final = Goal(sign=">=", limit=1.0)


def publishers(settings: Settings) -> tuple[list[Measure], list[str]]:
    """One, four and eight processes publish to one queue at once, 100 publishes each, on `file:`, Azurite and an S3
    server, which take turns in each round. Servers are new in each: Azurite is the slower the more it has seen.

    Each publish stages a segment of 10 messages and swaps it into the head, as a sink does; a writer's identity goes
    with it. Counted from the moment all processes are ready until the last one is done.
    """
    publishes = _EACH // 10 if settings.quick else _EACH
    cases = [(name, many) for many in _PROCESSES for name in ("file:", "Azurite", _S3)]
    rates: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    conflicts: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(settings.rounds):
        with running(Azurite()) as azurite, running(S3Server()) as s3:
            os.environ.update({**azurite.variables(), **s3.variables()})
            urls = {"file:": f"file://{settings.work}/store", "Azurite": azurite.fresh_url(), _S3: s3.fresh_url()}
            for name, many in cases:
                took_s, lost = _together(urls[name], f"by-{many}-round-{number}", many, publishes)
                rates[name, many].append(many * publishes / took_s)
                conflicts[name, many].append(lost / (many * publishes))
                logger.info("%s, %d: %s publishes/s", name, many, rates[name, many])
    measures: list[Measure] = []
    for (name, many), found in rates.items():
        who = f"{name}, {many} process{'es' if many > 1 else ''}"
        if name == _S3:
            sides = (("partq", found), ("Azurite", rates["Azurite", many]))
            measures.append(compared(f"{who}, publishes", "/s", *sides, _NO_SLOWER))
        else:
            measures.append(figure(f"{who}, publishes", found, "/s"))
        measures.append(figure(f"{who}, conflicts", conflicts[name, many], "per publish"))
    return measures, [f"The S3 server is {'versitygw' if S3Server.is_strict else 'Moto'}."]


def _together(url: str, name: str, processes: int, publishes: int) -> tuple[float, int]:
    """Seconds and conflicts; the queue must hold every message in the end."""
    queue = create_queue(open_store(url), NAMESPACE, name, PARTITIONS)
    new = multiprocessing.get_context("spawn")
    ready, lost = new.Barrier(processes + 1), new.Queue()
    arguments = (url, name, publishes, ready, lost)
    children = [new.Process(target=_publisher, args=arguments, daemon=True) for _ in range(processes)]
    for child in children:
        child.start()
    ready.wait(_LIMIT_S)
    begun_s = time.perf_counter()
    conflicts = sum(lost.get(timeout=_LIMIT_S) for _ in children)
    took_s = time.perf_counter() - begun_s
    for child in children:
        child.join(_LIMIT_S)
    expected = processes * publishes * _ROWS
    if queue.refresh().messages != expected:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {expected} were published")
    return took_s, conflicts


def _publisher(url: str, name: str, publishes: int, ready: Barrier, lost: Queue[int]) -> None:
    """In a process of its own: when all are ready, publish; then say how many conflicts there were."""
    store = open_store(url)
    queue = QueueLog(store, NAMESPACE, name)
    queue.refresh()
    messages = make_messages(publishes * _ROWS, os.getpid()).combine_chunks()
    writer = f"publisher-{os.getpid()}"
    ready.wait(_LIMIT_S)
    conflicts = 0
    for number in range(publishes):
        rows, identity = messages.slice(number * _ROWS, _ROWS), PublishIdentity(writer=writer, batch=number)
        conflicts += publish_rows(queue, rows, seed=f"{writer}/{number}", identity=identity).conflicts
    lost.put(conflicts)
    store.close()
