"""What a flow's partitions wait for after the queue's partition count was changed, so that every key keeps its order
(RES-03). The arithmetic is in `log.layouts`; how far each partition is acknowledged is found here, by its checkpoint.

A planner of deliveries asks `KeyOrder.waits` before it announces one. A queue that never changed its count costs
nothing, and one of which everything older than the change is acknowledged costs no request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from partq_spark.log import layouts
from partq_spark.log.layouts import LayoutWait, Positions
from partq_spark.log.model import Head, at

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
        self._looked_s: float | None = None

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
        if not blockers <= mine and self._may_look():
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
            self._looked_s = None

    def _may_look(self) -> bool:
        return self._looked_s is None or self._now_s() - self._looked_s >= self._look_s

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
            left = _messages(end - max(done.get(partition, 0), at(head.earliest, partition)))
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
            before = f"{found[partition]}; " if partition in found else ""
            found[partition] = (
                f"{before}waits for {_messages(total - messages.get(partition, 0))} of {waits_for} from when the queue "
                f"had {_counts(head, published)}"
            )
    return found


def _counts(head: Head, indices: Collection[int]) -> str:
    """The partition counts under which those messages were published of which the last ones are waited for."""
    counts = list(dict.fromkeys(head.layouts[index].partitions for index in sorted(indices)))
    return f"{_listed(counts, 'or')} partition{'' if counts == [1] else 's'}"


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


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
