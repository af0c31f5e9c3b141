"""A queue's address, and the handle on it in one store: its head as last seen, its objects by name, and the loop that
changes the head.

The handle has no rules of its own: a change is given to it as a function from head to head. A process opens one store
per URL, when it is first needed: readers and writers travel into Spark's tasks with an address alone, and credentials
come from each process's own environment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from partq_spark.base.effects import RETRY_TIMEOUT_S, Backoff, Effects, Retry, store_effects
from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing
from partq_spark.log import clocks, codec, names, tree
from partq_spark.log.model import Chunk, ChunkRef, Entry, Head, Slice
from partq_spark.log.names import LOG_SIZES, LogSizes
from partq_spark.objects import open_store
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.retrying import Register

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
H = TypeVar("H")
logger = logging.getLogger(__name__)

MOST_LOOKS = 8
"""At a newer head, for an object that was gone. Each is read after that was found, and what it names lives for a grace:
what is gone again and again is missing from the log, however busy the queue is.
"""

LEAST_CONFLICTS_S = 10.0
"""For so long conflicts are tried again at least."""

_told_wrong: set[str] = set()  # the stores, of which there are few, that this process's clock was found wrong by


class QueueGone(Invalid):
    """The queue is not there, or was made again under its name (RES-05)."""


class QueueLog:
    """The log of one queue, by name. Cheap to make; nothing is read before `refresh`. Not for use by several threads.

    `retry_timeout_s`: for so long a change is tried again while its outcome is unknown or others are faster.
    `sizes`: how large the parts of the log become that this handle writes.
    """

    def __init__(
        self,
        store: ObjectStore,
        namespace: str,
        queue: str,
        effects: Effects | None = None,
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        sizes: LogSizes = LOG_SIZES,
    ) -> None:
        self.store = store
        self.namespace = names.checked_name("namespace", namespace)
        self.name = names.checked_name("queue", queue)
        self.effects = effects if effects is not None else store_effects()
        self.retry_timeout_s = retry_timeout_s
        self.sizes = sizes
        self.head_name = head_name = names.head_name(self.namespace, self.name)
        self._register: Register[Head] = Register(
            store,
            head_name,
            what=f"the head of {self}",
            decode=lambda document: codec.HEAD.open(document.body, head_name),  # not of `self`: handles are many
            encode=codec.HEAD.seal,
        )

    def __str__(self) -> str:
        return f"queue {self.name!r} (namespace {self.namespace!r}, store {self.store.url})"

    def another(self, name: str | None = None) -> QueueLog:
        """A handle of its own on this queue, or on the one of the namespace with this name."""
        return QueueLog(
            self.store,
            self.namespace,
            name or self.name,
            self.effects,
            retry_timeout_s=self.retry_timeout_s,
            sizes=self.sizes,
        )

    def now_us(self) -> int:
        """The Unix time that the log goes by, in microseconds: this machine's, or the store's if that says that this
        machine's is wrong. Everything that is written into a head, and every age, is of this time.
        """
        own_us = self.effects.time_us()
        store_us = self.store.time_us()
        now_us = clocks.agreed_us(own_us, store_us)
        if now_us != own_us and self.store.url not in _told_wrong:
            _told_wrong.add(self.store.url)
            logger.warning(
                "this machine's clock is %+d s off that of store %s: set it right; until then the store's time is used",
                (own_us - now_us) // 1_000_000,
                self.store.url,
            )
        return now_us

    # --- the head -----------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The head as last read or written by this handle; read now if it never was."""
        known = self._register.value
        return known if known is not None else self.refresh()

    @property
    def etag(self) -> str | None:
        """The ETag of `head`; None before the first read."""
        return self._register.etag

    def look(self) -> Head | None:
        """Read the head if it has changed (one conditional request); None if there is no such queue."""
        return self._register.read()

    def refresh(self) -> Head:
        """`look`, where an absent queue is an error. Raises `Invalid`, `Corrupt`, `Unavailable`."""
        was_there = self._register.value is not None
        return self._present(self.look(), was_there=was_there)

    def _present(self, head: Head | None, *, was_there: bool) -> Head:
        if head is None:
            gone = "has been deleted" if was_there else "does not exist"
            raise QueueGone(f"{self} {gone}: create it with `partq queue create {self.name} --partitions N`")
        return head

    def remember(self, head: Head, etag: str) -> None:
        """Take `head` as the present one: it was just read, or just swapped in by this handle."""
        self._register.keep(head, etag)

    def require(self, queue_id: str) -> Head:
        """The present head, which must still be that of the queue with this id. Raises `QueueGone` otherwise."""
        return self._same(self.refresh(), queue_id)

    def _same(self, head: Head, queue_id: str) -> Head:
        if head.queue_id != queue_id:
            raise QueueGone(
                f"{self} was deleted and created again: its id is {head.queue_id}, this work began with {queue_id}; "
                "start it anew (a query: with a new checkpoint location)"
            )
        return head

    def change(self, decide: Callable[[Head], Head]) -> Head:
        """Swap `decide(head)` in, under the next sequence number, again from a fresh head after a conflict; `decide`
        must be harmless when repeated.

        A change that `decide` answers with the same head writes nothing. What this handle knew of the queue went into
        the change, so a queue that was deleted and created again since is refused (RES-05). Raises what `decide`
        raises, `Invalid` as `require` does, and `Conflict` or `Unavailable` when `retry_timeout_s` is over.
        """
        queue_id = self.head.queue_id

        def decide_here(head: Head | None) -> Head:
            present = self._same(self._present(head, was_there=True), queue_id)
            wanted = decide(present)
            return wanted if wanted is present else replace(wanted, sequence=present.sequence + 1)

        return self.replace(decide_here)

    def replace(self, decide: Callable[[Head | None], H]) -> H:
        """`change` for making the queue (None: there is none) and for deleting it (None is wanted). A head that could
        not be read again is not written: `Invalid`. (Publishing swaps without this look, which would cost it a tenth:
        there is nothing of a caller's in what it adds but what was checked.)
        """

        def readable(found: Head | None) -> H:
            wanted = decide(found)
            if isinstance(wanted, Head) and wanted is not found:
                codec.HEAD.require_readable(wanted)
            return wanted

        return self._register.change(readable, self.backoff())

    def swap(self, head: Head | None) -> None:
        """One attempt to put `head` in place of the one last read (None: to delete the queue). Raises `Conflict`,
        `Unavailable` (outcome unknown).
        """
        self._register.swap(head)

    def backoff(self) -> Backoff:
        """For an operation that begins now: pauses are short among many who publish, and long where the store is
        absent. It raises the cause when `retry_timeout_s` is over.
        """
        retry = Retry(
            first_s=0.002,
            most_s=2.0,
            timeout_s=self.retry_timeout_s,
            least=0.0,
            conflicts_s=LEAST_CONFLICTS_S,
            since_s=self.effects.now_s(),
        )
        return Backoff(retry, self.effects)

    # --- blobs --------------------------------------------------------------------------------------------------------

    def load_chunk(self, ref: ChunkRef) -> Chunk:
        """Raises `ObjectMissing`, `Corrupt`."""
        name = self.log_folder + ref.name
        try:
            return codec.decode_chunk(self.store.read(name), ref)
        except ObjectMissing as error:
            raise ObjectMissing(f"log chunk {name} of {self} is gone: restore it from a backup") from error

    def create_blob(self, name: str, data: bytes) -> None:
        """Create an immutable object in the queue's log folder."""
        try:
            self.store.create(self.log_folder + name, data)
        except Conflict:
            with suppress(Corrupt):
                if self.store.read(self.log_folder + name) == data:
                    return  # its own success, sent twice by the network
            raise

    @property
    def log_folder(self) -> str:
        return names.log_folder(self.namespace, self.name, self.head.queue_id)

    @property
    def segment_folder(self) -> str:
        return names.segment_folder(self.namespace, self.name, self.head.queue_id)

    def blob_path(self, name: str) -> str:
        """The name in the store of a segment, chunk or page."""
        return (self.segment_folder if name.endswith(".arrow") else self.log_folder) + name

    # --- positions ----------------------------------------------------------------------------------------------------

    def settled(self, look: Callable[[Head], T]) -> T:
        """`look(head)`, again from a fresh head if an object was gone that only an older head named.

        Between the reading of a head and the use of what it names anything may have been trimmed and collected. A next
        try takes a changed head, whose objects live for a grace at least. Raises what `look` raises, and as `require`
        does.
        """
        for _ in range(MOST_LOOKS):
            head, before = self.head, self.etag
            try:
                return look(head)
            except ObjectMissing:
                self.require(head.queue_id)
                if self.etag == before:
                    raise
        return look(self.head)

    def offsets_at(self, time_us: int) -> tuple[int, ...]:
        """Per partition, the first offset published at or after `time_us` (Unix, microseconds); the end if there is
        none.
        """
        latest_us = clocks.latest_us(self.now_us())
        return self.settled(
            lambda head: tree.offsets_at_time(head, time_us, self.load_chunk, self.times_us, latest_us=latest_us)
        )

    def read_slice(
        self, entry: Entry, piece: Slice, *, only: Collection[str] | None = None, thoroughly: bool = False
    ) -> pa.RecordBatch:
        """The messages of a slice, with the columns that its segment has, as `segment.read_slice`."""
        from partq_spark.log.segment import (
            read_slice,  # Arrow, which few looks at a queue need
            schema_of_entry,
        )

        name, schema = self.segment_folder + entry.segments[piece.segment], schema_of_entry(entry, self.head.columns)
        return read_slice(self.store, name, piece, schema, only=only, thoroughly=thoroughly)

    def times_us(self, entry: Entry, piece: Slice) -> list[int]:
        """When the messages of a slice of a compacted entry were published. Raises `ObjectMissing`, `Corrupt`."""
        from partq_spark.log.segment import TIMES_NAME, times_us

        return times_us(self.read_slice(entry, piece, only=(TIMES_NAME,)).column(TIMES_NAME))


