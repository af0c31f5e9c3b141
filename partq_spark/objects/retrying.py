"""What is done about answers of a store that do not come: what may be repeated is tried again, in bounded time, and a
document that is swapped is read again (`Register`).

The stores themselves never try again, so that one outage is waited for once. A swap, a removal and the end of a
writer are never repeated: their answer may have been lost, and only by reading can the caller tell whether they took
place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final, Generic, TypeVar, cast

from partq_spark.base.effects import Backoff, Effects, Retry, store_effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.objects.api import Document, ObjectInfo, ObjectStore, ObjectWriter, Unchanged

T = TypeVar("T")
W = TypeVar("W")
_log = logging.getLogger("partq.objects")
_MOST_GIVEN: Final = 200_000  # names that a listing keeps in mind, some 25 MB


class OperationRetry(Backoff):
    """How long one operation of a store is tried again, with which pauses; the last error says for how long it was.
    Used for one operation, then thrown away.
    """

    def __init__(self, url: str, timeout_s: float, effects: Effects) -> None:
        super().__init__(Retry(first_s=0.05, most_s=5.0, timeout_s=timeout_s), effects)
        self._url = url

    def pause(self, cause: Exception, *, tried_s: float = 0.0) -> None:
        if self.retry.failures == 0 and self.retry.timeout_s > 0:
            _log.warning("store %s: %s; trying again for up to %g s", self._url, cause, self.retry.timeout_s)
        super().pause(cause, tried_s=tried_s)

    def _given_up(self, cause: Exception, now_s: float) -> Exception:
        tried_s, timeout_s = self.retry.tried_s(now_s), self.retry.timeout_s
        error = Unavailable(
            f"store {self._url} was tried for {tried_s:.1f} s (option retryTimeout, {timeout_s:g} s): {cause}"
        )
        error.tried_s, error.__cause__ = tried_s, cause
        return error

    def create(self, operation: Callable[[], None]) -> None:
        """As `call`, for a creation: names are unique by contract, so what is there after a lost answer is our own."""
        began_s = self._effects.now_s()
        try:
            operation()
        except Unavailable as cause:
            self.pause(cause, tried_s=self._effects.now_s() - began_s)
            with suppress(Conflict):
                self.call(operation)


class Retrying:
    """A store that waits up to `timeout_s` for another one to come back; 0 tries once.

    After the time it raises `Unavailable`, which names the store, the time, the cause and the option.
    """

    def __init__(self, store: ObjectStore, timeout_s: float, effects: Effects | None = None) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._effects = effects if effects is not None else store_effects()

    def __repr__(self) -> str:
        return f"Retrying({self._store!r}, {self._timeout_s:g})"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def look_interval_s(self) -> float:
        return self._store.look_interval_s

    def time_us(self) -> int | None:
        return self._store.time_us()

    def probe(self) -> None:
        self._retry().call(self._store.probe)

    def close(self) -> None:
        self._store.close()

    # ---- tried again

    def create(self, name: str, data: bytes | memoryview) -> None:
        self._retry().create(lambda: self._store.create(name, data))

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        return self._retry().call(lambda: self._store.read(name, start=start, length=length))

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        started_s = self._effects.now_s()
        try:
            return self._store.load(name, known=known)  # idle readers come here every few milliseconds
        except Unavailable as cause:
            retry = self._retry()
            retry.pause(cause, tried_s=self._effects.now_s() - started_s)
            return retry.call(lambda: self._store.load(name, known=known))

    def delete(self, name: str) -> None:
        self._retry().call(lambda: self._store.delete(name))

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        return self._listing(lambda: self._store.list(prefix, values=values), lambda info: info.name)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._listing(lambda: self._store.list_folders(prefix), str)

    def sweep_temporary(self, older_than_s: float) -> int:
        return self._store.sweep_temporary(older_than_s)

    # ---- never tried again

    def writer(self, name: str) -> AbstractContextManager[ObjectWriter]:
        return self._store.writer(name)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        return self._store.swap(name, content, expected=expected)

    def remove(self, name: str, *, expected: str) -> None:
        self._store.remove(name, expected=expected)

    def _retry(self) -> OperationRetry:
        return OperationRetry(self.url, self._timeout_s, self._effects)

    def _listing(self, start: Callable[[], Iterator[T]], name_of: Callable[[T], str]) -> Iterator[T]:
        """A listing that begins again after an outage and leaves out what it has given already."""
        # Started here, so that a bad prefix is refused by the call itself and not by the loop over its result.
        return self._go_on(start(), start, name_of)

    def _go_on(
        self, items: Iterator[T] | None, start: Callable[[], Iterator[T]], name_of: Callable[[T], str]
    ) -> Iterator[T]:
        retry = self._retry()
        given: set[str] = set()  # by name, for not every server lists in the order of the names
        while True:
            started_s = self._effects.now_s()
            try:
                if items is None:
                    items = start()
                for item in items:
                    if (name := name_of(item)) not in given:
                        if len(given) < _MOST_GIVEN:
                            given.add(name)
                        retry.retry.succeeded()
                        yield item
                        started_s = self._effects.now_s()  # what the caller did with the item is not waiting
                return
            except Unavailable as cause:
                if len(given) == _MOST_GIVEN:
                    raise  # to begin again is its caller's
                items = None
                retry.pause(cause, tried_s=self._effects.now_s() - started_s)


# --- a document that is changed by compare-and-swap, and the version that was seen last -------------------------------

# Each truth of partq is one small document, and this is how it is changed. An answer may be lost (`Unavailable`) or may
# contradict (`Conflict` as the answer to one's own success), and neither is ever taken for a failure: the document is
# read again, and the caller recognises what it has written, by a token, an owner, an epoch. So what is written has to
# carry something of its own. Nothing here knows what a document says.

MAX_TRIES: Final = 8
"""Swaps of one change of what few write, so that a handful of conflicts is a lot."""


def few_tries(effects: Effects, tries: int = MAX_TRIES) -> Backoff:
    """For a change that somebody waits for, with a group's partitions in hand: it ends after so many `tries`."""
    return Backoff(Retry(first_s=0.01, most_s=1.0, tries=tries, least=0.0), effects)


