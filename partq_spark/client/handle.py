"""A queue by its name and place: what each method of `Queue` begins with. They are written where what they do is
decided, as classes over this one, of which `queue.Queue` is made.
"""

from __future__ import annotations

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.client.arguments import address, checked
from partq_spark.log.names import checked_name
from partq_spark.log.queue import QueueLog, open_queue


@checked
class Handle:
    """One queue. Holds an address and nothing else: it may be pickled, used by several threads, and kept for ever."""

    @checked
    def __init__(
        self,
        name: str,
        *,
        store: str | None = None,
        namespace: str = "default",
        retry_timeout_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        """`store`: `file:///absolute/dir`, `azure://container/prefix` or `s3://bucket/prefix`; None:
        `$PARTQ_STORE`, else `file://$HOME/.partq`. Raises `Invalid` for a name or URL that cannot be.
        """
        self._where = address(store, namespace, retry_timeout_s)
        self._name = checked_name("queue", name)

    @property
    def name(self) -> str:
        """The queue's name, in lower case."""
        return self._name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._where.namespace

    @property
    def store(self) -> str:
        """The URL of the store, in the one way in which partq writes it."""
        return self._where.store

    def __str__(self) -> str:
        return str(self._where.target(self._name))

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self._where, self._name) == (other._where, other._name)

    def __hash__(self) -> int:
        return hash((self._where, self._name))

    def _opened(self) -> QueueLog:
        """A handle on the log of its own for each call; the store is shared within the process."""
        return open_queue(self._where.target(self._name))
