"""What must be true of a queue at every change of its head and every deletion, said without the code under test.

`WatchedStore` is the one true store of a simulation; it tells the oracle of each effect at the moment it happens,
all who learn of it later. The oracle decodes what was written with the codec and otherwise counts by hand: a list of
all entries, a list of all messages, a set of all objects that the present head needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from partq_spark.log import codec, tree, writers
from partq_spark.log.model import ChunkRef, Entry, Head, add, at
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.staged import Stage, Staged
from tests.log import payloads
from tests.log.watched import WatchedStore
from tests.support.judge import Violation, demand


@dataclass(slots=True)
class Attempt:
    """What one process staged for one publish. `segments` may be published together, in this order, or not at all."""

    queue_id: str
    writer: str | None
    batch: int
    segments: tuple[str, ...]
    rows: int
    versions: tuple[int, ...] = ()  # of the columns that each of its segments was staged for; none: untyped


@dataclass(slots=True)
class History:
    """All that ever happened to the queue with one id."""

    queue_id: str
    entries: list[Entry] = field(default_factory=list)
    messages: list[list[Any]] = field(default_factory=list)  # per partition, by offset; so are times, generations
    times_us: list[list[int]] = field(default_factory=list)
    generations: list[list[int]] = field(default_factory=list)
    published: dict[str, Entry] = field(default_factory=dict)  # by token
    compacted: dict[str, Entry] = field(default_factory=dict)  # by token, compared with what was published
    acknowledged: dict[str, dict[int, int]] = field(default_factory=dict)  # group -> partition -> may be trimmed up to
    last_batch: dict[str, tuple[int, int]] = field(default_factory=dict)  # writer -> batch, time of its entry
    last_row: dict[tuple[str, int | None, str | None], tuple[int, int]] = field(default_factory=dict)
    partition_of: dict[tuple[str, int], int] = field(default_factory=dict)  # key, generation -> its partition
    flat: dict[str, tuple[Entry, ...]] = field(default_factory=dict)  # chunk -> all entries below it
    children: dict[str, tuple[ChunkRef, ...]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    unneeded_since_us: dict[str, int] = field(default_factory=dict)


class Oracle:
    """Watches one queue by name. `now_us` is true time; `slack_us` is how much clocks may differ."""

    def __init__(self, base: str, head_name: str, now_us: Callable[[], int], grace_us: int, slack_us: int) -> None:
        self._base = base
        self._head_name = head_name
        self._now_us = now_us
        self._patience_us = grace_us - slack_us
        self.head: Head | None = None
        self.history: dict[str, History] = {}
        self.attempts: dict[str, Attempt] = {}
        self.origins: dict[str, str] = {}  # segment that was staged again -> that of its attempt
        self.changes = 0

    # --- what happened ------------------------------------------------------------------------------------------------

    def removed(self, name: str) -> None:
        if name == self._head_name:
            self.head = None

    def swapped(self, name: str, body: bytes, store: WatchedStore) -> None:
        if name != self._head_name:
            return
        self.changes += 1
        head, before = codec.decode_head(body, name), self.head
        self.head = head
        if before is None:
            demand(head.queue_id not in self.history, "queue id used twice:", head.queue_id)
            demand(head.sequence == 1 and not head.entries and not head.tree, "a new queue is not empty")
            self.history[head.queue_id] = History(queue_id=head.queue_id)
        past = self.history[head.queue_id]
        for per_partition in (past.messages, past.times_us, past.generations):
            per_partition += [[] for _ in head.next[len(per_partition) :]]
        if before is not None:
            self._check_change(before, head)
            self._check_groups(before, head, store)
            if sum(head.next) != sum(before.next):
                self._check_entry(before, head, store)
        self._check_listed(head, store)

    def acknowledging(self, name: str, metadata: Mapping[str, str]) -> None:
        """A checkpoint was written: what it says may be trimmed, until a rewind below it is counted."""
        if self.head is None or metadata.get("queue_id") != self.head.queue_id or "offset" not in metadata:
            return
        group, _, partition = name[len(self._base) :].partition("/checkpoint/")
        present = self.head.groups.get(group)
        if present is None or metadata["since"] != str(present.since_sequence):
            return  # by somebody whose group was removed
        mine = self.history[self.head.queue_id].acknowledged.get(group)
        if mine is not None:
            mine[int(partition)] = max(mine.get(int(partition), 0), int(metadata["offset"]))

    def noting(self, restaged: Callable[..., Staged]) -> Callable[..., Staged]:
        """`restaged`, and which segment came of which."""

        def noted(queue: QueueLog, task: Staged, present: Stage, **options: str) -> Staged:
            made = restaged(queue, task, present, **options)
            if made.segment.name != task.segment.name:
                self.origins[made.segment.name] = self._origin(task.segment.name)
            return made

        return noted

    def _origin(self, segment: str) -> str:
        return self.origins.get(segment, segment)

    def _origins(self, entry: Entry) -> tuple[str, ...]:
        return tuple(map(self._origin, entry.segments))

    def deleted(self, name: str) -> None:
        """A single object was deleted, by collection or after its queue."""
        head = self.head
        if head is None or f"/{head.queue_id}/" not in name:
            return
        past = self.history[head.queue_id]
        demand(name not in past.needed, "deleted what the head needs:", name)
        # What was never needed was given up with the floor: no publish can come to need it, however young it is.
        since_us = past.unneeded_since_us.get(name)
        if since_us is not None:
            age_us = self._now_us() - since_us
            demand(age_us >= self._patience_us, "deleted within grace:", name, f"{age_us / 3.6e9:.2f} h")

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_change(self, before: Head, head: Head) -> None:
        demand(head.queue_id == before.queue_id, "the queue id changed within a head")
        demand(head.sequence == before.sequence + 1, "sequence", before.sequence, "became", head.sequence)
        demand(head.time_us >= before.time_us, "the head's time went back")
        demand(all(a <= at(head.earliest, p) for p, a in enumerate(before.earliest)), "earliest went back")
        demand(all(a <= b for a, b in zip(head.earliest, head.next, strict=True)), "earliest beyond the end")
        demand(all(a <= at(head.next, p) for p, a in enumerate(before.next)), "the end went back")
        demand(len(head.next) >= head.partitions, "a partition has no end")
        demand(head.floor.sequence >= before.floor.sequence, "the stage floor went down")
        _check_columns(before.columns, head.columns)

    def _check_groups(self, before: Head, head: Head, store: WatchedStore) -> None:
        """Nothing is trimmed that a group needs: it needs what lies behind its checkpoints as they were acknowledged,
        from a rewind on what that went back to as soon as it is counted in the head.
        """
        past = self.history[head.queue_id]
        for name, group in head.groups.items():
            known = before.groups.get(name)
            if known is None or known.since_sequence != group.since_sequence or known.rewinds != group.rewinds:
                folder = f"{self._base}{name}/checkpoint/"
                found = {
                    p: store.offset_of(f"{folder}{p}", head.queue_id, group.since_sequence)
                    for p in range(len(head.next))
                }
                starts = dict(enumerate(group.start))
                past.acknowledged[name] = {p: starts.get(p, 0) if to is None else to for p, to in found.items()}
            for partition, earliest in enumerate(head.earliest):
                most = max(past.acknowledged[name].get(partition, 0), at(before.earliest, partition))
                demand(earliest <= most, "trimmed what group", name, "needs")
        for name in past.acknowledged.keys() - head.groups.keys():
            del past.acknowledged[name]

    def _check_entry(self, before: Head, head: Head, store: WatchedStore) -> None:
        past = self.history[head.queue_id]
        entry = self._newest(head, store)
        demand(entry.sequence == head.sequence, "the newest entry has another sequence than its head")
        demand(entry.time_us > (past.entries[-1].time_us if past.entries else 0), "time does not grow strictly")
        demand(entry.time_us == head.time_us, "the head's time is not its newest entry's")
        demand(entry.token not in {other.token for other in past.entries}, "one publish is in the log twice")
        demand(entry.generation == head.layout.generation, "placed for another layout")
        demand(all(piece.partition < head.partitions for piece in entry.slices), "in a partition that is not there")
        attempt = self.attempts.get(self._origin(entry.segments[0])) if entry.segments else None
        if attempt is None:
            raise Violation("an entry of segments that nobody staged")
        demand(attempt.queue_id == head.queue_id, "published to another queue than it was staged for")
        demand(self._origins(entry) == attempt.segments, "part of a publish became visible")
        demand(sum(piece.rows for piece in entry.slices) == attempt.rows, "messages of a publish are missing")
        demand((entry.writer or "") == (attempt.writer or "") and entry.batch == attempt.batch, "another's batch")
        self._check_batch(past, entry)
        following = list(before.next)
        for piece in entry.slices:
            demand(piece.offset == following[piece.partition], "offsets are not dense:", piece, before.next)
            following[piece.partition] += piece.rows
            rows, _ = store.peek_rows(self._segment(head, entry, piece.segment), piece, entry, head.columns)
            if head.columns is not None:
                staged_for = attempt.versions[attempt.segments.index(self._origin(entry.segments[piece.segment]))]
                self._check_rows(rows, head.columns, staged_for, entry)
            self._take(past, entry, piece.partition, rows, self._origins(entry) == entry.segments)
        demand(tuple(following) == head.next, "the end does not follow from the entry")
        past.entries.append(entry)
        past.published[entry.token] = entry

    def _check_rows(self, rows: Sequence[Any], columns: Columns, staged_for: int, entry: Entry) -> None:
        """What the columns hold follows from the value and from the version that it was staged for."""
        version = entry.schema_version or 0
        alike = self._origins(entry) == entry.segments
        demand(version == staged_for if alike else version >= staged_for, "published as another version:", entry)
        for row in rows:
            staged = payloads.payload_of(row["key"], row["value"], schema_of(columns, staged_for))
            demand(row == payloads.seen_by(staged, schema_of(columns, version)), "other columns than staged:", row)

    def _check_batch(self, past: History, entry: Entry) -> None:
        """A batch comes once, and after the earlier ones of its writer, as long as writers are remembered."""
        if entry.writer is None:
            return
        known = past.last_batch.get(entry.writer)
        if known is not None and entry.batch <= known[0]:
            age_us = entry.time_us - known[1]
            demand(age_us > writers.WRITER_AGE_S * 1_000_000, "batch published twice:", entry.writer, entry.batch)
            for place in [place for place in past.last_row if place[0] == entry.writer]:
                del past.last_row[place]
        past.last_batch[entry.writer] = (entry.batch, entry.time_us)

    def _newest(self, head: Head, store: WatchedStore) -> Entry:
        if head.entries:
            return head.entries[-1]
        demand(bool(head.tree), "a publish left no entry")
        return self._flat(head, head.tree[-1], store)[-1]

    def _take(self, past: History, entry: Entry, partition: int, rows: Sequence[Any], in_order: bool) -> None:
        """Note messages at their offsets for good; those of one writer must come in its own order, and those of one
        key also where they were placed again (not `in_order`), all in one partition of their layout.
        """
        for each in rows:
            key, value = (each["key"], each["value"]) if isinstance(each, dict) else each
            writer, batch, row, _ = value.decode().split(":", 3)
            place = (int(batch), int(row))
            for of in ((writer, partition, None), *(((writer, None, key),) if key is not None else ())):
                if entry.writer is not None:  # without an identity an earlier publish may land after a later one
                    before = past.last_row.get(of, (-1, -1))
                    rises = before < place if in_order or of[1] is None else before[0] <= place[0]
                    demand(rises, "order of", of, "broken at", place)
                past.last_row[of] = place
            if key is not None:
                mine = past.partition_of.setdefault((key, entry.generation), partition)
                demand(mine == partition, "two partitions for key", key)
            past.messages[partition].append(each if isinstance(each, dict) else value)
            past.times_us[partition].append(entry.time_us)
            past.generations[partition].append(entry.generation)

    def _check_listed(self, head: Head, store: WatchedStore) -> None:
        """What the head leads to is the end of the history, whole, and every object needed for it is there."""
        past = self.history[head.queue_id]
        listed = [entry for ref in head.tree for entry in self._flat(head, ref, store)] + list(head.entries)
        for entry in listed:
            if entry.token not in past.compacted and past.published.get(entry.token) != entry:
                self._check_compacted(head, past, entry, store)
        for one, other in pairwise(listed):
            demand(one.sequence < other.first_sequence, "publishes are not in their order")
        reached: dict[int, int] = {}
        for entry in listed:
            for piece in entry.slices:
                earliest = head.earliest[piece.partition]
                begin = reached.get(piece.partition, min(piece.offset, earliest))
                demand(piece.offset == begin or max(begin, piece.offset) <= earliest, "the log has a gap at", piece)
                reached[piece.partition] = piece.end
        for partition, end in enumerate(head.next):
            at_end = reached.get(partition, head.earliest[partition]) == end
            demand(at_end or head.earliest[partition] == end, "the log does not lead to the end of", partition)
        counted = head.tree_begin
        for rows in (*(ref.rows for ref in head.tree), tree.rows_of(head.entries)):
            counted = add(counted, rows)
        demand(all(at(counted, p) == end for p, end in enumerate(head.next)), "the tree counts other messages")
        levels = [ref.level for ref in head.tree]
        demand(levels == sorted(levels, reverse=True), "levels of the tree do not fall")
        needed = self._needed(head, past, listed)
        for name in needed - past.needed:
            demand(store.peek(name) is not None, "the head names what is not there:", name)
        for name in past.needed - needed:
            past.unneeded_since_us[name] = self._now_us()
        demand(not needed & past.unneeded_since_us.keys(), "an object came back into the log")
        past.needed = needed

    def _check_compacted(self, head: Head, past: History, entry: Entry, store: WatchedStore) -> None:
        """An entry that nobody published has the messages that were published at its offsets, and their times."""
        demand(entry.times, "the log is not what was published:", entry)
        for piece in entry.slices:
            found, times_us = store.peek_rows(self._segment(head, entry, piece.segment), piece, entry, head.columns)
            span = slice(piece.offset, piece.end)
            published = past.messages[piece.partition][span]
            schema = None if head.columns is None else schema_of(head.columns, entry.schema_version)
            if schema is None:
                found = [value for _, value in found]
            else:
                demand(all(row.keys() <= {*schema.names} for row in published), "compacted to fewer columns:", piece)
            demand(found == payloads.all_seen_by(published, schema), "compacted to other messages:", piece)
            demand(times_us == past.times_us[piece.partition][span], "compacted to other times:", piece)
            generations = {*past.generations[piece.partition][span]}
            demand(generations == {entry.generation}, "compacted to another generation:", piece)
            demand(entry.first_time_us <= times_us[0] and times_us[-1] <= entry.time_us, "times beyond their entry's")
        past.compacted[entry.token] = entry

    def _needed(self, head: Head, past: History, listed: list[Entry]) -> set[str]:
        def readable(entry: Entry) -> bool:
            return any(piece.end > head.earliest[piece.partition] for piece in entry.slices)

        log = f"{self._base}_log/{head.queue_id}/"
        names = {log + ref.name for ref in head.tree} | {log + page.name for page in head.writer_pages}
        pending = list(head.tree)
        while pending:
            ref = pending.pop()
            if any(map(readable, past.flat[ref.name])):
                names.add(log + ref.name)
                pending += past.children[ref.name]
        for entry in listed:
            for piece in entry.slices:
                if piece.end > head.earliest[piece.partition]:
                    names.add(self._segment(head, entry, piece.segment))
        return names

    def _flat(self, head: Head, ref: ChunkRef, store: WatchedStore) -> tuple[Entry, ...]:
        past = self.history[head.queue_id]
        if ref.name not in past.flat:
            data = store.peek(f"{self._base}_log/{head.queue_id}/{ref.name}")
            if data is None:
                raise Violation(f"the head names what is not there: {ref.name}")
            if ref.level == 0:
                past.children[ref.name] = ()
                past.flat[ref.name] = codec.decode_entries(data, ref)
            else:
                past.children[ref.name] = codec.decode_refs(data, ref)
                parts = [self._flat(head, child, store) for child in past.children[ref.name]]
                past.flat[ref.name] = tuple(entry for part in parts for entry in part)
        return past.flat[ref.name]

    def _segment(self, head: Head, entry: Entry, index: int) -> str:
        return f"{self._base}_segments/{head.queue_id}/{entry.segments[index]}"

    # --- what the processes say ---------------------------------------------------------------------------------------

    def acknowledged(self, attempt: Attempt, rows: int, sequence: int, duplicate: bool) -> None:
        """A publish returned. `duplicate` must be true exactly if another attempt at the batch is in the log."""
        past = self.history[attempt.queue_id]
        own = [entry for entry in past.entries if self._origins(entry) == attempt.segments]
        if duplicate:
            batches = [entry.batch for entry in past.entries if entry.writer == attempt.writer]
            newest = max(batches, default=-1)
            demand(newest >= attempt.batch, "a batch is called a repetition and never was published")
            # Unless its writer was replaced and went on, so that only the replacement's batch is remembered.
            demand(not own or newest > attempt.batch, "an own publish is called a repetition")
            return
        demand(len(own) == 1, f"acknowledged, and {len(own)} times in the log:", attempt)
        demand(own[0].sequence == sequence and rows == attempt.rows, "another answer than the log's", rows, attempt)

    def refused(self, attempt: Attempt, error: Exception) -> None:
        """The number was used. Its rows are always the same ones here, but for columns that were added between two
        tries: so of the writer's last batch they cannot be told from others only where those differ, or were trimmed.
        """
        past = self.history[attempt.queue_id]
        mine = [entry for entry in past.entries if entry.writer == attempt.writer]
        newest = max(entry.batch for entry in mine)
        demand(newest >= attempt.batch, "refused, and the number is new:", error)
        trimmed = self.head is None or any(self.head.earliest)
        altered = self.head is None or (self.head.columns is not None and self.head.columns.version > 1)
        demand(newest > attempt.batch or trimmed or altered, "refused:", error)

    def still(self, queue_id: str) -> bool:
        """Whether the queue with this id is the present one."""
        return self.head is not None and self.head.queue_id == queue_id


def _check_columns(before: Columns | None, columns: Columns | None) -> None:
    """What any version was stays so: slices, publishers and plans go by it."""
    if before == columns:
        return
    if before is None or columns is None:
        raise Violation("a queue became typed, or untyped")
    demand(columns.version > before.version and columns.key == before.key, "columns changed under one version")
    for version in range(1, before.version + 1):
        demand(schema_of(columns, version) == schema_of(before, version), "version is another one now:", version)