class Register(Generic[T]):
    """`what` names the document in errors. Not for use by several threads; nothing is read before it has to be."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        what: str,
        decode: Callable[[Document], T],
        encode: Callable[[T], bytes | Mapping[str, str]],
    ) -> None:
        self.value: T | None = None
        self.etag: str | None = None
        self._store = store
        self._name = name
        self._what = what
        self._decode = decode
        self._encode = encode

    def keep(self, value: T | None, etag: str | None) -> None:
        """It is as it was read or written otherwise; None: there is none."""
        self.value, self.etag = value, etag

    def read(self) -> T | None:
        """As it is now, by one request that is cheap if nothing has changed; None: there is none."""
        found = self._store.load(self._name, known=self.etag)
        if isinstance(found, Document):
            self.keep(self._decode(found), found.etag)
        elif not isinstance(found, Unchanged):
            self.keep(None, None)
        return self.value

    def swap(self, wanted: T | None) -> None:
        """One attempt to put `wanted` in place of what was seen last (None: to remove that). Raises `Conflict`,
        `Unavailable` (outcome unknown); what was seen stays, and a look tells whether it is still so.
        """
        etag: str | None = None
        if wanted is not None:
            etag = self._store.swap(self._name, self._encode(wanted), expected=self.etag)
        elif self.etag is not None:
            self._store.remove(self._name, expected=self.etag)
        self.keep(wanted, etag)

    def change(self, decide: Callable[[T | None], W], backoff: Backoff, *, known: bool = False) -> W:
        """Swap in what `decide` makes of the present value (None: there is none, or none is wanted), until it finds
        nothing to change and returns what it was given; it must be harmless when repeated. `known`: begin with what
        was seen last.

        Raises what `decide` raises, and after the last try of `backoff`, which is settled by reading too, its cause,
        or `Unavailable` with the number of tries if that is what ended it.
        """
        found = self.value if known else self.read()
        over: Conflict | Unavailable | None = None
        while True:
            wanted = decide(found)
            is_so = wanted is found
            if is_so:
                return wanted
            if over is not None:
                raise self._given_up(backoff.retry, over)
            try:
                self.swap(cast("T | None", wanted))
            except (Conflict, Unavailable) as cause:
                try:
                    backoff.pause(cause)
                except (Conflict, Unavailable) as error:
                    over = error
            else:
                return wanted
            try:
                found = self.read()
            except Unavailable as error:
                if over is not None:  # what is unknown is the change, and the look at it says no more
                    raise self._given_up(backoff.retry, over) from error
                raise

    def _given_up(self, retry: Retry, cause: Conflict | Unavailable) -> Conflict | Unavailable:
        if retry.failures < retry.tries:
            return cause
        error = Unavailable(f"{self._what} could not be swapped in {retry.failures} tries: {cause}; try again later")
        error.__cause__ = cause
        return error
