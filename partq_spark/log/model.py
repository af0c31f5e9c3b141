"""The values that make up a queue's log: frozen, without behaviour beyond their own arithmetic, without I/O.

Their fields, in this order, and the ranges of these are the log's format: `codec` writes and reads them as they stand.
A value that is written as a list, or that leaves out what is not there, is a Struct of msgspec; the others are
dataclasses. How they change is decided in `publish`, `tree` and `housekeeping`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from partq_spark.base.json_documents import Positive, Whole
from partq_spark.log.schema.columns import Columns
from partq_spark.log.settings import QueueConfig

FORMAT = 1
"""The head of a typed queue has the next one, so that software that knows no columns refuses it by name (TYP-08)."""

MAX_PARTITIONS = 1000
MAX_KEY_BYTES = 255  # conformance DIS-04

Offsets = tuple[Whole, ...]
"""Per partition, from 0 up."""


def key_too_long(which: str, size: int) -> str:
    """The words in which a key of `size` bytes is refused (DIS-04); `which` begins it."""
    return f"the key {which} {too_long(size)}"


def too_long(size: int) -> str:
    """What is said of a key of `size` bytes."""
    return f"has {size} bytes in UTF-8, at most {MAX_KEY_BYTES} are allowed: shorten it or hash it"


class Slice(NamedTuple):
    """The messages of one partition in one run of a segment. A tuple, not a dataclass: a plan holds hundreds of
    thousands.
    """

    partition: Whole
    segment: Whole  # index into Entry.segments
    start: Whole  # first byte of the slice's record batches in the segment
    length: Whole  # bytes
    offset: Whole  # of its first message
    rows: Whole
    xxh3: str  # 16 hex digits over the bytes

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.offset + self.rows


class Origin(NamedTuple):
    """A publish that somebody has read, told from one that took its place in a store put back from an older copy. What
    the head does not name singly (compacted, or in a chunk) has no token: sequence number and time tell it.
    """

    sequence: int
    time_us: int
    token: str


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One publish: visible as a whole, in all partitions at once (DIS-08). Or what compaction made of several."""

    sequence: Whole  # of the head that it came with
    token: str  # tells this publish from every other, also from its own repetition by another process
    writer: str | None  # None: published without an identity
    batch: Whole
    time_us: Whole  # Unix time of publishing, strictly growing from entry to entry, unless one is false (`clocks`)
    generation: Whole  # of the layout that placed its messages
    headers: bool  # whether its segments have the headers column
    schema_version: Positive | None = None  # of the queue's columns, which its segments have; None: key and value
    segments: tuple[str, ...]
    slices: tuple[Slice, ...]  # in publish order for each partition
    first: tuple[Whole, Whole] | None = None  # compacted: sequence and time of the first publish in it

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)

    @property
    def times(self) -> bool:
        """Whether it was compacted from several publishes: its segments have the timestamp column, and `sequence` and
        `time_us` are those of the last.
        """
        return self.first is not None

    @property
    def first_sequence(self) -> int:
        return self.first[0] if self.first is not None else self.sequence

    @property
    def first_time_us(self) -> int:
        return self.first[1] if self.first is not None else self.time_us


class ChunkRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to an immutable chunk: at level 0 it holds entries, above that references of lower levels."""

    name: str
    xxh3: str  # 16 hex digits over the chunk's bytes
    level: Whole
    sequence: tuple[Whole, Whole]  # of the first and of the last publish in it
    time_us: tuple[Whole, Whole]  # the least and the greatest
    rows: tuple[Whole, ...]  # messages per partition; shorter than the partition count if later partitions have none
    bytes: Whole  # of its slices
    slices: Whole
    coarsest: Whole  # messages per slice, on average, of that chunk of entries in it where they are most
    holds: Whole | None = (
        None  # messages that its bytes are of, if not all in `rows`: compaction leaves out trimmed ones
    )
    began: Whole | None = None  # the time of its first publish, if that is not the least: a clock was wrong

    @property
    def first_sequence(self) -> int:
        return self.sequence[0]

    @property
    def last_sequence(self) -> int:
        return self.sequence[1]

    @property
    def first_time_us(self) -> int:
        return self.time_us[0]

    @property
    def last_time_us(self) -> int:
        return self.time_us[1]

    @property
    def began_us(self) -> int:
        """The time of its first publish."""
        return self.first_time_us if self.began is None else self.began

    @property
    def messages(self) -> int:
        """Messages that its bytes are of."""
        return sum(self.rows) if self.holds is None else self.holds


class Chunk(Struct, frozen=True, kw_only=True):
    """A part of the log, the oldest first: references, then entries. A chunk of level 0 holds entries alone, one of a
    higher level references alone; a head lists both.
    """

    chunks: tuple[ChunkRef, ...]
    entries: tuple[Entry, ...]


class ArrayValue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is written as a list of its fields' values."""


class Layout(ArrayValue, frozen=True, kw_only=True):
    """One partition count in a queue's life. `begin` is the first offset of each of its partitions under it."""

    generation: Whole
    partitions: Positive
    since_sequence: Whole
    begin: Offsets


class Group(ArrayValue, frozen=True, kw_only=True):
    """A consumer group: where each partition begins for it, resolved once, before its first flow.

    `rewinds` counts how often somebody has rewound checkpoints of the group: a process that remembers them reads them
    again when it has changed. `ownership` is how its flows share it: `none` (one has all of it), `store` or `redis`,
    without an address; None until the first flow joins (`groups`).
    """

    since_sequence: Whole
    start: Offsets
    rewinds: Whole = 0
    ownership: str | None = None


class WriterRecord(ArrayValue, frozen=True, kw_only=True):
    """The last batch of a writer, for idempotence. `owner` is the query that writes under a user's writer name, if
    any. `sum` is over the checksums of its slices (`writers.slices_sum`).
    """

    batch: Whole
    owner: str | None
    token: str
    sequence: Whole
    time_us: Whole
    sum: str


class Resolution(ArrayValue, frozen=True, kw_only=True):
    """What a person said of a writer's batches from number `batch` on: `published` before, or new. It counts until the
    writer publishes again: while its last publish is the one with `token`.
    """

    writer: str
    batch: Whole
    published: bool
    token: str
    time_us: Whole
    by: str


class WriterPage(ArrayValue, frozen=True, kw_only=True):
    """A reference to an immutable page of writer records that were moved out of the head, oldest first.

    It has `lines` lines of equal length, `bytes` in all. The hash of a writer's name says in which its record is.
    """

    name: str
    xxh3: str
    level: Whole
    writers: Whole
    last_time_us: Whole
    lines: Positive
    bytes: Whole

    @property
    def line_bytes(self) -> int:
        return self.bytes // self.lines


