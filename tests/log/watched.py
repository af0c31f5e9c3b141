"""The one true store of a simulation: it tells the oracle of each effect at the moment it happens, and what lies in it
is looked at by hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from partq_spark.log.model import Entry, Slice
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment_columns import PLAIN
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore
from tests.support.faulty import PAGE
from tests.support.judge import Violation


class Watching(Protocol):
    """What is told of each effect."""

    def swapped(self, name: str, body: bytes, store: WatchedStore) -> None: ...

    def acknowledging(self, name: str, metadata: Mapping[str, str]) -> None: ...

    def removed(self, name: str) -> None: ...

    def deleted(self, name: str) -> None: ...


class WatchedStore(MemoryStore):
    """The true objects of a simulation. `conditional` False is a store that swaps whatever the ETag."""

    def __init__(self, *, clock: Callable[[], float], rng: random.Random, conditional: bool) -> None:
        super().__init__(clock=clock, rng=rng, page_size=PAGE)
        self.oracle: Watching | None = None
        self._conditional = conditional

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        if not self._conditional:
            present = self.load(name)
            expected = present.etag if isinstance(present, Document) else None
        etag = super().swap(name, content, expected=expected)
        if self.oracle is not None and isinstance(content, bytes):
            self.oracle.swapped(name, content, self)
        elif self.oracle is not None and not isinstance(content, bytes):
            self.oracle.acknowledging(name, content)
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

    def offset_of(self, name: str, queue_id: str, since: int) -> int | None:
        """The offset of a checkpoint of this queue and of the group that was made `since` then, or None."""
        document = self.load(name)
        metadata = document.metadata if isinstance(document, Document) else {}
        mine = metadata.get("queue_id") == queue_id and metadata.get("since") == str(since)
        return int(metadata["offset"]) if mine and "offset" in metadata else None

    def peek_rows(self, name: str, piece: Slice, entry: Entry, columns: Columns | None) -> tuple[list[Any], list[int]]:
        """Keys and values of one slice, or a typed queue's rows, and their times if it has them, read by hand."""
        data = self.peek(name)
        if data is None:
            raise Violation(f"the head names what is not there: {name}")
        body = data[piece.start : piece.start + piece.length]
        payload = PLAIN if columns is None else schema_of(columns, entry.schema_version)
        time = pa.field("timestamp" if columns is None else "_timestamp", TIMESTAMP, nullable=False)
        schema = payload.append(time) if entry.times else payload
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        rows = batch.select(payload.names).to_pylist()
        times_us = batch.column(time.name).cast(pa.int64()).to_pylist() if entry.times else []
        return rows if columns is not None else [(row["key"], row["value"]) for row in rows], times_us