# --- where it is ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class NamespaceAddress:
    """A namespace in a store, and how long to wait for it. Free of secrets, so it may travel to tasks."""

    store: str  # canonical URL
    namespace: str
    retry_timeout_s: float

    def target(self, queue: str) -> QueueAddress:
        """One of its queues."""
        return QueueAddress(
            store=self.store, namespace=self.namespace, queue=queue, retry_timeout_s=self.retry_timeout_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAddress(NamespaceAddress):
    """Which queue, and how patiently: what every role needs."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue!r} (namespace {self.namespace!r}, store {self.store})"


_open: dict[tuple[int, str, float], ObjectStore] = {}


def shared_store(url: str, retry_timeout_s: float) -> ObjectStore:
    """The process's own store for `url`; a forked process opens its own. Raises as `open_store` does."""
    key = (os.getpid(), url, retry_timeout_s)
    store = _open.get(key)
    if store is None:
        store = _open[key] = open_store(url, retry_timeout_s=retry_timeout_s)
    return store


def open_queue(target: QueueAddress) -> QueueLog:
    """The queue at `target`, unread. Raises `Invalid` for a URL or credentials that cannot work."""
    store = shared_store(target.store, target.retry_timeout_s)
    return QueueLog(store, target.namespace, target.queue, retry_timeout_s=target.retry_timeout_s)


# --- when messages that are in the log were published -----------------------------------------------------------------

MOST_LOOKED_INTO: Final = 16
"""Slices: beyond so many partitions the time of a compacted message may be said too early."""


def published_us(queue: QueueLog, head: Head, offsets: Mapping[int, int]) -> dict[int, int]:
    """By partition, when the message at this offset was published (Unix, microseconds); without those that are not in
    the log. Reads only the chunks that lead there.

    Of compacted entries the times are read, first of those that span the longest time; beyond `MOST_LOOKED_INTO`
    slices a message counts as published when its entry begins. Raises as `QueueLog.load_chunk` and `read_slice`.
    """
    wanted = {partition: (offset, offset + 1) for partition, offset in offsets.items()}
    found: dict[int, int] = {}
    compacted: list[tuple[Entry, Slice]] = []
    for entry in tree.walk(tree.view(head, wanted), queue.load_chunk):
        for piece in entry.slices:
            found[piece.partition] = entry.first_time_us
        if entry.times:
            compacted.extend((entry, piece) for piece in entry.slices)
    compacted.sort(key=lambda each: each[0].first_time_us - each[0].time_us)
    for entry, piece in compacted[:MOST_LOOKED_INTO]:
        found[piece.partition] = queue.times_us(entry, piece)[offsets[piece.partition] - piece.offset]
    return found


def oldest_us(queue: QueueLog, head: Head, wanted: tree.Wanted) -> int | None:
    """When the first of the messages in `wanted` was published (Unix, microseconds); None if there is none. Looks into
    the first entry, as `published_us`.
    """
    entry = next(iter(tree.walk(tree.view(head, wanted), queue.load_chunk)), None)
    if entry is None or not entry.times:
        return entry.time_us if entry is not None else None
    first = {piece.partition: max(wanted[piece.partition][0], piece.offset) for piece in reversed(entry.slices)}
    return min(published_us(queue, head, first).values(), default=entry.first_time_us)
