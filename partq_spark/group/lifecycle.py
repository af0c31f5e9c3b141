"""Consumer groups as a whole: how far one is, listing them, sharing one in another way, removing one.

A group is an entry in the queue's head, a checkpoint per partition beside it, and what the ownership store has of it.
To remove a group is to take it out of the head: from then on it holds no message back, and no flow binds. Its
checkpoints stay, because their epochs go on. They say since when their group is there. So what flows and coordinators
of the former group still remember, or write late, does not count for a group made again under its name.

No words for people but errors; no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from partq_spark.base.effects import Effects, as_datetime
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore, checkpoint_folder
from partq_spark.group.codec import queue_id_of
from partq_spark.group.left_out import missed_folder
from partq_spark.group.model import Checkpoint, FlowRecord, GroupKey, acknowledged_to, done_to, is_without_offset
from partq_spark.group.ownership import HEAD, Ownership, open_ownership
from partq_spark.log import admin, groups, names
from partq_spark.log.groups import change_ownership, group_kind, remove_group
from partq_spark.log.model import Group, Head, at, group_start
from partq_spark.log.queue import QueueLog, oldest_us
from partq_spark.objects.api import Document

QUIET_S: Final = 60.0
"""Without an ownership nobody knows who lives: checkpoints that did not change for so long count as unused."""

LONGEST_WATCH_S: Final = 60.0
"""For a heartbeat, whatever the session timeout is."""

_WATCH_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSummary:
    """One group of a list. `ownership`: its kind, as `Group` has it. `changed_s`: since the last change of a
    checkpoint, by the store's own clock; None: there is none. `oldest`: when the first message was published that is
    not acknowledged. `flows`: those that are bound, None where that is not known. `problems`: what cannot be read; of
    such a partition nothing counts as acknowledged.
    """

    group: str
    since_sequence: int
    ownership: str | None
    unacknowledged: int
    oldest: datetime | None
    changed_s: float | None
    flows: tuple[str, ...] | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Remains:
    """What there is of a group. `group` None: the head has it no more, only the ownership store does. `checkpoints`:
    those that count, `damaged` those that cannot be read. `records`: flows that the ownership store knows, bound or
    not; None: it was not asked, or has nothing of the group.
    """

    key: GroupKey
    group: Group | None
    checkpoints: Mapping[int, Checkpoint]
    damaged: Collection[int]
    records: Mapping[str, FlowRecord] | None


# --- how far one is ---------------------------------------------------------------------------------------------------


def key_of(queue: QueueLog, group: str) -> GroupKey:
    """The group of this name of a queue. Raises `Invalid` for a name that no group can have."""
    return GroupKey(queue.namespace, queue.name, names.checked_name("group", group))


def checkpoints_of(queue: QueueLog, group: str, head: Head | None = None) -> CheckpointStore:
    """The checkpoints of a group as `head` has it, or else as the queue's handle last saw it; of one that is not there
    none counts.
    """
    head = head if head is not None else queue.head
    found = head.groups.get(group)
    since = found.since_sequence if found is not None else head.sequence + 1
    return CheckpointStore(queue.store, key_of(queue, group), head.queue_id, since=since)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupProgress:
    """One look. The checkpoints were read after the head. Of a partition whose checkpoint is `damaged` nothing is known
    but where the group begins; what is void counts as absent.
    """

    head: Head
    group: Group
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)
    damaged: Mapping[int, Corrupt] = field(default_factory=dict)

    def start(self, partition: int) -> int:
        """Where the group begins; 0 if somebody may have gone back behind that, and nothing says how far."""
        is_known = partition not in self.damaged or self.group.rewinds == 0
        return group_start(self.group, partition) if is_known else 0

    def acknowledged(self, partition: int) -> int:
        """The offset before which everything is acknowledged for good."""
        return acknowledged_to(self.checkpoints.get(partition), self.start(partition))

    def done(self, partition: int) -> int:
        """The same for those who wait for the partition."""
        return done_to(self.checkpoints.get(partition), self.start(partition))

    def left(self, partition: int) -> tuple[int, int]:
        """What is not acknowledged and can still be read: offsets from, to."""
        end = at(self.head.next, partition)
        return min(max(self.acknowledged(partition), at(self.head.earliest, partition)), end), end

    @property
    def done_of_all(self) -> dict[int, int]:
        """By partition, present or removed."""
        return {partition: self.done(partition) for partition in range(len(self.head.next))}

    @property
    def without_offsets(self) -> frozenset[int]:
        """Partitions whose owners write no acknowledgement down (`checkpoints=none`)."""
        return frozenset(number for number, each in self.checkpoints.items() if is_without_offset(each))


def progress_of(queue: QueueLog, name: str, head: Head | None = None) -> GroupProgress:
    """How far a group is, by `head`, or else by the head that the queue's handle saw last. Raises `Invalid` for a group
    that there is not, `Unavailable`.
    """
    head = head if head is not None else queue.head
    group = groups.group_of(queue, head, name)
    found, damaged = checkpoints_of(queue, name, head).list_readable()
    return GroupProgress(head=head, group=group, checkpoints=found, damaged=damaged)


# --- removing one -----------------------------------------------------------------------------------------------------


def remains(queue: QueueLog, group: str, ownership: Ownership | None) -> Remains:
    """What there is of a group. Raises `Invalid` if that is nothing, `Corrupt` for what cannot be read."""
    key = key_of(queue, group)
    head = queue.refresh()
    found = head.groups.get(key.group)
    listed, damaged = checkpoints_of(queue, key.group).list_readable()
    checkpoints = {number: each for number, each in listed.items() if not each.is_void}
    records = None
    if ownership is not None:
        known = ownership.read_flows(key)
        kept = bool(known) or ownership.read_state(key) is not None
        records = {name: each for name, each in known.items() if each.queue_id == head.queue_id} if kept else None
    if found is None and records is None:
        groups.group_of(queue, head, key.group)
    return Remains(key=key, group=found, checkpoints=checkpoints, damaged=damaged, records=records)


def require_quiet(queue: QueueLog, left: Remains) -> None:
    """Raises `Invalid` if a checkpoint was changed within `QUIET_S`: a flow may be at work of which only the
    checkpoints know (`ownership=none`). Ages are the store's own.
    """
    ages = checkpoint_ages(queue, left.key.group, {*left.checkpoints, *left.damaged})
    if not ages or min(ages.values()) >= QUIET_S:
        return
    partition = min(ages, key=lambda number: ages[number])
    owner = left.checkpoints[partition].owner if partition in left.checkpoints else None
    whose = f" (flow {owner.flow!r})" if owner is not None else ""
    raise Invalid(
        f"group {left.key.group!r} of {queue} may be in use: checkpoint {partition}{whose} was changed "
        f"{ages[partition]:.0f} s ago, less than {QUIET_S:.0f} s: stop its queries and wait, name the ownership that "
        "they use (--ownership, when that is altered --from), or add --force if you know that nobody is at work"
    )


def require_no_flow(ownership: Ownership, left: Remains, effects: Effects | None = None) -> None:
    """Raises `Invalid` that names a bound flow whose heartbeat moves; one that unbinds moves it for the last time.

    A flow counts as gone when its heartbeat is older than its session timeout by the store's own clock, or stood still
    for the rest of it while it was watched: at most `LONGEST_WATCH_S`.
    """
    effects = effects if effects is not None else Effects()
    timeouts = {name: each.session_timeout_s for name, each in (left.records or {}).items() if each.bound}
    before = {name: beat for name, beat in ownership.look_at_flows(left.key).beats.items() if name in timeouts}
    begun_s = effects.now_s()
    waits = {name: min(timeouts[name], LONGEST_WATCH_S) - beat.age_s for name, beat in before.items()}
    interval_s = max(_WATCH_INTERVAL_S, ownership.documents.look_interval_s)
    while (left_s := max(waits.values(), default=0.0) - (effects.now_s() - begun_s)) > 0:
        effects.sleep(min(interval_s, left_s))
        seen = ownership.look_at_flows(left.key)
        for name, beat in seen.beats.items():
            # Also a flow that bound since: what is new lives.
            if name in before and before[name].token == beat.token:
                continue
            if beat.value.bound:
                raise Invalid(
                    f"group {left.key.group!r} of queue {left.key.queue!r} is in use by flow {name!r} (instance "
                    f"{beat.value.instance}), whose heartbeat moves: stop its query, then repeat the command"
                )
            waits.pop(name, None)


def remove(queue: QueueLog, left: Remains, ownership: Ownership | None) -> None:
    """Remove the group: from the head, then what the ownership store has. May be repeated after a crash at any point.

    Raises `Conflict` if the group was made again meanwhile, `Unavailable` if it has to be repeated.
    """
    if left.group is not None:
        remove_group(queue, left.key.group, left.group)
    elif left.key.group in queue.refresh().groups:
        raise Conflict(
            f"group {left.key.group!r} of {queue} was made again meanwhile: look at it, then remove it again"
        )
    _drop(queue, left, ownership)


def _drop(queue: QueueLog, left: Remains, ownership: Ownership | None) -> None:
    """What it has of the group goes, and the coordinators look."""
    if ownership is not None:
        ownership.drop_group(left.key)
        announce(queue, ownership)


def announce(queue: QueueLog, ownership: Ownership) -> None:
    """Tell coordinators to look at the queue's head."""
    with suppress(Unavailable):  # they look by themselves, too
        ownership.announce(GroupKey(queue.namespace, queue.name, HEAD))


