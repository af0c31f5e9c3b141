"""A register: one document of an object store that is changed by compare-and-swap, and the version that was seen last.

Each truth of partq is one small document, and this is how it is changed. An answer may be lost (`Unavailable`) or may
contradict (`Conflict` as the answer to one's own success), and neither is ever taken for a failure: the document is
read again, and the caller recognises what it has written, by a token, an owner, an epoch. So what is written has to
carry something of its own. Nothing here knows what a document says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar, cast

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.base.retry import Backoff, Retry
from partq_spark.objects.api import Document, ObjectStore, Unchanged

T = TypeVar("T")
W = TypeVar("W")

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
