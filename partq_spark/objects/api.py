"""The object store as the rest of partq sees it: immutable objects, and documents changed by compare-and-swap.

Only the contract lives here. Two kinds of object share one flat name space of `/`-separated names:

- an *immutable object* is created once, whole or not at all, under a name that its creator made unique, and never
  changes;
- a *document* is a small object (a JSON body, or a map of metadata with no body) that is only ever changed by `swap`.

Names are parts of `[A-Za-z0-9._=-]`, not beginning with a dot, joined by `/` (`names.py`); other names, ranges and
contents are refused with `Invalid` by every call. A name is not at once an object and the folder of others. What was
never written, the whole store included, is simply not there: `load` gives None and a listing nothing; the first write
makes it.

Every call is bounded in time. A store never retries a swap by itself: a lost answer is `Unavailable`, and only the
caller can tell, by reading, whether its change took place (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One version of a document. `body` is empty where `metadata` is given, and the other way round."""

    etag: str
    body: bytes = b""
    metadata: Mapping[str, str] = field(default_factory=dict)


class Unchanged:
    """The answer of `load(known=…)` when the document still has the known ETag; there is one value, `UNCHANGED`."""


UNCHANGED: Final = Unchanged()


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What a listing says of one object. `size_bytes` is exact for immutable objects.

    `age_s` is measured against the clock that stamped the object (the disk's or the service's), never this process's,
    so that clocks of different machines are not compared. `etag` and `metadata` are filled for metadata documents
    only, as `load` gives them, and only where a listing was asked for values.
    """

    name: str
    size_bytes: int
    age_s: float
    etag: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectWriter(Protocol):
    """An immutable object in the making."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append; returns the number of bytes taken, which is always all of them."""


class ObjectStore(Protocol):
    """A place for objects. Names are relative to `url`; implementations are safe for use by several threads."""

    @property
    def url(self) -> str:
        """The store's address in canonical form, free of secrets: what `--store` takes."""

    @property
    def look_interval_s(self) -> float:
        """How often a waiting reader may call `load(known=…)` without being a burden: 0.01 on a disk, 0.5 elsewhere."""

    def time_us(self) -> int | None:
        """The clock that stamps the objects, the same for all who use the store: Unix time in microseconds, good to a
        few seconds, without a request; None: not known, or not yet.
        """

    def probe(self) -> None:
        """Try out, below a name that is removed again, whether a server of any make does what queues rest on.

        Raises `Invalid`, which says what it lacks; warns of settings that let the store grow.
        """

    def create(self, name: str, data: bytes | memoryview) -> None:
        """Create an immutable object, durably.

        Raises `Conflict` if the name exists, `Unavailable` if the outcome is unknown or the store cannot be reached.
        """

    def writer(self, name: str) -> AbstractContextManager[ObjectWriter]:
        """Create an immutable object piece by piece, in bounded memory. Errors as for `create`, raised when it ends.

        Leaving the `with` block normally creates it, durably; an exception, or a `write` that failed, leaves nothing.
        """

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        """Bytes `[start, start + length)` of an immutable object in one request, in memory of one's own.

        Raises `ObjectMissing` if there is no such object, `Corrupt` if it ends before the range does.
        """

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        """A document, `UNCHANGED` if its ETag is `known`, or None if there is none.

        Raises `Corrupt` if what is there is no document.
        """

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        """Replace the document whose ETag is `expected` (None: create it; nothing may be there); returns the new
        ETag.

        `content` is a JSON object as UTF-8 bytes (from `{` to `}`, given back byte for byte), or metadata (at least
        one key; keys `[a-z_]+`; values printable ASCII, not empty, without a space at either end; 8 KiB in all).
        ETags are random: writing an old content again gives a new one. Raises `Conflict` if the condition did not
        hold, and nothing was changed; `Unavailable` if the outcome is unknown. Where a proxy sends requests a second
        time, a `Conflict` may also be the answer to one's own success: a caller that must not repeat it reads first.
        """

    def remove(self, name: str, *, expected: str) -> None:
        """Delete the document whose ETag is `expected`. Raises as `swap` does; one that is gone is a `Conflict`."""

    def delete(self, name: str) -> None:
        """Delete an object, if it is there. Repeating it is harmless."""

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        """All objects whose names start with `prefix` (any string), in order of name, in pages.

        `values`: with what metadata documents hold, which costs requests where the service does not list it.
        What lies there under a name that no object can have is somebody else's and left out.
        """

    def list_folders(self, prefix: str) -> Iterator[str]:
        """The distinct next name parts below `prefix` (`""` or ending in `/`) that have objects beneath them.

        They come without the slash, in the order of `list`: by the part with its slash, so `a-b` before `a`.
        """

    def sweep_temporary(self, older_than_s: float) -> int:
        """Remove what crashed writers left behind and nobody touched for so long; returns how many pieces.

        For housekeeping. `older_than_s` must be longer than a writer may pause. A store that cleans up by itself
        returns 0.
        """

    def close(self) -> None:
        """Give back connections and file handles; the store is not used afterwards."""