# --- sharing one in another way ---------------------------------------------------------------------------------------


def share(queue: QueueLog, left: Remains, ownership: str, former: Ownership | None) -> None:
    """Have the group shared by `ownership` from now on; its checkpoints stay. What `former` has of it is dropped.

    No flow may live in the group (`require_no_flow`, `require_quiet`). One that does all the same ends when it looks at
    the head, before it delivers. Raises `Conflict` if the group is not as it was looked at, `Fenced` if somebody takes
    a partition meanwhile.
    """
    if left.group is None:
        raise Invalid(f"group {left.key.group!r} of {queue} was removed: it is shared as its next first flow has it")
    change_ownership(queue, left.key.group, left.group, ownership)
    _drop(queue, left, former)


# --- listing ----------------------------------------------------------------------------------------------------------


def summaries(queue: QueueLog, ownership: Ownership | None) -> list[GroupSummary]:
    """All groups of the head that the queue's handle saw last, by name: two listings for each, and what the ownership
    store says.
    """
    away: list[PartqError] = []  # asked once: of one that does not answer each question takes seconds
    return [_summary(queue, name, ownership, away) for name in sorted(queue.head.groups)]


def _summary(queue: QueueLog, name: str, ownership: Ownership | None, away: list[PartqError]) -> GroupSummary:
    head = queue.head
    group = head.groups[name]
    if ownership is not None and group.ownership not in (None, group_kind(ownership.documents.url)):
        ownership = None  # it knows nothing of this one
    progress = progress_of(queue, name, head)
    problems: list[PartqError] = list(progress.damaged.values())
    ages = checkpoint_ages(queue, name, [number for number, each in progress.checkpoints.items() if not each.is_void])
    flows = None
    if ownership is not None and not away:
        try:
            seen = ownership.look_at_flows(key_of(queue, name))
        except PartqError as problem:
            away.append(problem)
        else:
            problems += seen.damaged.values()
            records = (beat.value for beat in seen.beats.values())
            flows = tuple(sorted(each.flow for each in records if each.bound and each.queue_id == head.queue_id))
    found_us = None
    try:
        found_us = queue.settled(lambda now: oldest_us(queue, now, _left(replace(progress, head=now))))
    except Corrupt as problem:
        problems.append(problem)
    return GroupSummary(
        group=name,
        since_sequence=group.since_sequence,
        ownership=group.ownership,
        unacknowledged=sum(to - start for start, to in _left(progress).values()),
        oldest=None if found_us is None else as_datetime(found_us),
        changed_s=min(ages.values(), default=None),
        flows=flows,
        problems=tuple(map(str, [*problems, *(away if ownership is not None else ())])),
    )


