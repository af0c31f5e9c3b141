"""Removes messages that are older than the queue's retention and that every group has acknowledged.

The log knows ages and where groups begin; how far they are stands in their checkpoints. Here the two meet. Checkpoints
are read after the head that they are judged by, and `log.housekeeping.trim` checks that they still count. Nothing runs
by itself here: the leading coordinator calls `retain`, or a person trims. No words for people but errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from partq_spark.group.lifecycle import GroupProgress, progress_of
from partq_spark.log import clocks, housekeeping, tree
from partq_spark.log.housekeeping import Acknowledged, GroupPositions, held_back_by
from partq_spark.log.model import Head, at
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


def _progresses(queue: QueueLog, head: Head) -> dict[str, GroupProgress]:
    """How far each group of `head` is; one listing for each (CHK-02). `head` must have been read before. Raises
    `Unavailable`.
    """
    return {name: progress_of(queue, name, head) for name in head.groups}


def acknowledged_by(groups: Mapping[str, GroupProgress]) -> Acknowledged:
    """How far each has acknowledged each partition. One without an offset of this very queue counts from the group's
    start; of one whose checkpoint cannot be read nothing is known.
    """
    return {
        name: GroupPositions(
            since_sequence=each.group.since_sequence,
            rewinds=each.group.rewinds,
            offsets={partition: each.acknowledged(partition) for partition in range(len(each.head.next))},
        )
        for name, each in groups.items()
    }


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
        groups = _progresses(queue, head)
        known = acknowledged_by(groups)
        head = housekeeping.trim(queue, before, known)
        held = _held_back(head, groups, before)
        # Else what was read counts no more, so that looking again would change something.
        if all(name in known and housekeeping.still_counts(group, known[name]) for name, group in head.groups.items()):
            break
    gone = sum(head.earliest) - sum(first.earliest)
    return Retained(trimmed=gone, earliest=head.earliest, held_back=held)


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
    return _held_back(head, _progresses(queue, head), head.next)


def _held_back(head: Head, groups: Mapping[str, GroupProgress], before: Sequence[int]) -> tuple[HeldBack, ...]:
    """What of the messages below `before` is held back, and by which groups, most messages first."""
    asked, known = tuple(before), acknowledged_by(groups)
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
                        for_ever=name in groups and partition in groups[name].without_offsets,
                    )
                )
    return tuple(sorted(result, key=lambda each: -each.messages))
