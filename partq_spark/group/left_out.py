"""What a flow's batch leaves out although it is the flow's: messages that wait for an earlier partition count, so that
every key keeps its order (RES-03); and, of a batch that is repeated, partitions that have moved on. No pyspark.

A planner of deliveries asks `KeyOrder.waits` before it announces one. The arithmetic is in `log.layouts`; how far each
partition is acknowledged is found here, by its checkpoint. A queue that never changed its count costs nothing, and one
of which everything older than the change is acknowledged costs no request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.base.words import plural, ranges
from partq_spark.group.model import GroupKey
from partq_spark.log import layouts
from partq_spark.log.layouts import LayoutWait, Positions
from partq_spark.log.model import Head, at
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.retrying import Register, few_tries

LOOK_S: Final = 0.1
"""Between two listings for the sake of others' partitions, at least; the object store's own interval if that is
longer.
"""


class KeyOrder:
    """Of one group, or of one query without, in one process. `look_s`: as the object store has it. One call at a
    time.
    """

    def __init__(self, group: str | None, *, look_s: float, now_s: Callable[[], float]) -> None:
        self._group = group
        self._look_s = max(LOOK_S, look_s)
        self._now_s = now_s
        self._rewinds: tuple[object, ...] | None = None
        self._known: dict[int, int] = {}  # acknowledged, by checkpoints; it goes back with a rewind alone
        self._looked_s = -math.inf

    def waits(
        self,
        head: Head,
        acknowledged: Callable[[Collection[int]], Positions],
        claimed: Collection[int],
        reached: Positions,
    ) -> Mapping[int, LayoutWait]:
        """Of the partitions in `reached`, each with the next offset to deliver, those that may not be delivered to
        their end now. `acknowledged`: the membership's, which knows of what it has `claimed` without asking how far
        it is.

        Other flows' checkpoints are listed only while they keep something of `reached` back, and not more often than
        once in `look_s`. Raises as `Membership.acknowledged`.
        """
        if len(head.layouts) == 1:
            return {}
        self._forget_after_rewinds(head)
        asked = layouts.concerned(head)
        mine = asked.intersection(claimed)
        own = acknowledged(mine)  # which counts only while it is so: an epoch may end with a rewind
        done = {**self._known, **own}
        found = layouts.waits(head, done, reached)
        blockers = layouts.blocking({p: wait for p, wait in found.items() if wait.until < at(head.next, p)})
        if not blockers <= mine and self._now_s() - self._looked_s >= self._look_s:
            self._looked_s = self._now_s()
            self._note(head, acknowledged(asked - mine))
            done = {**self._known, **own}
            found = layouts.waits(head, done, reached)
        return found

    def _forget_after_rewinds(self, head: Head) -> None:
        """What was finished is so until somebody goes back."""
        group = head.groups.get(self._group) if self._group is not None else None
        rewinds = (head.queue_id, *((group.since_sequence, group.rewinds) if group is not None else ()))
        if rewinds != self._rewinds:
            self._rewinds = rewinds
            self._known.clear()
            self._looked_s = -math.inf

    def _note(self, head: Head, offsets: Positions) -> None:
        """Nothing beyond what there is: one that was let go counts as finished, and its number may come back."""
        for partition, offset in offsets.items():
            self._known[partition] = max(min(offset, at(head.next, partition)), self._known.get(partition, 0))


# --- the same for people ----------------------------------------------------------------------------------------------

# What a changed partition count means for a group, for people: how far the change is, and which partition waits for
# what (RES-02, RES-03). Pure; `status` shows it.


_MOST_NAMED = 8


def scale_status(head: Head, done: Positions, known: Collection[int]) -> str:
    """`Ready`, or `ScalingUp` or `ScalingDown` while something of an earlier partition count is left, or while the
    coordinator, or the flow that has the group to itself, has not followed. `known`: the partitions that it knows.
    """
    found = layouts.head_scale_status(head, done)
    wanted = set(layouts.partitions_for(head, done))
    if found != "Ready" or wanted == set(known):
        return found
    return "ScalingUp" if wanted - set(known) else "ScalingDown"


def reasons(head: Head, done: Positions, reached: Positions) -> dict[int, str]:
    """In words, of those partitions of `reached` that leave the queue, or have messages that wait for others."""
    found: dict[int, str] = {}
    for partition, end in layouts.leaving(head).items():
        if partition in reached and done.get(partition, 0) < end:
            left = plural(end - max(done.get(partition, 0), at(head.earliest, partition)), "message")
            found[partition] = f"leaves the queue at offset {end:,}: {left} left"
    waits = layouts.waits(head, done, reached)
    barred = {partition: wait for partition, wait in waits.items() if wait.until < at(head.next, partition)}
    if not barred:
        return found
    layout_of = {(q, end): index for index, ends in layouts.unfinished(head, done).items() for q, end in ends.items()}
    for partitions, ends in layouts.grouped_waits(barred):
        # A thousand may wait for a thousand: added up once, then each takes out itself.
        messages = {q: end - max(done.get(q, 0), at(head.earliest, q)) for q, end in sorted(ends.items())}
        every, total = list(messages), sum(messages.values())
        indices = Counter(layout_of[each] for each in ends.items())
        for partition in partitions:
            own = (partition, ends[partition]) if partition in ends else None
            others = [q for q in every[: _MOST_NAMED + 1] if q != partition]
            waits_for = _partitions(others, len(every) - (own is not None))
            published = indices if own is None else indices - Counter([layout_of[own]])
            until = barred[partition].until
            before = f"{found[partition]}; " if partition in found else ""
            if until > reached[partition]:  # so far it is being delivered
                before += f"from offset {until:,} on "
            found[partition] = (
                f"{before}waits for {plural(total - messages.get(partition, 0), 'message')} of {waits_for} from when "
                f"the queue had {_counts(head, published)}"
            )
    return found


def _counts(head: Head, indices: Collection[int]) -> str:
    """The partition counts under which those messages were published of which the last ones are waited for."""
    counts = list(dict.fromkeys(head.layouts[index].partitions for index in sorted(indices)))
    return f"{_listed(counts, 'or')} partition{'' if counts == [1] else 's'}"


def _partitions(first: list[int], count: int) -> str:
    """Some of the `first` partitions of `count`."""
    named = first[:_MOST_NAMED]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"partition{'' if count == 1 else 's'} {_listed(named, ',' if more else 'and')}{more}"


def _listed(numbers: list[int], last: str) -> str:
    words = [str(number) for number in numbers]
    if len(words) == 1 or last == ",":
        return ", ".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


# --- what a repeated batch left out -----------------------------------------------------------------------------------

# What a repeated batch left out, where nothing else remembers it (`checkpoints=none`).
#
# A batch that Spark repeats leaves out partitions that have moved on. Spark counts it as complete all the same, and
# without offsets in the checkpoints nothing says that its messages were not read: if such a partition came back, they
# would be skipped. So they are written down before the batch is given out, in one small object of the flow,
# `<group>/missed/<flow>`. What it says of a batch end counts for nothing as soon as there is a later one. It keeps the
# last few: an older batch may be read again, and a process that slept may write late.


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
            # `0-3,7`: a thousand partitions, and three ends, have to fit into one object's metadata.
            ends = " ".join(f"{end}:{ranges(sorted(missed), ',')}" for end, missed in noted.items())
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
        return {digest: _numbers(missed) for digest, missed in pairs}
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{name} is no list of partitions ({error!r}): {_REPAIR}") from error


def _numbers(text: str) -> frozenset[int]:
    parts = [[int(number) for number in part.split("-")] for part in text.split(",")]
    return frozenset(number for part in parts for number in range(part[0], part[-1] + 1))
