"""What several partition counts in a queue's life mean for the order of keys: pure arithmetic over a head.

Under another count a key lies in another partition, so what was published after the change waits until everything of
its key that was published before is dealt with (conformance RES-03). Partition q of an earlier layout and p of a later
one share keys only if q ≡ p modulo the greatest common divisor of the two counts. A partition never waits for itself,
because it is delivered in order. Nothing here knows flows: the caller says how far each partition is acknowledged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from partq_spark.base.errors import Invalid
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
class LayoutWait:
    """A partition may be delivered up to offset `until` and no further, because of what is left of others. Of what,
    `classes` say when they are asked: mostly nobody does.
    """

    until: int
    stretch: Stretch
    classes: _Classes

    @property
    def together(self) -> Positions:
        """What it and its like wait for, and perhaps its own partition; one object for all of them."""
        return self.classes.before(self.stretch)

    @property
    def waits_for(self) -> Positions:
        """Partition number to the offset up to which it has to be dealt with first."""
        return {q: end for q, end in self.together.items() if q != self.stretch.partition}


def stretches_of(head: Head, partition: int, reached: int = -1) -> tuple[Stretch, ...]:
    """The stretches of a partition number in the order of their offsets; empty ones are left out, except under the
    present layout, and those that end at or below `reached`.
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
        elif max(start, reached) < end:
            found.append(Stretch(index, partition, start, end))
        if start <= reached:
            break
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
    earlier = list(reversed(list(enumerate(head.layouts[:-1]))))
    for partition, following in enumerate(head.next):
        reached = max(done.get(partition, 0), at(head.earliest, partition))
        end = present[partition] if partition < len(present) else following
        if reached >= end:
            continue  # most of the time: then this costs as much as one layout does
        for index, layout in earlier:  # as `stretches_of`, but making no stretches: all plans and looks come by here
            if partition >= layout.partitions:
                continue
            start = layout.begin[partition]
            if start < end:
                result.setdefault(index, {})[partition] = end
            if start <= reached:
                break
            end = start
    return dict(sorted(result.items()))


def waits(head: Head, done: Positions, reached: Positions) -> dict[int, LayoutWait]:
    """The partitions of `reached` that may not be delivered to their end now. `reached`: the next offset to deliver of
    each; `done`: what is dealt with, of all partitions that `concerned` names. A wait never lies below `reached`.
    """
    left = unfinished(head, done)
    if not left:
        return {}
    result: dict[int, LayoutWait] = {}
    classes = _Classes(head, left)
    for partition in sorted(reached):
        # What is delivered and not acknowledged holds back others, not itself.
        for stretch in stretches_of(head, partition, reached[partition]):
            if classes.bar(stretch):
                until = max(stretch.start, reached[partition])
                result[partition] = LayoutWait(until=until, stretch=stretch, classes=classes)
                break
    return result


def grouped_waits(waiting: Mapping[int, LayoutWait]) -> list[tuple[list[int], Positions]]:
    """The partitions of `waiting`, those together that wait for the same, and what that is. Each waits for all of it
    but itself. A thousand that wait for a thousand others each are mostly one item here, or a few.
    """
    found: dict[int, tuple[list[int], Positions]] = {}
    for partition, wait in waiting.items():
        ends = wait.together
        found.setdefault(id(ends), ([], ends))[0].append(partition)
    return list(found.values())


def blocking(waiting: Mapping[int, LayoutWait]) -> set[int]:
    """The partitions that any of `waiting` waits for."""
    found: set[int] = set()
    for partitions, ends in grouped_waits(waiting):
        found.update(ends.keys() if len(partitions) > 1 else ends.keys() - partitions)
    return found


