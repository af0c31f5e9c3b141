"""What a flow's partitions wait for after the queue's partition count was changed, so that every key keeps its order
(RES-03). The arithmetic is in `log.layouts`; how far each partition is acknowledged is found here, by its checkpoint.

A planner of deliveries asks `KeyOrder.waits` before it announces one. A queue that never changed its count costs
nothing, and neither does one of which everything older than the change is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from partq_spark.group.claims import Claim
from partq_spark.log import layouts
from partq_spark.log.layouts import LayoutWait, Positions
from partq_spark.log.model import Head, at

LOOK_S: Final = 0.1
"""Between two listings for the sake of others' partitions, at least; the object store's own interval if that is
longer.
"""


class Knows(Protocol):
    """The part of `Membership` that is needed here."""

    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]: ...


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
        self._nothing_waits: tuple[object, ...] | None = None  # with these layouts and these claims

    def waits(
        self, head: Head, member: Knows, claims: Mapping[int, Claim], reached: Positions
    ) -> Mapping[int, LayoutWait]:
        """Of the partitions in `reached`, each with the next offset to deliver, those that may not be delivered to
        their end now. `claims`: what `member` has, and so knows without asking how far it is.

        Other flows' checkpoints are listed only while they keep something of `reached` back, and not more often than
        once in `look_s`. Raises as `Membership.acknowledged`.
        """
        if len(head.layouts) == 1:
            return {}
        self._forget_after_rewinds(head)
        # What is its own counts only while it is: an epoch may end with a rewind.
        case = (_generations(head), {partition: claim.epoch for partition, claim in claims.items()})
        if self._nothing_waits == case:
            return {}
        asked = layouts.concerned(head)
        mine = asked.intersection(claims)
        own = member.acknowledged(mine)
        done = {**self._known, **own}
        found = layouts.waits(head, done, reached)
        blockers = layouts.blocking({p: wait for p, wait in found.items() if wait.until < at(head.next, p)})
        if not blockers <= mine and self._may_look():
            self._looked_s = self._now_s()
            self._note(head, member.acknowledged(asked - mine))
            done = {**self._known, **own}
            found = layouts.waits(head, done, reached)
        if not layouts.unfinished(head, done):
            self._nothing_waits = case
        return found

    def _forget_after_rewinds(self, head: Head) -> None:
        """What was finished is so until somebody goes back."""
        group = head.groups.get(self._group) if self._group is not None else None
        rewinds = (head.queue_id, *((group.since_sequence, group.rewinds) if group is not None else ()))
        if rewinds != self._rewinds:
            self._rewinds = rewinds
            self._known.clear()
            self._looked_s = self._nothing_waits = None

    def _may_look(self) -> bool:
        return self._looked_s is None or self._now_s() - self._looked_s >= self._look_s

    def _note(self, head: Head, offsets: Positions) -> None:
        """Nothing beyond what there is: one that was let go counts as finished, and its number may come back."""
        for partition, offset in offsets.items():
            self._known[partition] = max(min(offset, at(head.next, partition)), self._known.get(partition, 0))


class Milestones:
    """The offsets of a partition at which earlier layouts end: an acknowledgement that reaches one is worth being
    written down at once, because others may wait for it. `head`: as this process last read it.
    """

    def __init__(self, head: Callable[[], Head]) -> None:
        self._head = head
        self._made_for: tuple[int, ...] = ()
        self._made: Mapping[int, tuple[int, ...]] = {}

    def __call__(self, partition: int) -> Sequence[int]:
        """Those of one partition, ascending."""
        head = self._head()
        if len(head.layouts) == 1:
            return ()
        generations = _generations(head)
        if generations != self._made_for:
            self._made_for = generations
            self._made = layouts.milestones(head, range(len(head.next)))
        return self._made.get(partition, ())


def _generations(head: Head) -> tuple[int, ...]:
    """What tells the head's layouts from others of the same queue: one never changes."""
    return tuple(layout.generation for layout in head.layouts)


def passes(milestones: Sequence[int], written: int, done: int) -> bool:
    """Whether `done` has reached a milestone that `written` has not."""
    return any(written < milestone <= done for milestone in milestones)
