"""Compaction: many small slices become few large ones, with the same offsets, timestamps and generation.

A step takes a run of neighbouring references of the tree, writes their messages anew, partition by partition, and
swaps one reference in for the run. Until the swap nothing names what the step wrote, and after it nothing names what it
replaced; collection deletes both. So a crash at any point does no harm, and a reader with an older plan goes on until
the grace is over. A message is written anew only where its slice becomes at least four times as large: a logarithmic
number of times in its life. Which run is worth a step is decided in `runs`; when a step is made, by the caller.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from msgspec import structs

from partq_spark.base.effects import new_token
from partq_spark.base.errors import ObjectMissing
from partq_spark.log import clocks, names, tree
from partq_spark.log.model import ChunkRef, Entry, Head, Slice, add, at, below, placed
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.runs import ChunkRun, RunLimits, choose, fits
from partq_spark.log.schema.conform import widened
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.segment import TIMES_NAME, SegmentWriter, segment_schema

T = TypeVar("T")

MIN_AGE_S: Final = 300.0
"""Longer than a publish tries to settle an unknown outcome (`retryTimeout`, 120 s): its token goes with compaction."""

MOST_TRIES: Final = 8
"""In one step: runs whose entries are read though their references promised more than they held, and chunks that are
unfolded.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compacted:
    """What one step did. Bytes and slices are those of the messages that were written anew."""

    messages: int
    slices_before: int
    slices: int
    bytes_before: int
    bytes: int
    segments: int


def compact(queue: QueueLog, *, min_age_s: float = MIN_AGE_S) -> Compacted | None:
    """One bounded step; None if nothing is worth it, or others changed what was chosen (then the next call looks).

    Takes what was published at least `min_age_s` ago. With a retention a run spans at most a quarter of it (an hour is
    always allowed), since what was compacted goes as a whole. Raises `Corrupt` for a damaged slice; nothing is swapped
    then.
    """
    head = queue.refresh()
    retention_s = head.config.retention_s
    limits = RunLimits(
        until_us=queue.now_us() - int(min_age_s * 1_000_000),
        longest_us=None if retention_s is None else int(max(retention_s / 4, 3600.0) * 1_000_000),
        sizes=queue.sizes,
    )
    try:
        return _compact(queue, _with_old_entries_moved(queue, head, limits), limits)
    except ObjectMissing:  # trimmed and collected while this step was at it, or lost: a newer head tells
        return _compact(queue, queue.require(head.queue_id), limits)


def _with_old_entries_moved(queue: QueueLog, head: Head, limits: RunLimits) -> Head:
    """The head with its own old entries in a chunk, if they are so many that compacting them is worth it: of a queue
    that fell idle the newest publishes would stay as they came.
    """
    times = clocks.published_by([entry.time_us for entry in head.entries], head.time_us)
    old = head.entries[: sum(time_us <= limits.until_us for time_us in times)]
    slices = sum(len(entry.slices) for entry in old)
    partitions = {piece.partition for entry in old for piece in entry.slices}
    if not slices or slices < limits.sizes.slice_gain * len(partitions):
        return head
    made = tree.leaf(old, head.sequence, queue.create_blob)

    def decide(present: Head) -> Head:
        if present.entries[: len(old)] != old or not above_floor(present, head.sequence):
            return present
        grown = (*present.tree, made)
        return replace(present, tree=grown, entries=present.entries[len(old) :])

    return queue.change(decide)


def _compact(queue: QueueLog, head: Head, limits: RunLimits) -> Compacted | None:
    tried: set[str] = set()
    for _ in range(MOST_TRIES):
        run = choose(head.tree, head.tree_begin, head.earliest, limits, tried)
        if run is None:
            return None
        if not fits(run.refs, limits):  # one reference, where nothing else is worth it
            head = _unfolded(queue, head, run.refs[0])
            tried.add(run.refs[0].name)  # in vain if it was a chunk of entries, which is not divided
            continue
        found = _worth_it(run, _entries(queue, head, run), limits)
        if found is None:
            tried |= {ref.name for ref in run.refs}  # generations alternate, or little is left of it
            continue
        run, entries, plans = found
        written = [_written(queue, head, plan) for plan in plans]
        if not _swapped(queue, head, run, _reference(queue, head, run, written)):
            return None
        return Compacted(
            messages=sum(entry.rows for entry in written),
            slices_before=sum(len(entry.slices) for entry in entries),
            slices=sum(len(entry.slices) for entry in written),
            bytes_before=sum(piece.length for entry in entries for piece in entry.slices),
            bytes=sum(piece.length for entry in written for piece in entry.slices),
            segments=sum(len(entry.segments) for entry in written),
        )
    return None