class StageFloor(ArrayValue, frozen=True, kw_only=True):
    """What collection needs to tell an abandoned blob from one that is about to be published.

    A publish that was staged at a sequence number below `sequence` is refused. `next_sequence` becomes the floor once
    it is one grace old, counted from `next_time_us`.
    """

    sequence: Whole
    next_sequence: Whole
    next_time_us: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Everything that a queue is, in one document that is only changed by compare-and-swap.

    `next` and `earliest` have one offset per partition number ever used. `tree` is oldest first, its levels falling;
    the entries in `entries` follow it. `tree_begin` is the offset, per partition, of the first message that `tree`
    counts. An entry up to `trimmed_sequence` may be gone from tree and entries, trimmed or compacted; none after it is.
    `subscriptions` are the topics that this queue attracts (DIS-07), sorted. `columns` are those of a typed queue.
    `resolutions` are one for each writer, oldest first.
    """

    namespace: str
    queue: str
    queue_id: str
    created_us: Whole
    sequence: Whole
    time_us: Whole
    config: QueueConfig
    columns: Columns | None = None
    layouts: Annotated[tuple[Layout, ...], Meta(min_length=1)]
    next: Offsets
    earliest: Offsets
    groups: Mapping[str, Group]
    writers: Mapping[str, WriterRecord]
    writer_pages: tuple[WriterPage, ...]
    resolutions: tuple[Resolution, ...]
    floor: StageFloor
    trimmed_sequence: Whole
    subscriptions: tuple[str, ...]
    tree_begin: Offsets
    tree: tuple[ChunkRef, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def created(
        cls,
        namespace: str,
        queue: str,
        queue_id: str,
        partitions: int,
        *,
        config: QueueConfig,
        now_us: int,
        columns: Columns | None = None,
    ) -> Head:
        """A queue as it begins: nothing in it, nobody knows it."""
        zeros = (0,) * partitions
        return cls(
            namespace=namespace,
            queue=queue,
            queue_id=queue_id,
            created_us=now_us,
            sequence=1,
            time_us=now_us,
            config=config,
            columns=columns,
            layouts=(Layout(generation=0, partitions=partitions, since_sequence=1, begin=zeros),),
            next=zeros,
            earliest=zeros,
            groups={},
            writers={},
            writer_pages=(),
            resolutions=(),
            floor=StageFloor(sequence=0, next_sequence=0, next_time_us=0),
            trimmed_sequence=0,
            subscriptions=(),
            tree_begin=(),
            tree=(),
            entries=(),
        )

    @property
    def listed(self) -> Chunk:
        """What of the log the head itself lists."""
        return Chunk(chunks=self.tree, entries=self.entries)

    @property
    def layout(self) -> Layout:
        return self.layouts[-1]

    @property
    def partitions(self) -> int:
        """The present partition count."""
        return self.layout.partitions

    @property
    def messages(self) -> int:
        """Messages that can be read now."""
        return sum(self.next) - sum(self.earliest)

    @property
    def stored_bytes(self) -> int:
        """Stored (compressed) bytes of the messages that can be read. A slice that is trimmed in part counts whole; a
        chunk that is trimmed in part counts in proportion to its messages.
        """
        total, begin, whole = 0, self.tree_begin, False
        for ref in self.tree:
            # Trimming goes from the front, so behind the first chunk that is whole in all partitions all are.
            whole = whole or all(at(begin, p) >= earliest for p, earliest in enumerate(self.earliest))
            if whole:
                total += ref.bytes
                continue
            after = add(begin, ref.rows)
            left = sum(max(end - max(at(begin, p), at(self.earliest, p)), 0) for p, end in enumerate(after))
            total += ref.bytes * min(left, ref.messages) // max(ref.messages, 1)
            begin = after
        for entry in self.entries:
            total += sum(piece.length for piece in entry.slices if piece.end > self.earliest[piece.partition])
        return total


def add(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The sum of two vectors per partition; the shorter one counts as zero beyond its end."""
    if len(left) < len(right):
        left, right = right, left
    return tuple([a + b for a, b in zip(left, right, strict=False)]) + left[len(right) :]


def group_start(group: Group | None, partition: int) -> int:
    """Where a group begins in a partition. A number that came after the group begins at 0: nothing in it is older than
    the group, also where it was removed and is back (RES-02).
    """
    return at(group.start, partition) if group is not None else 0


def at(vector: tuple[int, ...], partition: int) -> int:
    """A vector's value for one partition; 0 beyond its end."""
    return vector[partition] if partition < len(vector) else 0


def placed(
    refs: Sequence[ChunkRef], begin: tuple[int, ...]
) -> Iterator[tuple[ChunkRef, tuple[int, ...], tuple[int, ...]]]:
    """Neighbouring references, each with the offsets per partition at which it begins and ends, as counted from `begin`
    on.
    """
    for ref in refs:
        after = add(begin, ref.rows)
        yield ref, begin, after
        begin = after


def below(after: tuple[int, ...], begin: tuple[int, ...], earliest: tuple[int, ...]) -> bool:
    """Whether all messages between `begin` and `after` have been trimmed."""
    return all(end <= earliest[p] or end == at(begin, p) for p, end in enumerate(after))
