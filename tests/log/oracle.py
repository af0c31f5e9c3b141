"""What must be true of a queue at every change of its head and every deletion, said without the code under test.

`WatchedStore` is the one true store of a simulation; it tells the oracle of each effect at the moment it happens,
whoever learns of it later. The oracle decodes what was written with the codec and otherwise counts by hand: a list of
all entries, a list of all messages, a set of all objects that the present head needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from partq_spark.log import codec, writers
from partq_spark.log.model import ChunkRef, Entry, Head, Slice
from partq_spark.log.segment import segment_schema
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore
from tests.support.faulty import PAGE


class Violation(AssertionError):
    """Something that must never be was: the message says what."""


def demand(condition: bool, *what: object) -> None:
    """Raise `Violation` unless `condition`."""
    if not condition:
        raise Violation(" ".join(map(str, what)))


@dataclass(slots=True)
class Attempt:
    """What one process staged for one publish. `segments` may be published together, in this order, or not at all."""

    queue_id: str
    writer: str | None
    batch: int
    segments: tuple[str, ...]
    rows: int


@dataclass(slots=True)
class History:
    """All that ever happened to the queue with one id."""

    queue_id: str
    entries: list[Entry] = field(default_factory=list)
    messages: list[list[bytes]] = field(default_factory=list)  # per partition, by offset
    last_batch: dict[str, tuple[int, int]] = field(default_factory=dict)  # writer -> batch, time of its entry
    last_row: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # writer, partition -> batch, row
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
            self.history[head.queue_id] = History(queue_id=head.queue_id, messages=[[] for _ in head.next])
        else:
            self._check_change(before, head)
            if head.next != before.next:
                self._check_entry(before, head, store)
        self._check_listed(head, store)

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
        demand(all(a <= b for a, b in zip(before.earliest, head.earliest, strict=True)), "earliest went back")
        demand(all(a <= b for a, b in zip(head.earliest, head.next, strict=True)), "earliest beyond the end")
        demand(all(a <= b for a, b in zip(before.next, head.next, strict=True)), "the end went back")
        demand(head.floor.sequence >= before.floor.sequence, "the stage floor went down")
        for name, group in before.groups.items():
            demand(head.groups.get(name) == group, "group", name, "was lost or changed")
            for partition, start in enumerate(group.start):
                most = max(start, before.earliest[partition])
                demand(head.earliest[partition] <= most, "trimmed what group", name, "needs")

    def _check_entry(self, before: Head, head: Head, store: WatchedStore) -> None:
        past = self.history[head.queue_id]
        entry = self._newest(head, store)
        demand(entry.sequence == head.sequence, "the newest entry has another sequence than its head")
        demand(entry.time_us > (past.entries[-1].time_us if past.entries else 0), "time does not grow strictly")
        demand(entry.time_us == head.time_us, "the head's time is not its newest entry's")
        demand(entry.token not in {other.token for other in past.entries}, "one publish is in the log twice")
        attempt = self.attempts.get(entry.segments[0]) if entry.segments else None
        if attempt is None:
            raise Violation("an entry of segments that nobody staged")
        demand(attempt.queue_id == head.queue_id, "published to another queue than it was staged for")
        demand(entry.segments == attempt.segments, "part of a publish became visible")
        demand(sum(piece.rows for piece in entry.slices) == attempt.rows, "messages of a publish are missing")
        demand((entry.writer or "") == (attempt.writer or "") and entry.batch == attempt.batch, "another's batch")
        self._check_batch(past, entry)
        following = list(before.next)
        for piece in entry.slices:
            demand(piece.offset == following[piece.partition], "offsets are not dense:", piece, before.next)
            following[piece.partition] += piece.rows
            self._take(past, entry, piece.partition, store.peek_rows(self._segment(head, entry, piece.segment), piece))
        demand(tuple(following) == head.next, "the end does not follow from the entry")
        past.entries.append(entry)

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

    def _take(self, past: History, entry: Entry, partition: int, values: list[bytes]) -> None:
        """Note messages at their offsets for good; those of one writer must come in its own order."""
        for value in values:
            writer, batch, row, _ = value.decode().split(":", 3)
            place = (int(batch), int(row))
            if entry.writer is not None:  # without an identity an earlier publish may land after a later one
                demand(past.last_row.get((writer, partition), (-1, -1)) < place, "order of", writer, "broken at", place)
            past.last_row[writer, partition] = place
            past.messages[partition].append(value)

    def _check_listed(self, head: Head, store: WatchedStore) -> None:
        """What the head leads to is the end of the history, whole, and every object needed for it is there."""
        past = self.history[head.queue_id]
        listed = [entry for ref in head.tree for entry in self._flat(head, ref, store)] + list(head.entries)
        gone = len(past.entries) - len(listed)
        demand(gone >= 0 and past.entries[gone:] == listed, "the log is not what was published")
        for entry in past.entries[:gone]:
            demand(all(s.end <= head.earliest[s.partition] for s in entry.slices), "pruned what can be read")
        counted = [0] * len(head.next)
        for entry in past.entries[:gone]:
            for piece in entry.slices:
                counted[piece.partition] += piece.rows
        demand(tuple(counted) == (*head.tree_begin, *(0,) * (len(counted) - len(head.tree_begin))), "tree_begin wrong")
        levels = [ref.level for ref in head.tree]
        demand(levels == sorted(levels, reverse=True), "levels of the tree do not fall")
        needed = self._needed(head, past, listed)
        for name in needed - past.needed:
            demand(store.peek(name) is not None, "the head names what is not there:", name)
        for name in past.needed - needed:
            past.unneeded_since_us[name] = self._now_us()
        demand(not needed & past.unneeded_since_us.keys(), "an object came back into the log")
        past.needed = needed

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
        own = [entry for entry in past.entries if entry.segments == attempt.segments]
        if duplicate:
            batches = [entry.batch for entry in past.entries if entry.writer == attempt.writer]
            newest = max(batches, default=-1)
            demand(newest >= attempt.batch, "a batch is called a repetition and never was published")
            # Unless its writer was replaced and went on, so that only the replacement's batch is remembered.
            demand(not own or newest > attempt.batch, "an own publish is called a repetition")
            return
        demand(len(own) == 1, f"acknowledged, and {len(own)} times in the log:", attempt)
        demand(own[0].sequence == sequence and rows == attempt.rows, "another answer than the log's", rows, attempt)

    def still(self, queue_id: str) -> bool:
        """Whether the queue with this id is the present one."""
        return self.head is not None and self.head.queue_id == queue_id


class WatchedStore(MemoryStore):
    """The true objects of a simulation. `conditional` False is a store that swaps whatever the ETag."""

    def __init__(self, *, clock: Callable[[], float], rng: random.Random, conditional: bool) -> None:
        super().__init__(clock=clock, rng=rng, page_size=PAGE)
        self.oracle: Oracle | None = None
        self._conditional = conditional

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        if not self._conditional:
            present = self.load(name)
            expected = present.etag if isinstance(present, Document) else None
        etag = super().swap(name, content, expected=expected)
        if self.oracle is not None and isinstance(content, bytes):
            self.oracle.swapped(name, content, self)
        return etag

    def remove(self, name: str, *, expected: str) -> None:
        super().remove(name, expected=expected)
        if self.oracle is not None:
            self.oracle.removed(name)

    def delete(self, name: str) -> bool:
        done = super().delete(name)
        if done and self.oracle is not None:
            self.oracle.deleted(name)
        return done

    def peek(self, name: str) -> bytes | None:
        """The bytes of an object, or None."""
        stored = self._objects.get(name)
        return None if stored is None else stored.data

    def peek_rows(self, name: str, piece: Slice) -> list[bytes]:
        """The values of one slice, read by hand."""
        data = self.peek(name)
        if data is None:
            raise Violation(f"the head names what is not there: {name}")
        body = data[piece.start : piece.start + piece.length]
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), segment_schema(False))
        values: list[bytes] = batch.column("value").to_pylist()
        return values