def _unfolded(queue: QueueLog, head: Head, ref: ChunkRef) -> Head:
    """The head with the references of a chunk in place of that to it: it is too large for a step, or holds large slices
    and small ones. They count as of its level, so that the levels of the head's tree go on falling. What was trimmed of
    it may have been collected: the head does not name that again.
    """
    inside = tuple(structs.replace(each, level=ref.level) for each in queue.load_chunk(ref).chunks)
    if not inside:
        return head

    def decide(present: Head) -> Head:
        first = where_it_stands(present, (ref,))
        if first is None:
            return present
        made = tree.pruned(replace(present, tree=(*present.tree[:first], *inside, *present.tree[first + 1 :])))
        gone = [ref for ref, begin, end in placed(made.tree, made.tree_begin) if below(end, begin, made.earliest)]
        return present if any(ref in inside for ref in gone) else made

    return queue.change(decide)


def _entries(queue: QueueLog, head: Head, run: ChunkRun) -> list[tuple[Entry, ...]]:
    """For each reference of a run its entries with the slices that can still be read, in publish order."""
    wanted = {p: (earliest, head.next[p]) for p, earliest in enumerate(head.earliest)}
    found = []
    for ref, begin, _ in placed(run.refs, run.begin):
        view = tree.LogView(wanted=wanted, chunks=((ref, {p: at(begin, p) for p in wanted}),), entries=())
        found.append(tuple(tree.walk(view, queue.load_chunk)))
    return found


