"""All that ever was in one queue, kept by hand: each head is decoded at the instant at which it is written, and
compared with what was there before and with what publishers said they publish together. So what a publish, a trim, a
compaction or a collection does wrong is seen at once, also where nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from partq_spark.log import codec, housekeeping, tree
from partq_spark.log.model import ChunkRef, Entry, Head, add, at
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment import PLAIN
from tests.support.memory_store import MemoryStore
from tests.world.bucket import Bucket
from tests.world.facts import Lying, Place, demand


class Ledger:
    """Of the queue in `folder`. Nothing that its head leads to, or led to within `grace_us`, may be deleted."""

    def __init__(
        self, store: MemoryStore | Bucket, folder: str, now_us: Callable[[], int], *, epoch_us: int, grace_us: int
    ) -> None:
        self._store, self._folder, self._now_us = store, folder, now_us
        self._epoch_us, self._grace_us = epoch_us, grace_us
        self.head: Head | None = None
        self.messages: list[list[Lying]] = []  # by partition and offset
        self.trimmed_us: dict[int, list[tuple[int, int]]] = {}  # by partition: when, and up to where
        self._counted_us: list[int] = []  # when rewinds were counted
        self._attempts: dict[str, tuple[str, ...]] = {}
        self._published: dict[str, Entry] = {}
        self._compacted: set[str] = set()
        self._flat: dict[str, tuple[Entry, ...]] = {}
        self._children: dict[str, tuple[ChunkRef, ...]] = {}
        self._needed: set[str] = set()
        self._unneeded_us: dict[str, int] = {}

    def together(self, values: Iterable[str]) -> None:
        """Somebody is about to publish these, all or none."""
        said = tuple(values)
        self._attempts[said[0]] = said

    def complete(self, there: Mapping[Place, tuple[str | None, str]]) -> None:
        """`there` is what can be read in the end, and everything that was given up is collected."""
        head = self.head
        assert head is not None
        kept = {
            (partition, offset): self.messages[partition][offset][:2]
            for partition, (first, end) in enumerate(zip(head.earliest, head.next, strict=True))
            for offset in range(first, end)
        }
        demand(there == kept, "what can be read is not what is there:", sorted(there.keys() ^ kept.keys())[:5])
        own = [f"{self._folder}{each}/{head.queue_id}/" for each in ("_log", "_segments")]
        left = {name for name in self._store._objects if name.startswith(tuple(own))} - {f"{own[0]}collection.json"}
        old = {name for name in left if housekeeping.below_floor(name, head)}
        demand(old <= self._needed, "never collected:", sorted(old - self._needed)[:3])

    def may_be_gone(self, place: Place, rewound_us: int) -> bool:
        """Whether a trim took it before the rewind was counted in the head: the person was told."""
        counted_us = next((each for each in self._counted_us if each >= rewound_us), None)
        trimmed_us = self.trimmed(*place)
        return trimmed_us is not None and (counted_us is None or trimmed_us <= counted_us)

    @property
    def lying(self) -> dict[Place, Lying]:
        """All that ever was there, by place."""
        return {(p, offset): each for p, found in enumerate(self.messages) for offset, each in enumerate(found)}

    def trimmed(self, partition: int, offset: int) -> int | None:
        """When the message was trimmed, or None."""
        return next((when for when, to in self.trimmed_us.get(partition, ()) if to > offset), None)

    # --- what happens -------------------------------------------------------------------------------------------------

    def swapped(self, name: str, body: bytes) -> None:
        """A document was written."""
        if name != f"{self._folder}_head.json":
            return
        head, before = codec.HEAD.open(body, name), self.head
        self.head = head
        self.messages += [[] for _ in head.next[len(self.messages) :]]
        if before is not None:
            self._check_change(before, head)
            if sum(head.next) != sum(before.next):
                self._check_entry(before, head)
        self._check_listed(head)

    def deleted(self, name: str) -> None:
        demand(name not in self._needed, "deleted what the head needs:", name)
        since_us = self._unneeded_us.get(name)
        if since_us is not None:  # what no head ever led to was given up with the floor: no publish can come to need it
            age_us = self._now_us() - since_us
            demand(age_us >= self._grace_us, "deleted within grace:", name, f"{age_us / 3.6e9:.2f} h")

    # --- what must be so ----------------------------------------------------------------------------------------------

    def _check_change(self, before: Head, head: Head) -> None:
        demand(head.sequence == before.sequence + 1, "sequence", before.sequence, "became", head.sequence)
        demand(head.time_us >= before.time_us, "the head's time went back")
        demand(all(a <= b for a, b in zip(head.earliest, head.next, strict=True)), "earliest beyond the end")
        demand(all(a <= at(head.next, p) for p, a in enumerate(before.next)), "the end went back")
        demand(head.floor.sequence >= before.floor.sequence, "the stage floor went down")
        if any(
            group.rewinds != before.groups[name].rewinds for name, group in head.groups.items() if name in before.groups
        ):
            self._counted_us.append(self._now_us())
        for partition, earliest in enumerate(head.earliest):
            demand(at(before.earliest, partition) <= earliest, "earliest went back")
            if at(before.earliest, partition) < earliest:
                self.trimmed_us.setdefault(partition, []).append((self._now_us(), earliest))
        if before.columns != head.columns:
            assert before.columns is not None
            assert head.columns is not None
            for version in range(1, before.columns.version + 1):
                same = schema_of(head.columns, version) == schema_of(before.columns, version)
                demand(same, "version is another one now:", version)

    def _check_entry(self, before: Head, head: Head) -> None:
        entry = head.entries[-1] if head.entries else self._entries_of(head, head.tree[-1])[-1]
        newest_us = max((each.time_us for each in self._published.values()), default=0)
        demand(entry.sequence == head.sequence, "the newest entry has another sequence than its head")
        demand(newest_us < entry.time_us == head.time_us, "time does not grow strictly")
        demand(entry.token not in self._published, "one publish is in the log twice")
        demand(entry.generation == head.layout.generation, "placed for another layout")
        demand(all(piece.partition < head.partitions for piece in entry.slices), "in a partition that is not there")
        following, values = list(before.next), []
        for piece in entry.slices:
            demand(piece.offset == following[piece.partition], "offsets are not dense:", piece, before.next)
            following[piece.partition] += piece.rows
            found, _ = self._rows(head, entry, piece)
            for key, value in found:
                self.messages[piece.partition].append(Lying(key, value, entry.time_us - self._epoch_us))
                values.append(value)
        demand(tuple(following) == head.next, "the end does not follow from the entry")
        said = next((self._attempts[value] for value in values if value in self._attempts), ())
        demand(sorted(said) == sorted(values), "part of a publish became visible:", said, values)
        self._published[entry.token] = entry

    def _check_listed(self, head: Head) -> None:
        """What the head leads to is the end of the history, whole, and every object needed for it is there."""
        listed = [entry for ref in head.tree for entry in self._entries_of(head, ref)] + list(head.entries)
        for entry in listed:
            if entry.token not in self._compacted and self._published.get(entry.token) != entry:
                self._check_compacted(head, entry)
        for one, other in pairwise(listed):
            demand(one.sequence < other.first_sequence, "publishes are not in their order")
        reached: dict[int, int] = {}
        for piece in (piece for entry in listed for piece in entry.slices):
            earliest = head.earliest[piece.partition]
            begin = reached.get(piece.partition, min(piece.offset, earliest))
            demand(piece.offset == begin or max(begin, piece.offset) <= earliest, "the log has a gap at", piece)
            reached[piece.partition] = piece.end
        for partition, end in enumerate(head.next):
            whole = reached.get(partition, head.earliest[partition]) == end or head.earliest[partition] == end
            demand(whole, "the log does not lead to the end of", partition)
        counted = head.tree_begin
        for rows in (*(ref.rows for ref in head.tree), tree.rows_of(head.entries)):
            counted = add(counted, rows)
        demand(all(at(counted, p) == end for p, end in enumerate(head.next)), "the tree counts other messages")
        self._check_needed(self._objects(head, listed))

    def _check_needed(self, needed: set[str]) -> None:
        for name in needed - self._needed:
            demand(self._peek(name) is not None, "the head names what is not there:", name)
        demand(not needed & self._unneeded_us.keys(), "an object came back into the log")
        self._unneeded_us |= dict.fromkeys(self._needed - needed, self._now_us())
        self._needed = needed

    def _check_compacted(self, head: Head, entry: Entry) -> None:
        """An entry that nobody published has the messages that were published at its offsets, and their times."""
        demand(entry.times, "the log is not what was published:", entry)
        for piece in entry.slices:
            found, times_us = self._rows(head, entry, piece)
            published = self.messages[piece.partition][piece.offset : piece.end]
            demand(found == [(each.key, each.value) for each in published], "compacted to other messages:", piece)
            demand(times_us == [each.at_us for each in published], "compacted to other times:", piece)
        self._compacted.add(entry.token)

    # --- what the objects say -----------------------------------------------------------------------------------------

    def _objects(self, head: Head, listed: Sequence[Entry]) -> set[str]:
        def readable(entry: Entry) -> bool:
            return any(piece.end > head.earliest[piece.partition] for piece in entry.slices)

        log = f"{self._folder}_log/{head.queue_id}/"
        names = {log + each.name for each in head.tree} | {log + each.name for each in head.writer_pages}
        pending = list(head.tree)
        while pending:
            ref = pending.pop()
            if any(map(readable, self._flat[ref.name])):
                names.add(log + ref.name)
                pending += self._children[ref.name]
        for entry in listed:
            kept = (piece for piece in entry.slices if piece.end > head.earliest[piece.partition])
            names |= {self._segment(head, entry, piece.segment) for piece in kept}
        return names

    def _entries_of(self, head: Head, ref: ChunkRef) -> tuple[Entry, ...]:
        if ref.name not in self._flat:
            data = self._peek(f"{self._folder}_log/{head.queue_id}/{ref.name}")
            demand(data is not None, "the head names what is not there:", ref.name)
            assert data is not None
            chunk = codec.decode_chunk(data, ref)
            self._children[ref.name] = chunk.chunks
            below = (entry for each in chunk.chunks for entry in self._entries_of(head, each))
            self._flat[ref.name] = (*below, *chunk.entries)
        return self._flat[ref.name]

    def _segment(self, head: Head, entry: Entry, index: int) -> str:
        return f"{self._folder}_segments/{head.queue_id}/{entry.segments[index]}"

    def _peek(self, name: str) -> bytes | None:
        stored = self._store._objects.get(name)
        return None if stored is None else stored.data

    def _rows(self, head: Head, entry: Entry, piece: Any) -> tuple[list[tuple[str | None, str]], list[int]]:
        """Keys and values of one slice, and their times if it has them."""
        name = self._segment(head, entry, piece.segment)
        data = self._peek(name)
        demand(data is not None, "the head names what is not there:", name)
        assert data is not None
        payload = PLAIN if head.columns is None else schema_of(head.columns, entry.schema_version)
        time: Final = pa.field("_timestamp", TIMESTAMP, nullable=False)
        body = pa.py_buffer(data[piece.start : piece.start + piece.length])
        batch = pa.ipc.read_record_batch(body, payload.append(time) if entry.times else payload)
        times_us = batch.column(time.name).cast(pa.int64()).to_pylist() if entry.times else []
        rows = batch.select(["key", "value"]).to_pylist()
        return [(row["key"], row["value"].decode()) for row in rows], [each - self._epoch_us for each in times_us]
