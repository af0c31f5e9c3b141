"""Takes a consumer group back: what a rewind would do is checked as a whole before anything is changed, then it is
done.

The checkpoints come first, each by compare-and-swap. The counter in the queue's head comes last; by it coordinators
learn of the rewind, even if the process that rewinds dies. A rewind that was killed in between is repeated. No words
for people but errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore, Rewound
from partq_spark.group.lifecycle import GroupProgress
from partq_spark.group.model import Checkpoint, Owner
from partq_spark.log import groups
from partq_spark.log.model import Head, Origin, at
from partq_spark.log.queue import QueueLog


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Where to go back to: exactly one of the fields is set."""

    earliest: bool = False
    offset: int | None = None
    time_us: int | None = None  # Unix: to the first message published at or after it
    by: int | None = None  # so many messages


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindStep:
    """One partition, from `acknowledged` back to `to`; nothing is done if the two are the same. `owner` has it now.

    `end` is the log's: a checkpoint beyond it (the store was restored from an older copy) counts what is gone.
    """

    partition: int
    acknowledged: int
    to: int
    end: int
    owner: Owner | None
    is_lost: bool = False  # the log does not have what the group has read: also a position that stays has to be said

    @property
    def is_needed(self) -> bool:
        """Whether the checkpoint changes."""
        return self.to != self.acknowledged or self.is_lost

    def messages_from(self, acknowledged: int) -> int:
        """How many come again, if the checkpoint has moved to `acknowledged` meanwhile."""
        return max(min(acknowledged, self.end) - self.to, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """Messages `[start, end)` of a partition were trimmed while the group was taken back to `start`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindOutcome:
    """What was done, in order; `error` is why it ended before its time; `gone` is what will not come again."""

    done: tuple[Rewound, ...]
    error: PartqError | None
    gone: tuple[Gone, ...] = ()


def planned_rewind(
    queue: str,
    found: GroupProgress,
    partitions: Collection[int],
    goal: Goal,
    offsets_at: Callable[[int], Sequence[int]],
    is_lost: Callable[[Origin], bool] = lambda _: False,
) -> tuple[RewindStep, ...]:
    """What is to be done. `found`: how far the group is; `partitions`: which to take back, none for all that have a
    checkpoint; `queue` names it in messages; `offsets_at` finds a time in the log, `is_lost` says whether a publish is
    not in it.

    Raises `Invalid` for a partition that is not there or has nothing to go back from, and for an offset that is not
    acknowledged yet or not kept any more; `Corrupt` for a checkpoint that cannot be read.
    """
    head, checkpoints, damaged = found.head, found.checkpoints, found.damaged
    unknown = [number for number in partitions if number >= len(head.next)]
    if unknown:
        raise Invalid(f"{queue} has partitions 0 to {len(head.next) - 1}, there is no {unknown[0]}: name one of them")
    known = (number for number in range(len(head.next)) if number in checkpoints or number in damaged)
    wanted = sorted(set(partitions) or known)
    times = offsets_at(goal.time_us) if goal.time_us is not None else ()
    steps: list[RewindStep] = []
    for number in wanted:
        if number in damaged:
            raise damaged[number]
        checkpoint = checkpoints.get(number)
        if checkpoint is None or checkpoint.offset is None:
            if partitions or (checkpoint is not None and not checkpoint.is_void):
                raise Invalid(_nothing(queue, number, checkpoint))
            continue
        to = _target(goal, number, checkpoint.offset, head, times)
        _check(queue, number, to, checkpoint.offset, at(head.earliest, number))
        steps.append(
            RewindStep(
                partition=number,
                acknowledged=checkpoint.offset,
                to=to,
                end=at(head.next, number),
                owner=checkpoint.owner,
                is_lost=checkpoint.origin is not None and is_lost(checkpoint.origin),
            )
        )
    if not steps:
        raise Invalid(f"no partition of {queue} has a checkpoint of this group yet: there is nothing to rewind")
    return tuple(steps)


def carry_out(queue: QueueLog, checkpoints: CheckpointStore, group: str, steps: Sequence[RewindStep]) -> RewindOutcome:
    """Rewind, partition by partition, and count it in the head. What fails, or Ctrl-C, ends it, and counts.

    It is counted also if nothing seems done: a swap's answer may have been lost, and who did all of it may have died
    before this. A trim that had read the checkpoints before may have landed until it was counted, and none does after:
    what that took is `gone`.
    """
    done: list[Rewound] = []
    failed: PartqError | KeyboardInterrupt | None = None
    try:
        # What came before an error stays in `done`.
        done.extend(checkpoints.rewind(step.partition, step.to) for step in steps if step.is_needed)
    except (PartqError, KeyboardInterrupt) as error:
        failed = error
    try:
        groups.count_rewind(queue, group)
    except (PartqError, KeyboardInterrupt) as error:
        failed = failed or error
    why = Unavailable("interrupted") if isinstance(failed, KeyboardInterrupt) else failed
    return RewindOutcome(done=tuple(done), error=why, gone=gone(queue.head, steps, done))


def gone(head: Head, steps: Sequence[RewindStep], done: Sequence[Rewound]) -> tuple[Gone, ...]:
    """Guard: what a trim took between the reading of the head that was planned by and the counting of the rewind."""
    ended = {step.partition for step in steps if not step.is_needed}  # by an earlier try
    ended |= {each.after.partition for each in done}
    return tuple(
        Gone(partition=step.partition, start=step.to, end=at(head.earliest, step.partition))
        for step in steps
        if step.partition in ended and step.to < at(head.earliest, step.partition)
    )


def _target(goal: Goal, partition: int, acknowledged: int, head: Head, times: Sequence[int]) -> int:
    if goal.offset is not None:
        return goal.offset
    if goal.by is not None:
        return acknowledged - goal.by
    # What is not acknowledged yet comes anyway.
    earliest = at(head.earliest, partition)
    return min(acknowledged, max(earliest, times[partition]) if goal.time_us is not None else earliest)


def _check(queue: str, partition: int, to: int, acknowledged: int, earliest: int) -> None:
    if to > acknowledged:
        raise Invalid(
            f"partition {partition} of {queue} is acknowledged up to {acknowledged} and cannot be rewound to {to}: "
            f"give an offset from {earliest} to {acknowledged}, or leave the partition out by naming the others with "
            "--partition"
        )
    if to < earliest and to != acknowledged:
        raise Invalid(
            f"partition {partition} of {queue} keeps messages from {earliest} on and cannot be rewound to {to}: give "
            f"an offset from {earliest} to {acknowledged}, or --to earliest"
        )


def _nothing(queue: str, partition: int, checkpoint: Checkpoint | None) -> str:
    why = (
        "no flow has taken it yet"
        if checkpoint is None or checkpoint.is_void
        else "its checkpoint has no offset, because the group's flows have checkpoints=none. To go back, start the "
        "query with a new Spark checkpoint: it begins at the startingOffsets with which the group began; for other "
        "startingOffsets give it another group"
    )
    return f"partition {partition} of {queue} cannot be rewound: {why}"
