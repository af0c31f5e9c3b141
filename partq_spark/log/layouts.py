"""What several partition counts in a queue's life mean for the order of keys: pure arithmetic over a head.

Under another count a key lies in another partition, so what was published after the change waits until everything of
its key that was published before is dealt with (conformance RES-03). Partition q of an earlier layout and p of a later
one share keys only if q ≡ p modulo the greatest common divisor of the two counts. A partition never waits for itself:
its own order says it all. Nothing here knows flows; whose acknowledgement counts is the caller's to say.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from partq_spark.errors import Invalid
from partq_spark.log.model import Head, Layout, at

MOST_LAYOUTS = 32  # in a head: each earlier one may be waited for, and is looked at in every plan

Positions = Mapping[int, int]
"""By partition number, the offset before which everything is dealt with. A missing one: nothing is."""


class Stretch(NamedTuple):
    """The messages of one partition that were published under one layout: offsets `[start, end)`.

    `end` is None under the present layout, which goes on.
    """

    layout: int  # index into Head.layouts
    partition: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A partition may be delivered up to offset `until` and no further, because of what is left of others.

    `waits_for`: partition number to the offset up to which it has to be dealt with first.
    """

    until: int
    waits_for: Positions


def stretches(head: Head) -> dict[int, tuple[Stretch, ...]]:
    """`stretches_of` every partition number ever used that has any."""
    found = {partition: stretches_of(head, partition) for partition in range(len(head.next))}
    return {partition: mine for partition, mine in found.items() if mine}


def stretches_of(head: Head, partition: int) -> tuple[Stretch, ...]:
    """The stretches of a partition number in the order of their offsets; empty ones are left out, except under the
    present layout.
    """
    present = len(head.layouts) - 1
    found: list[Stretch] = []
    end = at(head.next, partition)
    for index in range(present, -1, -1):
        layout = head.layouts[index]
        if partition >= layout.partitions:
            continue
        start = layout.begin[partition]
        if index == present:
            found.append(Stretch(index, partition, start, None))
        elif start < end:
            found.append(Stretch(index, partition, start, end))
        end = start
    return tuple(reversed(found))


def unfinished(head: Head, done: Positions) -> dict[int, dict[int, int]]:
    """Of every earlier layout that is not dealt with: its index, and of each partition that has messages of it left
    the offset at which they end. What has been trimmed cannot be waited for.
    """
    result: dict[int, dict[int, int]] = {}
    if len(head.layouts) == 1:
        return result
    present = head.layout.begin
    for partition, following in enumerate(head.next):
        reached = max(done.get(partition, 0), at(head.earliest, partition))
        if reached >= (present[partition] if partition < len(present) else following):
            continue  # most of the time: then this costs as much as one layout does
        for stretch in stretches_of(head, partition):
            if stretch.end is not None and reached < stretch.end:
                result.setdefault(stretch.layout, {})[partition] = stretch.end
    return dict(sorted(result.items()))


def shares_keys(earlier: Layout, q: int, later: Layout, p: int) -> bool:
    """Whether partition `q` of one layout and `p` of another can have messages of one key (RES-03)."""
    return (q - p) % math.gcd(earlier.partitions, later.partitions) == 0


def waits(head: Head, done: Positions, reached: Positions) -> dict[int, Wait]:
    """The partitions of `reached` that may not be delivered to their end now. `reached`: the next offset to deliver of
    each; `done`: what is dealt with, of all partitions that `concerned` names. A wait never lies below `reached`.
    """
    left = unfinished(head, done)
    if not left:
        return {}
    result: dict[int, Wait] = {}
    classes = _Classes(head, left)
    for partition in sorted(reached):
        for stretch in stretches_of(head, partition):
            if stretch.end is not None and stretch.end <= reached[partition]:
                continue  # delivered; what is not acknowledged of it holds back others, not itself
            blockers = classes.before(stretch)
            if blockers:
                result[partition] = Wait(until=max(stretch.start, reached[partition]), waits_for=blockers)
                break
    return result