class _Classes:
    """The unfinished partitions of earlier layouts by their residue, for each layout that may wait for them.

    Partition q of one layout and p of another can have messages of one key if, and only if, q - p is a multiple of the
    greatest common divisor of the two partition counts (RES-03): so residues are compared, and not each pair. What is
    the same for many partitions is put together once; `LayoutWait.waits_for` leaves a partition itself out.
    """

    def __init__(self, head: Head, left: Mapping[int, Mapping[int, int]]) -> None:
        self._layouts = head.layouts
        self._left = left
        self._made: dict[int, list[tuple[int, dict[int, dict[int, int]]]]] = {}
        self._together: dict[tuple[int, tuple[int, ...]], Positions] = {}

    def bar(self, stretch: Stretch) -> bool:
        """Whether the messages of `stretch` wait for any other partition."""
        p = stretch.partition
        for modulus, by_residue in self._of(stretch.layout):
            ends = by_residue.get(p % modulus)
            if ends is not None and (len(ends) > 1 or p not in ends):
                return True
        return False

    def before(self, stretch: Stretch) -> Positions:
        """What the messages of `stretch` wait for, and perhaps their own partition; one object for all that share
        it.
        """
        made = self._of(stretch.layout)
        residues = [(modulus, stretch.partition % modulus) for modulus, _ in made]
        # -1: nothing is left there, so those that differ in nothing else wait for the same.
        case = tuple([r if r in each else -1 for (_, r), (_, each) in zip(residues, made, strict=True)])
        together = self._together.get((stretch.layout, case))
        if together is None:
            together = _newest([each[r] for r, (_, each) in zip(case, made, strict=True) if r >= 0])
            self._together[stretch.layout, case] = together
        return together

    def _of(self, layout: int) -> list[tuple[int, dict[int, dict[int, int]]]]:
        """What is left before this layout: by modulus, by residue, each partition with the offset at which that ends.

        Under the same count only equal numbers share keys, so those never count. And what an older layout has of a
        partition does not if a newer one makes all the same partitions wait for it, and longer. So a thousand
        partitions fall into few classes.
        """
        made = self._made.get(layout)
        if made is not None:
            return made
        count = self._layouts[layout].partitions
        found: dict[int, dict[int, dict[int, int]]] = {}
        named: dict[int, set[int]] = {}  # by modulus, the partitions that newer layouts have
        for earlier in reversed([each for each in self._left if each < layout]):
            if self._layouts[earlier].partitions == count:
                continue
            modulus = math.gcd(self._layouts[earlier].partitions, count)
            ends = self._left[earlier]
            more = set(ends)
            for each, known in named.items():
                if modulus % each == 0:
                    more -= known
            by_residue = found.setdefault(modulus, {})
            for q in more:
                by_residue.setdefault(q % modulus, {})[q] = ends[q]
            named.setdefault(modulus, set()).update(more)
        made = self._made[layout] = [(modulus, by_residue) for modulus, by_residue in found.items() if by_residue]
        return made


def _newest(parts: list[dict[int, int]]) -> Positions:
    """All of `parts` together, each partition with its greatest end."""
    largest, *others = sorted(parts, key=len, reverse=True)
    if not others:
        return largest
    together = dict(largest)
    for ends in others:
        for q, end in ends.items():
            if end > together.get(q, 0):
                together[q] = end
    return together


def concerned(head: Head) -> frozenset[int]:
    """The partitions whose state of delivery others may have to wait for: those with messages of an earlier layout that
    can still be read. Empty where the queue never changed its count, or all of that has been trimmed.
    """
    return frozenset(q for ends in unfinished(head, {}).values() for q in ends)


def leaving(head: Head) -> dict[int, int]:
    """Partitions that the queue does not have any more but that can still be read, and where they end: a flow that has
    not read them to that end is not done with them (RES-02).
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


def passes_milestone(head: Head, partition: int, written: int, done: int) -> bool:
    """Whether `done` has reached an offset at which an earlier layout ends in this partition, and `written` has not:
    others may wait for it, so it is worth being written down at once.
    """
    if len(head.layouts) == 1:
        return False
    return any(each.end is not None and each.end <= done for each in stretches_of(head, partition, written))


def head_scale_status(head: Head, done: Positions) -> str:
    """`Ready`, or what the last change of the partition count was while something of an earlier one is left."""
    if unfinished(head, done):
        for earlier in reversed(head.layouts[:-1]):
            if earlier.partitions != head.partitions:
                return "ScalingUp" if earlier.partitions < head.partitions else "ScalingDown"
    return "Ready"


# --- changing ---------------------------------------------------------------------------------------------------------


def resized(head: Head, partitions: int) -> Head:
    """`head` with another partition count; itself if that is the present one.

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
    grown = without_trimmed_layouts(
        replace(head, layouts=(*head.layouts, layout), next=following, earliest=head.earliest + zeros)
    )
    if len(grown.layouts) > MOST_LAYOUTS:
        raise Invalid(_too_many(grown))
    return grown


def without_trimmed_layouts(head: Head) -> Head:
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
