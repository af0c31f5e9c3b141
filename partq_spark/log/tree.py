"""Older entries as a tree of immutable chunks: how the head stays small, and how a place in a long history is found.

The head holds the newest entries inline. When they grow too many, the oldest of them become a chunk of level 0, and
sixteen chunks of one level become one of the next (`LogSizes`), so a head refers to a few chunks per level, however
long the history. Walking prunes by offset, seeking by time; both read only the chunks on their way. I/O is the
caller's `load` and `create`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from msgspec import structs

from partq_spark.base.errors import ObjectMissing
from partq_spark.base.json_documents import checksum
from partq_spark.log import codec, names
from partq_spark.log.clocks import LoadChunk, Seek, Times
from partq_spark.log.model import Chunk, ChunkRef, Entry, Head, Origin, Slice, add, at, below, placed
from partq_spark.log.names import LogSizes
from partq_spark.log.schema.columns import Columns

Create = Callable[[str, bytes], None]
Wanted = Mapping[int, tuple[int, int]]  # partition -> half-open range of offsets


# --- growing ----------------------------------------------------------------------------------------------------------


def overflow(entries: Sequence[Entry], sizes: LogSizes) -> int:
    """How many of the oldest entries must leave the head: none until a limit is passed, then down to half of it."""
    size = sum(map(codec.entry_bytes, entries))
    if size <= sizes.inline_bytes and len(entries) <= sizes.inline_entries:
        return 0
    moved = 0
    while moved < len(entries) and (size > sizes.inline_bytes // 2 or len(entries) - moved > sizes.inline_entries // 2):
        size -= codec.entry_bytes(entries[moved])
        moved += 1
    return moved


def rolled(head: Head, stage_sequence: int, create: Create, sizes: LogSizes) -> Head:
    """`head` with its inline entries within their limits; chunks that this takes are created first, under new names.

    A chunk whose head is never swapped in is rubbish that collection finds by `stage_sequence`.
    """
    moved = overflow(head.entries, sizes)
    if not moved:
        return head
    tree = [*head.tree, leaf(head.entries[:moved], stage_sequence, create)]
    level, fan_out = 0, sizes.fan_out
    while len(same := [ref for ref in tree if ref.level == level]) > fan_out:
        first = tree.index(same[0])
        tree[first : first + fan_out] = [node(same[:fan_out], stage_sequence, create)]
        level += 1
    return replace(head, tree=tuple(tree), entries=head.entries[moved:])


def rows_of(entries: Sequence[Entry]) -> tuple[int, ...]:
    """Messages per partition in `entries`."""
    rows = rows_by_partition(piece for entry in entries for piece in entry.slices)
    return tuple(rows.get(partition, 0) for partition in range(max(rows, default=-1) + 1))


def rows_by_partition(slices: Iterable[Slice]) -> dict[int, int]:
    """Messages in `slices`, of the partitions that have any."""
    rows: dict[int, int] = {}
    for piece in slices:
        rows[piece.partition] = rows.get(piece.partition, 0) + piece.rows
    return rows


def leaf(entries: Sequence[Entry], stage_sequence: int, create: Create) -> ChunkRef:
    """A chunk of entries, created under a new name."""
    data = codec.encode_chunk(Chunk(chunks=(), entries=tuple(entries)))
    name = names.new_chunk(0, stage_sequence)
    create(name, data)
    slices = sum(len(entry.slices) for entry in entries)
    began, least_us = entries[0].first_time_us, min(entry.first_time_us for entry in entries)
    return ChunkRef(
        name=name,
        xxh3=checksum(data),
        level=0,
        sequence=(entries[0].first_sequence, entries[-1].sequence),
        time_us=(least_us, max(entry.time_us for entry in entries)),
        rows=rows_of(entries),
        bytes=sum(piece.length for entry in entries for piece in entry.slices),
        slices=slices,
        coarsest=sum(entry.rows for entry in entries) // max(slices, 1),
        began=None if began == least_us else began,
    )


def node(refs: Sequence[ChunkRef], stage_sequence: int, create: Create) -> ChunkRef:
    """A chunk of references, created under a new name, one level above them."""
    data = codec.encode_chunk(Chunk(chunks=tuple(refs), entries=()))
    level = refs[0].level + 1
    name = names.new_chunk(level, stage_sequence)
    create(name, data)
    least_us = min(ref.first_time_us for ref in refs)
    return ChunkRef(
        name=name,
        xxh3=checksum(data),
        level=level,
        sequence=(refs[0].first_sequence, refs[-1].last_sequence),
        time_us=(least_us, max(ref.last_time_us for ref in refs)),
        rows=reduce(add, [ref.rows for ref in refs], ()),
        bytes=sum(ref.bytes for ref in refs),
        slices=sum(ref.slices for ref in refs),
        coarsest=max(ref.coarsest for ref in refs),
        holds=None if all(ref.holds is None for ref in refs) else sum(ref.messages for ref in refs),
        began=None if refs[0].began_us == least_us else refs[0].began_us,
    )


# --- walking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LogView:
    """What of a head is needed to find the messages of some ranges: small enough to travel to a task.

    `chunks` pairs each chunk with the offset at which it begins in the wanted partitions. `columns` are those of a
    typed queue: what slices of each version hold.
    """

    wanted: Wanted
    chunks: tuple[tuple[ChunkRef, Mapping[int, int]], ...]
    entries: tuple[Entry, ...]
    columns: Columns | None = None

    def only(self, partitions: Sequence[int]) -> LogView:
        """The view for some of its partitions; chunks and entries that have nothing of them are left out where it
        shows.
        """
        wanted = {partition: self.wanted[partition] for partition in partitions}
        return replace(
            self,
            wanted=wanted,
            chunks=tuple((ref, {p: begin[p] for p in partitions}) for ref, begin in self.chunks),
            entries=tuple(only(self.entries, wanted)),
        )


def view(head: Head, wanted: Wanted) -> LogView:
    """The part of `head` that leads to the messages in `wanted`."""
    wanted = {partition: span for partition, span in wanted.items() if span[0] < span[1]}
    begin = {partition: at(head.tree_begin, partition) for partition in wanted}
    return LogView(
        wanted=wanted,
        chunks=tuple(
            (structs.replace(ref, rows=()), here) for ref, here in _touched(head.tree, begin, wanted)
        ),  # the task reads the children's own counts; leaving the roots' out keeps a plan small
        entries=tuple(only(head.entries, wanted)),
        columns=head.columns,
    )


def walk(log: LogView, load: LoadChunk) -> Iterator[Entry]:
    """The entries of a view in publish order, each with only the slices that overlap what is wanted.

    Chunks are read one at a time as the walk reaches them. Raises what `load` raises.
    """
    for ref, begin in log.chunks:
        yield from _walk_chunk(load(ref), begin, log.wanted, load)
    yield from log.entries


def _walk_chunk(chunk: Chunk, begin: Mapping[int, int], wanted: Wanted, load: LoadChunk) -> Iterator[Entry]:
    for ref, here in _touched(chunk.chunks, begin, wanted):
        yield from _walk_chunk(load(ref), here, wanted, load)
    yield from only(chunk.entries, wanted)


def _touched(
    refs: Sequence[ChunkRef], begin: Mapping[int, int], wanted: Wanted
) -> Iterator[tuple[ChunkRef, dict[int, int]]]:
    """The refs that have something of what is wanted, each with the offsets at which it begins."""
    here = dict(begin)
    for ref in refs:
        after = {partition: offset + at(ref.rows, partition) for partition, offset in here.items()}
        if any(here[p] < after[p] and here[p] < to and after[p] > start for p, (start, to) in wanted.items()):
            yield ref, here
        here = after


def only(entries: Iterable[Entry], wanted: Wanted) -> Iterator[Entry]:
    """Those entries that have something of what is wanted, each with its slices that overlap it."""
    spans, nothing = dict(wanted), (0, 0)
    for entry in entries:
        kept = []
        for piece in entry.slices:
            start, to = spans.get(piece[0], nothing)  # by number: a chunk may have some hundred thousand slices
            if piece[4] < to and piece[4] + piece[5] > start:
                kept.append(piece)
        if kept:
            yield entry if len(kept) == len(entry.slices) else structs.replace(entry, slices=tuple(kept))


# --- what is lost -----------------------------------------------------------------------------------------------------


class Losses(NamedTuple):
    """What becomes of messages that a query counts on and the log has no more: an error, or a warning, where that may
    be (failOnDataLoss).
    """

    fail: bool
    warn: Callable[[str], None]

    def found(self, lost: str, hint: str) -> None:
        """Raises `ObjectMissing`, or warns."""
        if self.fail:
            raise ObjectMissing(f"{lost}: {hint}")
        self.warn(f"{lost}: skipped (failOnDataLoss=false)")


def check_kept(head: Head, partition: int, start: int, to: int, losses: Losses) -> None:
    """It is a loss if the log has not all of these messages."""
    earliest, end = min(to, at(head.earliest, partition)), at(head.next, partition)
    where = f"of partition {partition} of queue {head.queue!r}"
    if to > end:
        hint = "was the store restored from an older copy? start at another place, or set failOnDataLoss=false"
        losses.found(f"offsets up to {to} {where} are expected, it ends at {end}", hint)
    elif start < earliest:
        hint = "start again from `earliest`, or set failOnDataLoss=false to skip them"
        losses.found(f"offsets {start} to {earliest} {where} have been trimmed", hint)


def untrimmed(head: Head, spans: Wanted, losses: Losses) -> dict[int, tuple[int, int]]:
    """`spans` with what has been trimmed taken out, which is a loss."""
    result: dict[int, tuple[int, int]] = {}
    for partition, (start, to) in spans.items():
        check_kept(head, partition, start, to, losses)
        if partition < len(head.next):
            kept = min(to, head.next[partition])
            result[partition] = (min(max(start, head.earliest[partition]), kept), kept)
    return result


# --- seeking ----------------------------------------------------------------------------------------------------------


def offsets_at_time(
    head: Head, time_us: int, load: LoadChunk, times: Times | None = None, *, latest_us: int | None = None
) -> tuple[int, ...]:
    """Per partition, the offset of the first message published at or after `time_us`; the end where there is none.

    `times` reads the times of a slice of a compacted entry. Without it such an entry, where the time lies within its
    span, counts as published at or after: the offsets are then at most too low. Times after `latest_us` are false
    (`clocks`): what has one counts as published when the first message after it was that has not, or the head changed
    last, so it is at most taken for younger than it is.
    """
    seek = Seek(time_us=time_us, latest_us=latest_us, earliest=head.earliest, load=load, times=times)
    if not seek.ends_in(head.listed, head.tree_begin) and not seek.is_false(head.time_us) and head.time_us < time_us:
        return head.next  # nothing was published after the head's time
    return tuple(max(seek.before.get(partition, 0), earliest) for partition, earliest in enumerate(head.earliest))


def find_publish(head: Head, sequence: int, load: LoadChunk) -> Entry | None:
    """The entry that the publish of this sequence number is in: its own, or what it was compacted into. Reads one chunk
    of each level at most.

    What has been trimmed may not be found; the head's `trimmed_sequence` tells whether that can matter.
    """
    chunk, begin = head.listed, head.tree_begin
    while (found := _with_sequence(chunk.chunks, begin, sequence, head.earliest)) is not None:
        ref, begin = found
        chunk = load(ref)
    return next((entry for entry in chunk.entries if entry.first_sequence <= sequence <= entry.sequence), None)


def origin_of(head: Head, ends: Mapping[int, int]) -> Origin | None:
    """The newest publish with a message before these ends (by partition), by what the head itself says: of what lies in
    chunks the first publish of the newest one. None: no message before them is left.
    """
    for entry in reversed(head.entries):
        if any(piece.offset < ends.get(piece.partition, 0) for piece in entry.slices):
            return Origin(entry.sequence, entry.time_us, "" if entry.times else entry.token)
    found = None
    for ref, begin, after in placed(head.tree, head.tree_begin):
        if any(at(begin, p) < min(at(after, p), end) for p, end in ends.items()):
            found = Origin(ref.first_sequence, ref.began_us, "")
    return found


def has_publish(head: Head, origin: Origin, load: LoadChunk) -> bool | None:
    """Whether the log has this publish. None: nobody can tell any more, it was trimmed, or compacted with others."""
    entry = find_publish(head, origin.sequence, load)
    if entry is None:
        return None if origin.sequence <= head.trimmed_sequence else False
    if origin.token and not entry.times:
        return entry.token == origin.token
    if origin[:2] in ((entry.first_sequence, entry.first_time_us), (entry.sequence, entry.time_us)):
        return True
    return None if entry.first_time_us <= origin.time_us <= entry.time_us else False


def goes_on(before: Head, after: Head) -> bool:
    """Whether `after` shows by itself that it came from `before`: it has the newest publish that `before` had."""
    if before.entries:
        newest = before.entries[-1].token
        return any(entry.token == newest for entry in reversed(after.entries))
    return not before.tree or before.tree[-1] in after.tree


def time_after(head: Head, sequence: int) -> int:
    """A time that is later than that of every publish up to `sequence`, as early as the head alone can tell."""
    parts: tuple[ChunkRef | Entry, ...] = (*head.tree, *head.entries)
    for part in parts:
        if part.first_sequence > sequence:
            return part.first_time_us
    return head.time_us + 1


def _with_sequence(
    refs: Sequence[ChunkRef], begin: tuple[int, ...], sequence: int, earliest: tuple[int, ...]
) -> tuple[ChunkRef, tuple[int, ...]] | None:
    """The chunk with this sequence number, and where it begins, unless all of it is trimmed: it may be gone then."""
    for ref, before, after in placed(refs, begin):
        if ref.first_sequence <= sequence <= ref.last_sequence and not below(after, before, earliest):
            return ref, before
    return None


# --- shrinking --------------------------------------------------------------------------------------------------------


def pruned(head: Head) -> Head:
    """`head` without the oldest chunks and entries that lie wholly before its earliest offsets."""
    begin, tree = head.tree_begin, list(head.tree)
    while tree and below(after := add(begin, tree[0].rows), begin, head.earliest):
        begin = after
        del tree[0]
    entries = list(head.entries)
    while not tree and entries and all(s.end <= head.earliest[s.partition] for s in entries[0].slices):
        begin = add(begin, rows_of(entries[:1]))
        del entries[0]
    return replace(head, tree_begin=begin, tree=tuple(tree), entries=tuple(entries))


def tokens_gone_until(head: Head, earliest: tuple[int, ...]) -> int:
    """Guard: the highest sequence of an entry that `find_publish` may no longer find once `head` is trimmed to
    `earliest`; at least what it was.

    An entry or a chunk of entries goes when all its messages have gone. Of a chunk of chunks anything may have gone
    where this trim took something: that is not looked into.
    """
    gone = head.trimmed_sequence
    for ref, begin, after in placed(head.tree, head.tree_begin):
        spans = (
            (max(at(begin, p), at(head.earliest, p)), min(end, at(earliest, p))) for p, end in enumerate(after)
        )  # what this trim takes of it
        if any(start < end for start, end in spans) and (ref.level > 0 or below(after, begin, earliest)):
            gone = max(gone, ref.last_sequence)
    # Also one that stays in the head for now: it may move into a chunk that is below the earliest offsets at once.
    trimmed = (entry for entry in head.entries if all(s.end <= earliest[s.partition] for s in entry.slices))
    return max(gone, *(entry.sequence for entry in trimmed), 0)
