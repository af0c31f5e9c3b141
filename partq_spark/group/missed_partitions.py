"""What a repeated batch left out, where nothing else remembers it (`checkpoints=none`). No pyspark, no policy.

A batch that Spark repeats leaves out partitions that have moved on. Spark counts it as complete all the same, and
without offsets in the checkpoints nothing says that its messages were not read: if such a partition came back, they
would be skipped. So they are written down before the batch is given out, in one small object of the flow,
`<group>/missed/<flow>`. What it says of a batch end counts for nothing as soon as there is a later one. It keeps the
last few: an older batch may be read again, and a process that slept may write late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.register import Register, few_tries

MOST_ENDS: Final = 3
_REPAIR: Final = "restore the blob, or delete it: then what it speaks of may be skipped"


def missed_folder(key: GroupKey) -> str:
    """Where a group's lie in the object store, ending in '/'."""
    return f"{key.namespace}/{key.queue}/{key.group}/missed/"


Noted = Mapping[str, frozenset[int]]
"""The digest of a batch's end to the partitions that the batch did not read, the latest last."""


class MissedPartitions:
    """Of one flow in one process. `flow` gives its name, when it is known."""

    def __init__(self, store: ObjectStore, key: GroupKey, flow: Callable[[], str | None], effects: Effects) -> None:
        self._store = store
        self._folder = missed_folder(key)
        self._flow = flow
        self._effects = effects
        self._known: Noted | None = None

    def _register(self, queue_id: str) -> Register[Noted]:
        name = f"{self._folder}{self._flow()}"

        def encode(noted: Noted) -> Mapping[str, str]:
            ends = " ".join(f"{end}:{_ranges(missed)}" for end, missed in noted.items())
            return sealed({"ends": ends, "queue_id": queue_id})

        return Register(self._store, name, what=name, decode=lambda found: _decoded(found, name), encode=encode)

    def of(self, digest: str) -> frozenset[int]:
        """The partitions that the batch up to the end with this digest did not read. Read once. Raises `Corrupt`,
        `Unavailable`.
        """
        if self._known is None:
            self._known = self._register("").read() or {}
        return self._known.get(digest, frozenset())

    def note(self, digest: str, partitions: Collection[int], queue_id: str) -> None:
        """The batch up to the end with this digest does not read these partitions of the queue. Raises `Unavailable` if
        that could not be written down: repeat it.
        """

        def decide(found: Noted | None) -> Noted | None:
            noted = found or {}
            # A second look at the same batch may leave out more, never less.
            wanted = noted.get(digest, frozenset()) | frozenset(partitions)
            if noted.get(digest) == wanted:
                return found
            return dict([*noted.items(), (digest, wanted)][-MOST_ENDS:])

        self._known = self._register(queue_id).change(decide, few_tries(self._effects))


def _decoded(document: Document, name: str) -> Noted:
    check_sealed(document.metadata, name, _REPAIR)
    try:
        pairs = [each.split(":") for each in document.metadata["ends"].split(" ")]
        return {digest: _numbers(ranges) for digest, ranges in pairs}
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{name} is no list of partitions ({error!r}): {_REPAIR}") from error


def _ranges(numbers: Collection[int]) -> str:
    """`0-3,7`: a thousand partitions, and three ends, have to fit into one object's metadata."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _numbers(text: str) -> frozenset[int]:
    parts = [[int(number) for number in part.split("-")] for part in text.split(",")]
    return frozenset(number for part in parts for number in range(part[0], part[-1] + 1))
