"""What a repeated batch left out, where nothing else remembers it (`checkpoints=none`). No pyspark, no policy.

A batch that Spark repeats leaves out partitions that have moved on. Spark counts it as complete all the same, and
without offsets in the checkpoints nothing says that its messages were not read: if such a partition came back, they
would be skipped. So they are written down before the batch is given out, in one small object of the flow,
`<group>/missed/<flow>`. It speaks of one batch end alone, and counts for nothing as soon as there is a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from partq_spark.errors import Conflict, Corrupt, Unavailable
from partq_spark.flow.effects import Effects
from partq_spark.flow.model import GroupKey
from partq_spark.flow.sealing import check_sealed, sealed
from partq_spark.objects.api import Document, ObjectStore

MAX_TRIES: Final = 8
_PAUSE_S: Final = 0.05
_REPAIR: Final = "restore the blob, or delete it: then what it speaks of may be skipped"


def missed_folder(key: GroupKey) -> str:
    """Where a group's lie in the object store, ending in '/'."""
    return f"{key.namespace}/{key.queue}/{key.group}/missed/"


class Missed:
    """Of one flow in one process. `flow` gives its name, when it is known."""

    def __init__(self, store: ObjectStore, key: GroupKey, flow: Callable[[], str | None], effects: Effects) -> None:
        self._store = store
        self._folder = missed_folder(key)
        self._flow = flow
        self._effects = effects
        self._known: tuple[str, frozenset[int]] | None = None

    @property
    def _name(self) -> str:
        return f"{self._folder}{self._flow()}"

    def of(self, digest: str) -> frozenset[int]:
        """The partitions that the batch up to the end with this digest did not read. Read once. Raises `Corrupt`,
        `Unavailable`.
        """
        if self._known is None:
            document = self._store.load(self._name)
            self._known = self._decoded(document) if isinstance(document, Document) else ("", frozenset())
        return self._known[1] if self._known[0] == digest else frozenset()

    def note(self, digest: str, partitions: Collection[int], queue_id: str) -> None:
        """The batch up to the end with this digest does not read these partitions of the queue. Raises `Unavailable` if
        that could not be written down: repeat it.
        """
        for _ in range(MAX_TRIES):
            found = self._store.load(self._name)
            document = found if isinstance(found, Document) else None
            known = self._decoded(document) if document is not None else ("", frozenset[int]())
            # A second look at the same batch may leave out more, never less.
            wanted = frozenset(partitions) | (known[1] if known[0] == digest else frozenset())
            if known != (digest, wanted):
                listed = ",".join(map(str, sorted(wanted)))
                content = sealed({"end": digest, "partitions": listed, "queue_id": queue_id})
                try:
                    self._store.swap(self._name, content, expected=document.etag if document is not None else None)
                except (Conflict, Unavailable):
                    self._effects.sleep(self._effects.uniform(0.0, _PAUSE_S))
                    continue
            self._known = (digest, wanted)
            return
        raise Unavailable(f"{self._name} could not be written in {MAX_TRIES} tries: try again")

    def _decoded(self, document: Document) -> tuple[str, frozenset[int]]:
        check_sealed(document.metadata, self._name, _REPAIR)
        try:
            return document.metadata["end"], frozenset(map(int, document.metadata["partitions"].split(",")))
        except (KeyError, ValueError) as error:
            raise Corrupt(f"{self._name} is no list of partitions ({error!r}): {_REPAIR}") from error