def _left(progress: GroupProgress) -> dict[int, tuple[int, int]]:
    return {number: progress.left(number) for number in range(len(progress.head.next))}


def checkpoint_ages(queue: QueueLog, group: str, partitions: Collection[int]) -> dict[int, float]:
    """Seconds since the checkpoints of these partitions were written, by the store's own clock; one listing."""
    folder = checkpoint_folder(key_of(queue, group))
    wanted = {f"{folder}{partition}": partition for partition in partitions}
    return {wanted[info.name]: info.age_s for info in queue.store.list(folder) if info.name in wanted}


# --- deleting a queue, with its groups --------------------------------------------------------------------------------

# Deletes a queue with everything that is stored for it: the log's objects, then what its groups left.
#
# The log does not know groups' checkpoints; here the two meet. The head goes first. After a crash the command is
# repeated: it finds what belongs to a deleted queue by the id in each checkpoint. No words for people but errors.


def delete_queue(queue: QueueLog) -> int:
    """Delete the queue for good; returns the number of objects removed. Raises as `log.admin.delete_queue`."""
    return _deleted(queue, admin.delete_queue)


def remove_remains(queue: QueueLog) -> int:
    """Delete what former queues by this name left; returns the number of objects removed. Nothing of the present one is
    touched. Raises as `log.admin.remove_remains`.
    """
    return _deleted(queue, admin.remove_remains)