class _Classes:
    """For each pair of layouts the unfinished partitions of the earlier one by their residue: what `shares_keys` says,
    without asking it for every pair of partitions. A thousand partitions may wait for a thousand others each, so what
    is the same for many is put together once.
    """

    def __init__(self, head: Head, left: Mapping[int, Mapping[int, int]]) -> None:
        self._layouts = head.layouts
        self._left = left
        self._by_residue: dict[tuple[int, int], dict[int, dict[int, int]]] = {}
        self._together: dict[tuple[int, tuple[int, ...]], dict[int, int]] = {}
        self._moduli: dict[int, list[tuple[int, int]]] = {}

    def before(self, stretch: Stretch) -> Mapping[int, int]:
        """What the messages of `stretch` wait for."""
        moduli = self._earlier(stretch.layout)
        residues = tuple([stretch.partition % modulus for _, modulus in moduli])
        together = self._together.get((stretch.layout, residues))
        if together is None:
            together = self._together[stretch.layout, residues] = {}
            for (earlier, modulus), residue in zip(moduli, residues, strict=True):
                for q, end in self._of_residue(earlier, modulus).get(residue, {}).items():
                    together[q] = max(end, together.get(q, 0))
        if stretch.partition not in together:
            return together
        others = dict(together)
        del others[stretch.partition]
        return others

    def _earlier(self, layout: int) -> list[tuple[int, int]]:
        """The unfinished layouts before this one, each with the modulus under which the two share keys."""
        found = self._moduli.get(layout)
        if found is None:
            count = self._layouts[layout].partitions
            found = [(each, math.gcd(self._layouts[each].partitions, count)) for each in self._left if each < layout]
            self._moduli[layout] = found
        return found

    def _of_residue(self, earlier: int, modulus: int) -> dict[int, dict[int, int]]:
        made = self._by_residue.get((earlier, modulus))
        if made is None:
            made = self._by_residue[earlier, modulus] = defaultdict(dict)
            for q, end in self._left[earlier].items():
                made[q % modulus][q] = end
        return made


def concerned(head: Head) -> frozenset[int]:
    """The partitions whose state of delivery others may have to wait for: those with messages of an earlier layout that
    can still be read. Empty where the queue never changed its count, or all of that has been trimmed.
    """
    return frozenset(q for ends in unfinished(head, {}).values() for q in ends)


def leaving(head: Head) -> dict[int, int]:
    """Partitions that the queue does not have any more but that can still be read, and where they end: whoever has not
    read them to that end is not done with them (RES-02).
    """
    return {
        partition: head.next[partition]
        for partition in range(head.partitions, len(head.next))
        if at(head.earliest, partition) < head.next[partition]
    }


def partitions_for(head: Head, done: Positions) -> tuple[int, ...]:
    """The partitions that a group has to deliver: the present ones and the removed ones that it has not finished."""
    left = (partition for partition, end in sorted(leaving(head).items()) if done.get(partition, 0) < end)
    return (*range(head.partitions), *left)


def milestones(head: Head, partitions: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The offsets at which the earlier layouts end in each of these partitions: reaching one may be what others wait
    for, so it is worth being written down at once.
    """
    if len(head.layouts) == 1:
        return {}
    ends = {p: tuple(s.end for s in stretches_of(head, p) if s.end is not None) for p in partitions}
    return {p: mine for p, mine in ends.items() if mine}


def scale_status(head: Head, done: Positions) -> str:
    """`Ready`, or what the last change of the partition count was while something of an earlier one is left."""
    if unfinished(head, done):
        for earlier in reversed(head.layouts[:-1]):
            if earlier.partitions != head.partitions:
                return "ScalingUp" if earlier.partitions < head.partitions else "ScalingDown"
    return "Ready"


# --- changing ---------------------------------------------------------------------------------------------------------


def resized(head: Head, partitions: int) -> Head:
    """`head` with another partition count; itself if that is the present one. The caller counts its sequence number.

    Numbers that were used before go on where they were, new ones begin at 0 (RES-04). Raises `Invalid` if messages of
    too many earlier counts are still there.
    """
    if partitions == head.partitions:
        return head
    zeros = (0,) * (partitions - len(head.next))
    following = head.next + zeros
    layout = Layout(
        generation=head.layout.generation + 1,
        partitions=partitions,
        since_sequence=head.sequence + 1,
        begin=following[:partitions],
    )
    grown = without_trimmed(
        replace(head, layouts=(*head.layouts, layout), next=following, earliest=head.earliest + zeros)
    )
    if len(grown.layouts) > MOST_LAYOUTS:
        raise Invalid(_too_many(grown))
    return grown


def without_trimmed(head: Head) -> Head:
    """`head` without the earlier layouts of which no message can be read any more; itself if there is none.

    Of what is left nothing changes: a stretch that seems to grow by a neighbour's offsets grows by trimmed ones alone.
    """
    if len(head.layouts) == 1:
        return head
    left = unfinished(head, {})
    present = len(head.layouts) - 1
    kept = tuple(layout for index, layout in enumerate(head.layouts) if index == present or index in left)
    return head if len(kept) == len(head.layouts) else replace(head, layouts=kept)


def _too_many(head: Head) -> str:
    oldest = unfinished(head, {})[0]
    named = json.dumps({str(q): end for q, end in list(oldest.items())[:8]})
    more = f" and so on for all {len(oldest)} of its partitions" if len(oldest) > 8 else ""
    return (
        f"queue {head.queue!r} still has messages of {len(head.layouts) - 1} earlier partition counts, at most "
        f"{MOST_LAYOUTS - 1} are kept apart: when its groups have acknowledged what was published under the oldest "
        f"({head.layouts[0].partitions} partitions), trim that with `partq queue trim {head.queue} --before-offsets "
        f"'{named}'`{more}, then alter the queue"
    )
