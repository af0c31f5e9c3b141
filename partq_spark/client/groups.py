"""The consumer groups of a queue: listing them, making one, changing how one is shared, removing one, and who has what.

What a group is stands in `partq_spark.group`; here it is found out where its ownership is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.client.addresses import opened_ownership, ownership_for, ownership_url
from partq_spark.group import codec, lifecycle
from partq_spark.group.lifecycle import GroupSummary, Remains, key_of, progress_of
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.group.status import GroupReading, GroupView, PartitionView, view
from partq_spark.log import admin
from partq_spark.log.admin import group_of
from partq_spark.log.groups import group_kind
from partq_spark.log.model import Group, Head, at
from partq_spark.log.publish_times import published_us

if TYPE_CHECKING:
    from partq_spark.log.queue import QueueLog
    from partq_spark.query.settings import Boundary


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


def create(queue: QueueLog, group: str, place: Boundary, ownership: str | None) -> None:
    """Make the group, to begin at `place`; one that exists is left as it is. Raises `Invalid` if that is shared in
    another way.
    """
    from partq_spark.query import planning

    start = planning.resolve(queue.refresh(), place, "starting", queue.offsets_at)
    offsets = [start[partition] for partition in sorted(start)]
    shared = None if ownership is None else ownership_url(ownership)
    admin.create_group(queue, group, offsets, exact=place.offsets is not None, ownership=shared)


def summaries(queue: QueueLog, ownership: str | None) -> tuple[GroupSummary, ...]:
    """All groups, by name."""
    with opened_ownership(ownership_url(ownership), queue.store) as place:
        queue.refresh()
        return tuple(lifecycle.summaries(queue, place))


def alter(queue: QueueLog, group: str, ownership: str, *, former: str | None, force: bool) -> GroupAlteration:
    """Raises `Invalid` while a flow lives, or where nobody can know (unless `force`)."""
    wanted_url = ownership_url(ownership)
    found = group_of(queue, queue.refresh(), group)
    was, wanted = found.ownership, group_kind(wanted_url)
    if was != wanted:
        if former is not None:
            place = ownership_for(queue.head, group, former, queue.store.url)
        elif was == "redis" and not force:
            place = ownership_for(queue.head, group, None, queue.store.url)
        else:  # nobody knows a Redis, and what is kept beside the queue needs no address
            place = "store" if was == "store" else "none"
        with opened_ownership(place, queue.store) as kept:
            left = lifecycle.remains(queue, group, kept)
            _require_nobody(queue, left, left.group or found, kept, force=force, option="--from")
            lifecycle.share(queue, left, wanted_url, kept)
    return GroupAlteration(queue=queue.name, group=group, ownership=wanted, was=was, changed=was != wanted)


def remove(queue: QueueLog, group: str, *, ownership: str | None, force: bool, dry_run: bool) -> GroupRemoval:
    """Raises `Invalid` while a flow lives, or where nobody can know (unless `force`), and where there is nothing."""
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


# --- who has what -----------------------------------------------------------------------------------------------------


def status(queue: QueueLog, ownership: Ownership | None, group: str) -> GroupView:
    """One look at everything: the lease first, so that its timers are never older than what they belong to."""
    progress = progress_of(queue, group, queue.refresh())
    nothing = GroupReading(key=key_of(queue, group), progress=progress, kept=False)
    try:
        seen = nothing if ownership is None else _seen(nothing, ownership)
    except (Unavailable, Invalid) as problem:
        seen = replace(nothing, away=str(problem))
    return _with_lag_s(queue, view(seen))


def _with_lag_s(queue: QueueLog, made: GroupView) -> GroupView:
    """A look into the log for those partitions alone that have a lag; one that cannot be read hides nothing else."""
    behind = {each.partition: each.acknowledged for each in made.partitions if each.lag}
    published: dict[int, int] = {}
    if behind:

        def look(head: Head) -> dict[int, int]:
            return published_us(queue, head, {p: max(offset, at(head.earliest, p)) for p, offset in behind.items()})

        try:
            published = queue.settled(look)
        except Corrupt as error:
            made = replace(made, notes=(*made.notes, f"how old the unacknowledged messages are is not known: {error}"))
    now_us = queue.now_us()

    def lag_s(each: PartitionView) -> float | None:
        if not each.lag:
            return 0.0
        at_us = published.get(each.partition)
        return None if at_us is None else max(now_us - at_us, 0) / 1e6  # clocks differ

    return replace(made, partitions=tuple(replace(each, lag_s=lag_s(each)) for each in made.partitions))


def _seen(nothing: GroupReading, ownership: Ownership) -> GroupReading:
    """With what the ownership says. Raises `Unavailable`, and `Invalid` if it cannot be used as it was given."""
    key, queue_id = nothing.key, nothing.progress.head.queue_id
    lease = state = found = None
    lease_damage = state_damage = ""
    try:
        lease = ownership.read_lease(key, aged=True)
    except Corrupt as problem:
        lease_damage = str(problem)
    try:
        found = ownership.read_state(key, aged=True)
        if isinstance(found, StateDocument):
            state = codec.decode_state(found.body, 0.0, f"state of group {key}")
    except Corrupt as problem:
        state_damage = str(problem)
    if state is not None and state.queue_id != queue_id:
        state = None  # of a queue that was deleted: no coordinator has come by since
    flows = ownership.look_at_flows(key)
    return replace(
        nothing,
        kept=True,
        state=state,
        state_token=found.token if isinstance(found, StateDocument) else None,
        state_age_s=found.age_s if isinstance(found, StateDocument) else 0.0,
        records={flow: beat.value for flow, beat in flows.beats.items() if beat.value.queue_id == queue_id},
        beats_age_s={flow: beat.age_s for flow, beat in flows.beats.items()},
        damaged_flows={flow: str(problem) for flow, problem in flows.damaged.items()},
        state_damage=state_damage,
        lease_damage=lease_damage,
        lease=lease.value if lease else None,
        lease_age_s=lease.age_s if lease else None,
    )