def _deleted(queue: QueueLog, of_log: Callable[[QueueLog], int]) -> int:
    try:
        removed = of_log(queue)
    finally:  # also where something of somebody else could not be deleted
        of_groups = _remove_groups(queue)
    return removed + of_groups


def _remove_groups(queue: QueueLog) -> int:
    """The checkpoints of groups of former queues and what they missed, and, where there is no queue now, their
    ownership beside it.
    """
    # Listed before the head is read: a queue created in between has an id that is not in the list.
    listed = [
        (key, [info for folder in folders for info in queue.store.list(folder, values=True)])
        for key in _groups(queue)
        for folders in [(checkpoint_folder(key), missed_folder(key))]
    ]
    head = queue.look()
    removed = 0
    for key, found in listed:
        for info in found:
            former = queue_id_of(info.metadata)
            # One that does not say whose it is may be the present queue's, damaged.
            if head is None or former not in (None, head.queue_id):
                removed += _remove(queue, info.name, former)
        if head is None:
            with suppress(Conflict):
                open_ownership("store", store=queue.store).drop_group(key)
    return removed


def _groups(queue: QueueLog) -> Iterator[GroupKey]:
    """By the folders beside the queue's own."""
    for folder in queue.store.list_folders(names.queue_folder(queue.namespace, queue.name)):
        with suppress(Invalid):  # somebody else's
            if not folder.startswith("_") and names.checked_name("group", folder) == folder:
                yield GroupKey(queue.namespace, queue.name, folder)


def _remove(queue: QueueLog, name: str, former: str | None) -> int:
    """Unless somebody has written it since it was listed: then it is the next queue's."""
    document = queue.store.load(name)
    if not isinstance(document, Document) or queue_id_of(document.metadata) != former:
        return 0
    try:
        queue.store.remove(name, expected=document.etag)
    except Conflict:
        return 0
    return 1
