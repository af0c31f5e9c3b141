"""Removes messages that are older than the queue's retention and that every group has acknowledged.

The log knows ages and where groups begin; how far they are stands in their checkpoints. Here the two meet. Checkpoints
are read after the head that they are judged by, and `log.housekeeping.trim` checks that they still count. Nothing runs
by itself here: the leading coordinator calls `retain`, or a person trims. No words for people but errors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from partq_spark.group.in_queue import progress_of
from partq_spark.log import clocks, housekeeping, tree
from partq_spark.log.housekeeping import Acknowledged, GroupPositions, held_back_by
from partq_spark.log.model import Group, Head, at
from partq_spark.log.queue import QueueLog

MAX_LOOKS: Final = 3
"""How often one call looks again because a group was rewound or made again meanwhile; the next call looks anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBack:
    """What a group keeps of one partition: it has acknowledged everything before `offset`, and `messages` behind that
    would go without it. `for_ever`: its flows write no acknowledgement down (`checkpoints=none`).
    """

    group: str
    partition: int
    offset: int
    messages: int
    for_ever: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Retained:
    """What one look at the retention did: how many messages went, the earliest offset of each partition since then,
    and what is old enough to go and is held back, most messages first.
    """

    trimmed: int
    earliest: tuple[int, ...]
    held_back: tuple[HeldBack, ...]


def acknowledged_by(queue: QueueLog, head: Head) -> tuple[Acknowledged, frozenset[tuple[str, int]]]:
    """How far each group of `head` has acknowledged each partition; one listing for each group (CHK-02). And by group
    and partition, where no acknowledgement is written down (`checkpoints=none`).

    A partition without an offset of this very queue counts from the group's start; of one whose checkpoint cannot be
    read nothing is known. `head` must have been read before. Raises `Unavailable`.
    """
    known: dict[str, GroupPositions] = {}
    silent: set[tuple[str, int]] = set()
    for name, group in head.groups.items():
        progress = progress_of(queue, name, head)
        offsets = {partition: progress.acknowledged(partition) for partition in range(len(head.next))}
        known[name] = GroupPositions(since_sequence=group.since_sequence, rewinds=group.rewinds, offsets=offsets)
        silent |= {(name, partition) for partition in progress.without_offsets}
    return known, frozenset(silent)


def retain(queue: QueueLog) -> Retained:
    """Trim what is older than the queue's retention and acknowledged by every group; without groups by age alone.

    Ages are counted by this handle's clock from the time of publishing. What was compacted goes as a whole, when its
    last message is old enough. A queue without a retention keeps everything. May be repeated by anybody at any time;
    raises as `log.housekeeping.trim`, and `Unavailable`.
    """
    queue.refresh()
    return trim(queue, _older_than_retention(queue))


def trim(queue: QueueLog, before: Sequence[int]) -> Retained:
    """Trim what lies below `before`, one offset per partition of the head this handle knows, and is acknowledged by
    every group. Raises as `log.housekeeping.trim`, and `Unavailable`.
    """
    first = head = queue.head
    held: tuple[HeldBack, ...] = ()
    for _ in range(MAX_LOOKS):
        before = tuple(at(tuple(before), p) for p in range(len(head.next)))  # a number may have come meanwhile
        if all(offset <= earliest for offset, earliest in zip(before, head.earliest, strict=True)):
            break  # nothing to ask checkpoints for
        known, silent = acknowledged_by(queue, head)
        head = housekeeping.trim(queue, before, known)
        held = held_back(head, known, before, silent)
        if all(is_known(name, group, known) for name, group in head.groups.items()):
            break
    gone = sum(head.earliest) - sum(first.earliest)
    return Retained(trimmed=gone, earliest=head.earliest, held_back=held)


def is_known(name: str, group: Group, known: Acknowledged) -> bool:
    """Whether what was read of the group's checkpoints still counts, so that looking again would change nothing."""
    return name in known and housekeeping.still_counts(group, known[name])


def _older_than_retention(queue: QueueLog) -> tuple[int, ...]:
    """Per partition, the offset before which everything is older than the retention; the earliest if there is none."""
    retention_s = queue.head.config.retention_s
    if retention_s is None:
        return queue.head.earliest
    now_us = queue.now_us()
    time_us, latest_us = now_us - int(retention_s * 1_000_000), clocks.latest_us(now_us)
    # Without looking into compacted slices: that would read them on every look, and free nothing.
    return queue.settled(lambda head: tree.offsets_at_time(head, time_us, queue.load_chunk, latest_us=latest_us))


def holding_back(queue: QueueLog, head: Head) -> tuple[HeldBack, ...]:
    """What groups have not acknowledged of all that can be read, most messages first. Raises `Unavailable`."""
    known, silent = acknowledged_by(queue, head)
    return held_back(head, known, head.next, silent)


def held_back(
    head: Head, known: Acknowledged, before: Sequence[int], silent: Collection[tuple[str, int]] = ()
) -> tuple[HeldBack, ...]:
    """What of the messages below `before` is held back, and by which groups, most messages first; `silent`: by group
    and partition where no acknowledgement is written down.
    """
    asked = tuple(before)
    result: list[HeldBack] = []
    for name, group in sorted(head.groups.items()):
        for partition, earliest in enumerate(head.earliest):
            offset = held_back_by(group, known.get(name), partition)
            messages = min(at(asked, partition), head.next[partition]) - max(offset, earliest)
            if messages > 0:
                result.append(
                    HeldBack(
                        group=name,
                        partition=partition,
                        offset=offset,
                        messages=messages,
                        for_ever=(name, partition) in silent,
                    )
                )
    return tuple(sorted(result, key=lambda each: -each.messages))
