"""What stores in a storage service have in common: an object of many pieces, of which some are under way at a time;
the service's time, which its answers tell; whether to ask again, and texts that are shown without secrets.

No SDK is imported here.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, TypeVar

from partq_spark.base.effects import begun_by, boot_time_s, store_effects
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.objects.contents import check_name
from partq_spark.objects.retrying import OperationRetry
from partq_spark.objects.urls import ServiceUrl

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 30.0
PIECE_BYTES: Final = 8 * 1024 * 1024
_PIECES_UNDER_WAY: Final = 3

C = TypeVar("C")


class ServiceStore(ABC, Generic[C]):
    """Objects below a prefix of one container, reached with this process's own credentials.

    `retry_timeout_s` is for the pieces of a writer, which nobody outside can repeat, and for its end under a name that
    is unique by contract. `read_timeout_s` bounds the wait for an answer. Raises `Invalid`, which says what to set, if
    there are no credentials.
    """

    look_interval_s: Final = 0.5
    page_size: int
    """Of one answer to a listing: the most that the service gives."""
    max_pieces: int
    """The service's limit: 50,000 of 8 MiB each make 390 GiB, 10,000 make 78 GiB."""

    def __init__(
        self, url: ServiceUrl, *, retry_timeout_s: float = 0.0, read_timeout_s: float = READ_TIMEOUT_S
    ) -> None:
        self.url: Final = str(url)
        self._url = url
        self._clock: Final = ServiceClock()
        self._retry_timeout_s = retry_timeout_s
        self._read_timeout_s = read_timeout_s
        self._client_made = self._connect()
        self._client_pid = os.getpid()

    @abstractmethod
    def _connect(self) -> C:
        """A client for this process."""

    @property
    def _client(self) -> C:
        """This process's: Spark forks its workers, and two that share a connection get each other's answers."""
        if self._client_pid != os.getpid():
            self._client_made, self._client_pid = self._connect(), os.getpid()
        return self._client_made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def time_us(self) -> int | None:
        return self._clock.time_us()

    def create(self, name: str, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        if view.nbytes <= PIECE_BYTES:
            self.put(check_name(name), bytes(view))
            return
        with self.writer(name) as writer:
            writer.write(view)

    @contextmanager
    def writer(self, name: str) -> Iterator[PieceWriter]:
        pieces = PieceWriter(self, check_name(name))
        try:
            yield pieces
            pieces.finish()
        finally:
            pieces.close()

    def retry(self) -> OperationRetry:
        """For one operation of a writer."""
        return OperationRetry(self.url, self._retry_timeout_s, store_effects())

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}"

    # ---- what the service does for a writer, once

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Create the object in one request."""

    @abstractmethod
    def begin(self, name: str) -> str:
        """A name for what follows, unlike any other's."""

    @abstractmethod
    def put_piece(self, name: str, upload: str, number: int, data: bytes) -> str:
        """Stage one piece, which stays invisible; how `finish` names it."""

    @abstractmethod
    def finish(self, name: str, upload: str, pieces: Sequence[str]) -> None:
        """Create the object from staged pieces, in this order."""

    @abstractmethod
    def abandon(self, name: str, upload: str) -> None:
        """Forget what was staged. What a writer that was killed leaves is swept, or forgotten, later."""


class PieceWriter:
    """An immutable object as staged pieces of 8 MiB, three under way at a time; see `ObjectWriter`.

    An object of less than one piece is put with one request. Memory is bounded to five pieces.
    """

    def __init__(self, store: ServiceStore[Any], name: str) -> None:
        self._store = store
        self._name = name
        self._buffer = bytearray()
        self._pool: ThreadPoolExecutor | None = None
        self._upload = ""
        self._pid = os.getpid()
        self._staged: list[Future[str]] = []

    def write(self, data: bytes | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < view.nbytes:
            part = view[done : done + PIECE_BYTES - len(self._buffer)]
            self._buffer += part
            done += part.nbytes
            if len(self._buffer) == PIECE_BYTES:
                self._stage()
        return done

    def finish(self) -> None:
        """Create the object."""
        if not self._staged:
            self._store.retry().create(lambda: self._store.put(self._name, bytes(self._buffer)))
            return
        if self._buffer:
            self._stage()
        pieces = [piece.result() for piece in self._staged]
        self._store.retry().create(lambda: self._store.finish(self._name, self._upload, pieces))
        self._upload = ""

    def close(self) -> None:
        """Nothing is under way any more; what was not finished is abandoned."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._upload and os.getpid() == self._pid:  # a fork leaves it to its parent
            with suppress(PartqError):
                self._store.abandon(self._name, self._upload)

    def _stage(self) -> None:
        """Send the full buffer on its way; waits for the oldest piece first if three are under way."""
        number, most = len(self._staged), self._store.max_pieces
        if number == most:
            raise Invalid(f"object {self._name} has more than {most} pieces of 8 MiB: write several objects")
        if self._pool is None:
            self._upload = self._store.retry().call(lambda: self._store.begin(self._name))
            self._pool = ThreadPoolExecutor(_PIECES_UNDER_WAY, thread_name_prefix="partq-stage")
        if number >= _PIECES_UNDER_WAY:
            self._staged[number - _PIECES_UNDER_WAY].result()
        data = bytes(self._buffer)
        self._buffer.clear()
        self._staged.append(begun_by(self._pool, self._put, number, data))

    def _put(self, number: int, data: bytes) -> str:
        """Repeating it puts the same bytes in the same place."""
        return self._store.retry().call(lambda: self._store.put_piece(self._name, self._upload, number, data))


class ServiceClock:
    """The service's clock, as its last answer said, and the time since then."""

    def __init__(self) -> None:
        self._heard: tuple[datetime, float] | None = None  # the service's time, and when it was heard

    def hear(self, date: str | None) -> None:
        """Take note of an answer's header `Date`; a proxy may have taken it away."""
        try:
            said = parsedate_to_datetime(date or "")
        except (TypeError, ValueError):
            return
        self._heard = (said if said.tzinfo is not None else said.replace(tzinfo=UTC), boot_time_s())

    def now(self) -> datetime:
        """The service's time; this process's own before the first answer."""
        heard = self._heard  # once: other threads hear too
        return datetime.now(UTC) if heard is None else heard[0] + timedelta(seconds=boot_time_s() - heard[1])

    def time_us(self) -> int | None:
        """Unix time in microseconds; None before the first answer."""
        return None if self._heard is None else int(self.now().timestamp() * 1e6)


def is_passing(status: int) -> bool:
    """Whether a request that was refused so may succeed when it is sent again."""
    return status in (408, 429) or status >= 500


def without_secrets(text: str) -> str:
    """The first line of an SDK's text, without the query part of any URL, which may be a signature."""
    line = text.strip().partition("\n")[0]
    line = re.sub(r"\?[^\s'\")]*", "?...", line)
    line = re.sub(r"(?i)\b(sig|accountkey|sharedaccesssignature)=[^\s&;'\")]*", r"\1=...", line)
    return line if len(line) <= 300 else line[:300] + "..."
