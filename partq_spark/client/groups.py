"""The consumer groups of a queue: listing them, making one, changing how one is shared, removing one, how far one is by
its checkpoints, and taking it back to an earlier place.

Those methods of `Queue`. What a group is stands in `partq_spark.group`; here it is found out where its ownership is
kept. What a rewind would do is checked as a whole before anything is changed (`group.rewinding`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from partq_spark.base.errors import Invalid, Unavailable, WrongUse
from partq_spark.base.words import ranges
from partq_spark.client.arguments import (
    EARLIEST,
    checked,
    no_place,
    opened_ownership,
    ownership_for,
    ownership_url,
    place,
    time_us,
)
from partq_spark.client.handle import Handle
from partq_spark.group import lifecycle
from partq_spark.group.lifecycle import GroupSummary, Remains, announce, checkpoints_of, key_of, progress_of
from partq_spark.group.ownership import Ownership
from partq_spark.group.rewinding import Goal, RewindOutcome, RewindStep, carry_out, planned_rewind
from partq_spark.log import groups, tree
from partq_spark.log.groups import group_kind, group_of
from partq_spark.log.model import Group, Origin
from partq_spark.log.names import checked_name
from partq_spark.log.queue import QueueLog


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupAlteration:
    """How a group is shared from now on, and `was` before: `none`, `store` or `redis`; None: no flow had joined it."""

    queue: str
    group: str
    ownership: str
    was: str | None
    changed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRemoval:
    """What a removal did, or with `dry_run` would do: whether the group was there, how many checkpoints went."""

    queue: str
    group: str
    removed: bool
    checkpoints: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionCheckpoint:
    """One partition's checkpoint; `epoch` 0: there is none yet, and the group begins at `acknowledged`.

    `acknowledged` is the next message to deliver: everything before it is dealt with. Messages below
    `redelivered_below`, at most all that there are, may have been delivered before. `flow` has the partition, or had it
    last. `updated` is the writer's own clock (RFC 3339).
    """

    partition: int
    epoch: int
    flow: str | None
    instance: str | None
    acknowledged: int
    end: int
    redelivered_below: int
    updated: str | None

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged."""
        return max(self.end - self.acknowledged, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedCheckpoint:
    """A checkpoint that cannot be read: `error` says why, and what to do."""

    partition: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCheckpoints:
    """The checkpoints of a group: of the queue's partitions, and what is left of others."""

    namespace: str
    queue: str
    group: str
    partitions: tuple[PartitionCheckpoint | DamagedCheckpoint, ...]

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged, without those of partitions whose checkpoint cannot be read."""
        return sum(each.lag for each in self.partitions if isinstance(each, PartitionCheckpoint))


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionRewind:
    """One partition, `from_` where it was `to` where it goes back: so many `messages` come again. `flow` has it."""

    partition: int
    from_: int
    to: int
    messages: int
    flow: str | None
    rewound: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """What a rewind did, or with `dry_run` would do (`rewound` False). `notes` are for people."""

    namespace: str
    queue: str
    group: str
    partitions: tuple[PartitionRewind, ...]
    rewound: bool
    notes: tuple[str, ...]


class RewindUnfinished(Unavailable):
    """A rewind ended before its time: `rewind` says which partitions were taken back. The message says how to go on."""

    def __init__(self, message: str, rewind: Rewind) -> None:
        super().__init__(message)
        self.rewind = rewind


@checked
class Grouping(Handle):
    """The part of `Queue` that deals with its groups."""

    def groups(self, *, ownership: str | None = None) -> tuple[GroupSummary, ...]:
        """The consumer groups, by name; with an ownership also the flows that are bound."""
        queue = self._opened()
        with opened_ownership(ownership_url(ownership), queue.store) as kept:
            queue.refresh()
            return tuple(lifecycle.summaries(queue, kept))

    def create_group(
        self, group: str, *, starting: str | datetime | Mapping[int, int] = "latest", ownership: str | None = None
    ) -> None:
        """Make a group before its first flow comes, which makes it otherwise. `starting`: `latest`, `earliest`, a time
        (`datetime`, RFC 3339), or an offset for each partition. One that exists is left as it is.
        """
        from partq_spark.query import planning

        queue, group = self._opened(), checked_name("group", group)
        beginning = place(starting)
        start = planning.resolve(queue.refresh(), beginning, "starting", queue.offsets_at)
        shared = None if ownership is None else ownership_url(ownership)
        groups.create_group(queue, group, [*start.values()], exact=beginning.offsets is not None, ownership=shared)

    def alter_group(
        self, group: str, *, ownership: str, former: str | None = None, force: bool = False
    ) -> GroupAlteration:
        """Change how a group is shared; checkpoints stay. `former` is where it has been sharing so far, `force` does it
        also where nobody can know whether a flow lives. Raises `Invalid` while one lives.
        """
        queue, group = self._opened(), checked_name("group", group)
        wanted_url = ownership_url(ownership)
        found = group_of(queue, queue.refresh(), group)
        was, wanted = found.ownership, group_kind(wanted_url)
        if was != wanted:
            if former is not None:
                url = ownership_for(queue.head, group, former, queue.store.url)
            elif was == "redis" and not force:
                url = ownership_for(queue.head, group, None, queue.store.url)
            else:  # nobody knows a Redis, and what is kept beside the queue needs no address
                url = "store" if was == "store" else "none"
            with opened_ownership(url, queue.store) as kept:
                left = lifecycle.remains(queue, group, kept)
                _require_nobody(queue, left, left.group or found, kept, force=force, option="--from")
                lifecycle.share(queue, left, wanted_url, kept)
        return GroupAlteration(queue=queue.name, group=group, ownership=wanted, was=was, changed=was != wanted)

    def remove_group(
        self, group: str, *, ownership: str | None = None, force: bool = False, dry_run: bool = False
    ) -> GroupRemoval:
        """Remove a group for good: how far it was is forgotten, and nothing is held back for it any more. Raises
        `Invalid` while a flow lives, and `Conflict` if somebody has made it again meanwhile. A removal that was cut off
        is finished by the next.
        """
        queue, group = self._opened(), checked_name("group", group)
        url = ownership_for(queue.refresh(), group, ownership, queue.store.url)
        with opened_ownership(url, queue.store) as kept:
            left = lifecycle.remains(queue, group, kept)
            if left.group is not None:
                _require_nobody(queue, left, left.group, kept, force=force, option="--ownership")
            if not dry_run:
                lifecycle.remove(queue, left, kept)
        return GroupRemoval(
            queue=queue.name, group=group, removed=left.group is not None, checkpoints=len(left.checkpoints)
        )

    def checkpoints(self, group: str) -> GroupCheckpoints:
        """How far a group is: in every partition, and in each removed one that it has begun or has still to read."""
        queue, group = self._opened(), checked_name("group", group)
        head = queue.refresh()
        progress = progress_of(queue, group, head)
        found, damaged = progress.checkpoints, progress.damaged
        made: list[PartitionCheckpoint | DamagedCheckpoint] = []
        for number, end in enumerate(head.next):
            if number >= head.partitions and number not in {*found, *damaged} and progress.left(number)[0] == end:
                continue  # it is removed, and the group has nothing to do with it
            if number in damaged:
                made.append(DamagedCheckpoint(partition=number, error=str(damaged[number])))
                continue
            checkpoint = found.get(number)
            owner = checkpoint.owner if checkpoint is not None else None
            made.append(
                PartitionCheckpoint(
                    partition=number,
                    epoch=checkpoint.epoch if checkpoint is not None else 0,
                    flow=owner.flow if owner is not None else None,
                    instance=owner.instance if owner is not None else None,
                    acknowledged=progress.acknowledged(number),
                    end=end,
                    redelivered_below=min(checkpoint.redelivered_below, end) if checkpoint is not None else 0,
                    updated=checkpoint.updated if checkpoint is not None else None,
                )
            )
        return GroupCheckpoints(namespace=queue.namespace, queue=queue.name, group=group, partitions=tuple(made))

    def rewind(
        self,
        group: str,
        *,
        to: int | str | None = None,
        to_timestamp: datetime | str | None = None,
        by: int | None = None,
        partitions: Collection[int] = (),
        dry_run: bool = False,
        ownership: str | None = None,
    ) -> Rewind:
        """Take a group back, so that messages are delivered again, marked: `to` an offset or `earliest`, to the first
        message at or after a time, or `by` so many messages. All partitions that have a checkpoint, or these.

        All is checked before anything is changed. Raises `Invalid` for a place that a partition is not past or that is
        not kept, and `RewindUnfinished` (an `Unavailable`), which says how to go on.
        """
        goal = goal_of(to, to_timestamp, by)
        queue, group = self._opened(), checked_name("group", group)
        url = ownership_for(queue.refresh(), group, ownership, queue.store.url)
        with opened_ownership(url, queue.store) as kept:
            progress = progress_of(queue, group, queue.refresh())

            @cache
            def is_lost(origin: Origin) -> bool:
                return queue.settled(lambda now: tree.has_publish(now, origin, queue.load_chunk)) is False

            steps = planned_rewind(str(queue), progress, partitions, goal, queue.offsets_at, is_lost)
            notes = _notes(queue, group, steps, kept)
            if dry_run:
                return _rewind(queue, group, steps, None, notes)
            outcome = carry_out(queue, checkpoints_of(queue, group), group, steps)
            notes += [
                f"offsets {each.start} to {each.end} of partition {each.partition} were trimmed while this went on and "
                "do not come again: flows of the group go past them with failOnDataLoss=false"
                for each in outcome.gone
            ]
            if kept is not None:
                announce(queue, kept)
        made = _rewind(queue, group, steps, outcome, notes)
        if outcome.error is not None:
            raise RewindUnfinished(_unfinished(steps, outcome), made) from outcome.error
        return made


def _require_nobody(
    queue: QueueLog, left: Remains, found: Group, ownership: Ownership | None, *, force: bool, option: str
) -> None:
    """Raises `Invalid` if a flow of the group lives, or if that cannot be known (unless `force`). `option` names the
    ownership.
    """
    if ownership is not None and left.records is not None:
        lifecycle.require_no_flow(ownership, left)
    elif force:
        return
    elif ownership is None and found.ownership == "redis":
        raise Invalid(
            f"group {left.key.group!r} of {queue} is shared by a Redis (ownership=redis://…), which alone knows "
            f"whether one of its flows lives: name it ({option} redis://host:port/db), or add --force if you "
            "know that nobody is at work"
        )
    else:
        lifecycle.require_quiet(queue, left)


def goal_of(to: int | str | None, to_timestamp: datetime | str | None, by: int | None) -> Goal:
    """Where to go back to. Raises `Invalid` unless exactly one is given."""
    if sum(each is not None for each in (to, to_timestamp, by)) != 1:
        raise WrongUse(
            "say where to go back to: give exactly one of an offset or 'earliest' (--to), a time (--to-timestamp) and "
            "a number of messages (--by)"
        )
    if isinstance(to, str):
        if to != EARLIEST:
            raise no_place(to)
        return Goal(earliest=True)
    if (to is not None and to < 0) or (by is not None and by < 1):
        raise Invalid(f"to={to}, by={by} is not allowed: give an offset from 0, or a number of messages from 1")
    return Goal(offset=to, time_us=None if to_timestamp is None else time_us(to_timestamp), by=by)


def _rewind(
    queue: QueueLog, group: str, steps: Sequence[RewindStep], outcome: RewindOutcome | None, notes: Sequence[str]
) -> Rewind:
    done = {each.after.partition: each for each in outcome.done} if outcome is not None else {}
    partitions: list[PartitionRewind] = []
    for step in steps:
        change = done.get(step.partition)
        before = step.acknowledged if change is None or change.before.offset is None else change.before.offset
        partitions.append(
            PartitionRewind(
                partition=step.partition,
                from_=before,
                to=step.to,
                messages=step.messages_from(before),
                flow=step.owner.flow if step.owner is not None else None,
                rewound=change is not None,
            )
        )
    return Rewind(
        namespace=queue.namespace,
        queue=queue.name,
        group=group,
        partitions=tuple(partitions),
        rewound=outcome is not None and outcome.error is None,
        notes=tuple(notes),
    )


def _notes(queue: QueueLog, group: str, steps: Sequence[RewindStep], ownership: Ownership | None) -> list[str]:
    """What a person should know of those who have the partitions. Raises `Invalid` for an ownership that can never be
    used as it is given.
    """
    owners = sorted({step.owner.flow for step in steps if step.owner is not None and step.is_needed})
    others = len(owners) - 1
    more = [] if others < 1 else [f"{others} other flow{'s' if others > 1 else ''}"]
    flows = " and ".join([*owners[:1], *more])
    if ownership is None:
        note = (
            f"partitions belong to {flows}: without --ownership a coordinator notices when it looks at the queue the "
            "next time (looks.heads_s: 1 s on file:, 5 s elsewhere), a query with ownership=none within its "
            "checkpointInterval"
        )
        return [note] if owners else []
    try:
        lease = ownership.read_lease(key_of(queue, group))
    except Unavailable as error:
        return [f"coordinators cannot be told, they notice by themselves within seconds: {error}"]
    if owners and (lease is None or not lease.value.token):
        return [f"partitions belong to {flows}, no coordinator leads the group: start one with `partq coordinator run`"]
    return []


def _unfinished(steps: Sequence[RewindStep], outcome: RewindOutcome) -> str:
    done = [each.after for each in outcome.done]
    numbers = [each.partition for each in done]
    left = [step.partition for step in steps if step.is_needed and step.partition not in numbers]
    so_far = f"{ranges(numbers)} {'is' if len(done) == 1 else 'are'} rewound" if done else "nothing else was changed"
    if left:
        which = " ".join(f"--partition {number}" for number in left)
        is_known = not isinstance(outcome.error, Unavailable)
        how = "was not rewound" if is_known else "may not be rewound (`partq checkpoints` shows it)"
        return f"partition {left[0]} {how}, {so_far}: {outcome.error}; repeat the command with {which}"
    again = f"--partition {done[0].partition} --to {done[0].offset}" if done else "the same options"
    return (
        f"{so_far}, but the queue's head could not be told, so that flows may not notice: {outcome.error}; repeat "
        f"the command with {again}"
    )