def _worth_it(
    run: ChunkRun, entries: Sequence[tuple[Entry, ...]], limits: RunLimits
) -> tuple[ChunkRun, tuple[Entry, ...], list[_Plan]] | None:
    """The run, if it keeps what its references promised; else that part of it which saves most, of its halves, their
    halves and so on; with its entries and what they become. None: no part keeps its promise.
    """
    parts = [(0, len(run.refs))]
    while parts:
        best, best_saved = None, -1
        for first, last in parts:
            refs, of_part = run.refs[first:last], tuple(chain.from_iterable(entries[first:last]))
            plans = _planned(of_part, limits.sizes)
            before, after = sum(len(entry.slices) for entry in of_part), sum(len(plan.slices) for plan in plans)
            gains = before >= limits.sizes.slice_gain * after
            if not before or not gains or before - after <= best_saved or not fits(refs, limits):
                continue
            begins = [begin for _, begin, _ in placed(run.refs, run.begin)]
            best, best_saved = (ChunkRun(refs, begins[first]), of_part, plans), before - after
        if best is not None:
            return best
        halves = [(first, (first + last) // 2, last) for first, last in parts if last - first > 1]
        parts = [half for first, middle, last in halves for half in ((first, middle), (middle, last))]
    return None


class _Source(NamedTuple):
    """One slice to be written anew, and what its entry says of it."""

    entry: Entry
    piece: Slice


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """One entry to be written: of consecutive entries with one generation, whose times rise."""

    entries: tuple[Entry, ...]
    slices: tuple[tuple[_Source, ...], ...]  # those that become one slice; partitions rising


def _planned(entries: Sequence[Entry], sizes: LogSizes) -> list[_Plan]:
    plans = []
    for together in _alike(entries):
        of_partition: dict[int, list[_Source]] = defaultdict(list)
        for entry in together:
            for piece in entry.slices:
                of_partition[piece.partition].append(_Source(entry, piece))
        most = (sizes.slice_messages, sizes.slice_bytes)
        slices = [
            each
            for partition in sorted(of_partition)
            for each in _grouped(of_partition[partition], lambda one: (one.piece.rows, one.piece.length), most)
        ]
        plans.append(_Plan(entries=tuple(together), slices=tuple(slices)))
    return plans


def _alike(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Consecutive entries that may become one: where time began anew (`clocks`) another one begins, so that the times
    in a slice rise and can be searched.
    """
    found: list[list[Entry]] = []
    for entry in entries:
        last = found[-1][-1] if found else None
        if last is None or entry.generation != last.generation or entry.first_time_us < last.time_us:
            found.append([])
        found[-1].append(entry)
    return found


def _grouped(
    items: Iterable[T], size: Callable[[T], tuple[int, ...]], most: tuple[int, ...]
) -> Iterator[tuple[T, ...]]:
    """Consecutive items, as many together as have at most the sizes `most`, at least one."""
    held: list[T] = []
    total: tuple[int, ...] = ()
    for item in items:
        total = add(total, size(item))
        if held and any(one > other for one, other in zip(total, most, strict=True)):
            yield tuple(held)
            held, total = [], size(item)
        held.append(item)
    if held:
        yield tuple(held)


def _written(queue: QueueLog, head: Head, plan: _Plan) -> Entry:
    """Write the segments of one compacted entry; the entry. In memory is one slice and what it is made of."""
    first, last = plan.entries[0], plan.entries[-1]
    headers = any(entry.headers for entry in plan.entries)
    segment_bytes, run_bytes = queue.sizes.segment_bytes, queue.sizes.run_bytes
    schema = segment_schema(head.columns, headers=headers, times=True)  # of the newest version, if it has any
    segments: list[str] = []
    slices: list[Slice] = []
    with ExitStack() as open_segment:
        writer: SegmentWriter | None = None
        partition = -1
        for sources in plan.slices:
            if writer is None or (sources[0].piece.partition != partition and writer.position >= segment_bytes):
                open_segment.close()
                segments.append(names.new_segment(head.sequence))
                path = queue.segment_folder + segments[-1]
                writer = open_segment.enter_context(SegmentWriter(queue.store, path, schema))
            partition, offset = sources[0].piece.partition, sources[0].piece.offset
            # As one, unless that is more than a run in memory: what compresses well can become very large.
            read = (_read(queue, source, schema) for source in sources)
            for batches in _grouped(read, lambda batch: (batch.nbytes,), (run_bytes,)):
                made = writer.write(partition, pa.concat_batches(batches))
                slices.append(made._replace(segment=len(segments) - 1, offset=offset))
                offset += made.rows
    return Entry(
        sequence=last.sequence,
        token=new_token(),
        writer=None,
        batch=0,
        time_us=last.time_us,
        generation=last.generation,
        headers=headers,
        schema_version=head.columns.version if head.columns is not None else None,
        segments=tuple(segments),
        slices=tuple(slices),
        first=(first.first_sequence, first.first_time_us),
    )


def _read(queue: QueueLog, source: _Source, schema: pa.Schema) -> pa.RecordBatch:
    """A slice with the columns of `schema`: with its times, and null for headers and columns that it does not have."""
    entry, piece = source
    batch = queue.read_slice(entry, piece, thoroughly=True)
    if not entry.times:
        data = pa.py_buffer(struct.pack("=q", entry.time_us) * batch.num_rows)  # pa.scalar would import pandas
        times = pa.Array.from_buffers(TIMESTAMP, batch.num_rows, [None, data], null_count=0)
        batch = batch.append_column(pa.field(TIMES_NAME, TIMESTAMP, nullable=False), times)
    return widened(batch, schema)


def _reference(queue: QueueLog, head: Head, run: ChunkRun, entries: Sequence[Entry]) -> ChunkRef:
    """The reference to a chunk of `entries` that takes the place of the run.

    It has the level of the last one that it replaces, so that the levels of the head's tree go on falling, and counts
    the same messages, also those that had been trimmed: offsets are found by counting.
    """
    rows = reduce(add, [ref.rows for ref in run.refs])
    leaf = tree.leaf(entries, head.sequence, queue.create_blob)
    holds = None if leaf.rows == rows else leaf.messages
    return structs.replace(leaf, level=run.refs[-1].level, rows=rows, holds=holds)


def _swapped(queue: QueueLog, head: Head, run: ChunkRun, made: ChunkRef) -> bool:
    """Put `made` in place of the run; whether it stands there."""

    def decide(present: Head) -> Head:
        first = where_it_stands(present, run.refs)
        if first is None or not above_floor(present, head.sequence):
            return present  # also after an earlier try whose answer was lost
        return replace(
            present,
            tree=(*present.tree[:first], made, *present.tree[first + len(run.refs) :]),
            trimmed_sequence=tokens_compacted_until(present, run),
        )

    return made in queue.change(decide).tree


def where_it_stands(head: Head, refs: tuple[ChunkRef, ...]) -> int | None:
    """Guard: where they begin in the head's tree, if they are there as chosen; anything else is left alone."""
    there = range(len(head.tree) - len(refs) + 1)
    return next((first for first in there if head.tree[first : first + len(refs)] == refs), None)


def above_floor(head: Head, staged: int) -> bool:
    """Guard: what was written under this sequence number may have been collected already if the floor has passed it."""
    return staged >= head.floor.sequence


def tokens_compacted_until(head: Head, run: ChunkRun) -> int:
    """Guard: a publish that looks for its token among what is compacted must not take it for never published."""
    return max(head.trimmed_sequence, run.refs[-1].last_sequence)
