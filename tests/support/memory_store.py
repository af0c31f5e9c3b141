"""The object store in this process's memory: the whole contract, but nothing durable and nothing shared.

For simulations and fast tests. Deterministic: time and randomness are handed in, and nothing else is asked for
either, so that a seed repeats a run.
"""

from __future__ import annotations

import bisect
import io
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from partq_spark.base.errors import Corrupt, ObjectMissing
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.contents import (
    changed,
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    check_whole,
    taken,
)

_FIRST_DATE_S = 1e9  # of 2001


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One object, as it lies there."""

    created_s: float
    data: bytes = b""
    metadata: Mapping[str, str] = field(default_factory=dict)
    etag: str | None = None  # None: an immutable object


class MemoryStore:
    """Objects in a dictionary.

    `clock` returns seconds and is only used for ages; `rng` makes the ETags. A listing reads `page_size` objects at a
    time and looks anew for the next page, as a service does, so that changes between pages show in it.
    """

    def __init__(
        self, *, clock: Callable[[], float], rng: random.Random, url: str = "memory:", page_size: int = 1000
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._url = url
        self._page_size = page_size
        self._objects: dict[str, Stored] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MemoryStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def look_interval_s(self) -> float:
        return 0.01

    def time_us(self) -> int | None:
        """The clock's time, if it tells a date and does not count from somewhere in 1970."""
        seconds = self._clock()
        return int(seconds * 1e6) if seconds >= _FIRST_DATE_S else None

    def probe(self) -> None:
        """Nothing: it lacks nothing."""

    def close(self) -> None:
        """Keeps everything: the store can be used on, as another process would use a real one."""

    # ---- immutable objects

    def create(self, name: str, data: bytes | memoryview) -> None:
        check_name(name)
        stored = bytes(data)
        with self._lock:
            if name in self._objects:
                raise taken(name)
            self._objects[name] = Stored(created_s=self._clock(), data=stored)

    @contextmanager
    def writer(self, name: str) -> Iterator[io.BytesIO]:
        check_name(name)
        whole = io.BytesIO()
        yield whole
        self.create(name, whole.getbuffer())

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        check_range(name, start, length)
        with self._lock:
            stored = self._objects.get(check_name(name))
        if stored is None:
            raise ObjectMissing(f"object {name} is not there: restore it from a copy")
        end = len(stored.data) if length is None else start + length
        check_whole(name, len(stored.data), start, end)
        return memoryview(stored.data)[start:end]

    def delete(self, name: str) -> None:
        check_name(name)
        with self._lock:
            self._objects.pop(name, None)

    # ---- documents

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        check_name(name)
        with self._lock:
            stored = self._objects.get(name)
        if stored is None:
            return None
        if stored.etag is None:
            raise Corrupt(f"object {name} is no document: remove it if it is foreign")
        if stored.etag == known:
            return UNCHANGED
        return Document(etag=stored.etag, body=stored.data, metadata=stored.metadata)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        check_name(name)
        check_content(name, content)
        with self._lock:
            self._compare(name, expected)
            etag = f"{self._rng.getrandbits(128):032x}"
            if isinstance(content, bytes):
                self._objects[name] = Stored(created_s=self._clock(), data=content, etag=etag)
            else:
                self._objects[name] = Stored(created_s=self._clock(), metadata=dict(content), etag=etag)
        return etag

    def remove(self, name: str, *, expected: str) -> None:
        check_name(name)
        with self._lock:
            self._compare(name, expected)
            del self._objects[name]

    def _compare(self, name: str, expected: str | None) -> None:
        stored = self._objects.get(name)
        found = None if stored is None else stored.etag or "no document"
        if found != expected:
            raise changed(name, expected, found)

    # ---- listing

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._pages(prefix, values=values)

    def _pages(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        last: str | None = None
        while True:
            with self._lock:
                names = sorted(name for name in self._objects if name.startswith(prefix))
                first = 0 if last is None else bisect.bisect_right(names, last)
                page = [(name, self._objects[name]) for name in names[first : first + self._page_size]]
            if not page:
                return
            for name, stored in page:
                yield ObjectInfo(
                    name=name,
                    size_bytes=len(stored.data),
                    age_s=max(0.0, self._clock() - stored.created_s),
                    etag=stored.etag or "" if values and stored.metadata else "",
                    metadata=stored.metadata if values else {},
                )
            last = page[-1][0]

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        below = (info.name[len(prefix) :].partition("/") for info in self._pages(prefix))
        return (folder for folder, _ in groupby(first for first, slash, _ in below if slash))

    def sweep_temporary(self, older_than_s: float) -> int:
        """Nothing half written is ever kept."""
        return 0
