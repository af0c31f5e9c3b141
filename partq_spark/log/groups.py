"""What a queue's head says of a consumer group: where it begins, that it is there, and how its flows share it.

Each change is one swap, also the one that makes or removes a group. Its checkpoints lie beside the queue
(`group.lifecycle`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.log import codec, names
from partq_spark.log.model import Group, Head
from partq_spark.log.queue import QueueLog

MOST_GROUP_BYTES = 256 * 1024
"""Of all groups in a head, which every publish writes anew: 10 ms of it on a local disk."""


def group_kind(ownership: str) -> str:
    """`none`, `store` or `redis`: what the head keeps of an ownership, which is one of the first two or a URL."""
    kind = ownership.partition(":")[0].lower()
    return "redis" if kind == "rediss" else kind


def require_ownership(head: Head, name: str, ownership: str, *, store: str | None = None) -> None:
    """A guard: nobody shares the group another way than by `ownership`. Raises `Invalid`. `store`: its URL, for the
    command that the error names.
    """
    found = head.groups.get(name)
    if found is None or found.ownership in (None, group_kind(ownership)):
        return
    words = ["partq", "group", "alter", head.queue, "--group", name, "--ownership", ownership]
    if head.namespace != "default":
        words += ["--namespace", head.namespace]
    if store is not None:
        words += ["--store", store]
    has, given = _in_words(found.ownership), _in_words(group_kind(ownership))
    raise Invalid(
        f"group {name!r} of queue {head.queue!r} has {has}, not {given}: "
        "give this flow or command the ownership that the group's flows have (PARTQ_OWNERSHIP counts for a query only "
        "if it was set before its Spark session began, and for no consumer in Python), or, when none of them lives, "
        "change the group: "
        f"`{shlex.join(words)}`"
    )


def require_group(head: Head, name: str, since_sequence: int, therefore: str) -> Group:
    """A guard: the group that was made with this sequence number is there. Raises `Invalid` if it was removed, `Fenced`
    if another one was made under its name since. `therefore`: what the caller does now, for the error.
    """
    found = head.groups.get(name)
    key = f"{head.namespace}/{head.queue}/{name}"
    if found is None:
        raise Invalid(removed(key, therefore))
    if found.since_sequence != since_sequence:
        raise Fenced(removed(key, f"was made again since, and {therefore}"))
    return found


def removed(key: object, therefore: str) -> str:
    """What a flow says whose group is gone, or is another one by now."""
    return (
        f"group {key} was removed (`partq group remove`), {therefore}: to begin anew, start again (a query: with "
        "a new checkpoint location), which makes the group again, or with another group"
    )


def _in_words(kind: str | None) -> str:
    return {"none": "ownership=none (one query has all of it)", "redis": "ownership=redis://…"}.get(
        kind or "", f"ownership={kind}"
    )


def joined(queue: QueueLog, head: Head, name: str, ownership: str) -> Head:
    """`head` with a flow in the group that shares it so. Raises `Invalid` as `require_ownership`."""
    require_ownership(head, name, ownership, store=queue.store.url)
    found = head.groups[name]
    if found.ownership is not None:
        return head
    return _with(head, name, structs.replace(found, ownership=group_kind(ownership)))


def change_ownership(queue: QueueLog, name: str, group: Group, ownership: str) -> Head:
    """Change how `group` is shared, as it was looked at before; a flow writes it down where nobody did. Repeating it is
    harmless. Flows that live in spite of that see it when they look at the head, before they deliver.

    Raises `Conflict` if the head has another group by this name by now, or one that was changed otherwise, `Invalid`
    as `require_ownership` if another flow was faster.
    """
    kind = group_kind(ownership)

    def decide(head: Head) -> Head:
        found = head.groups.get(name)
        if found is None or found.since_sequence != group.since_sequence:
            raise Conflict(f"group {name!r} of {queue} was removed meanwhile: look at it, then try again")
        if found.ownership == kind:
            return head  # by an earlier try whose answer was lost, or by somebody else
        if group.ownership is None:
            require_ownership(head, name, ownership, store=queue.store.url)
        elif found.ownership != group.ownership:
            raise Conflict(
                f"group {name!r} of {queue} got ownership={found.ownership} meanwhile: look at it, then alter it again"
            )
        return _with(head, name, structs.replace(found, ownership=kind))

    return queue.change(decide)


def remove_group(queue: QueueLog, name: str, group: Group) -> Head:
    """Take `group` out of the head: from then on it holds back no message. Repeating it is harmless.

    Raises `Conflict` if the head has another group by this name by now, `Invalid` if the queue is gone.
    """

    def decide(head: Head) -> Head:
        found = head.groups.get(name)
        if found is None:
            return head  # by an earlier try whose answer was lost, or by somebody else
        if found.since_sequence != group.since_sequence:
            raise Conflict(
                f"group {name!r} of {queue} was removed and made again meanwhile: look at it, then remove it again"
            )
        return replace(head, groups={each: value for each, value in head.groups.items() if each != name})

    return queue.change(decide)


def _with(head: Head, name: str, group: Group) -> Head:
    return replace(head, groups={**head.groups, name: group})


def create_group(
    queue: QueueLog, group: str, start: Sequence[int], *, exact: bool = False, ownership: str | None = None
) -> Group:
    """Create a consumer group that begins at `start`, one offset per partition; an existing group is returned as it is.

    The starting offsets are resolved here once, so that two flows can never resolve `latest` differently. `start` is
    for the partitions that this handle knows; those that come meanwhile begin at their beginning. What was trimmed
    cannot be read: there the group begins at the earliest message that can, unless `exact`.

    `ownership`: how the caller's flows share it, `none`, `store` or a Redis URL, of which only the kind is kept. Raises
    `Invalid` if the group is shared another way, with `exact` for an offset that was trimmed, and where all groups
    would take more than `MOST_GROUP_BYTES` of the head. None: the first flow that joins says it.
    """
    known = len(queue.head.next)
    name = names.checked_name("group", group)

    def decide(head: Head) -> Head:
        if name in head.groups:
            return head if ownership is None else joined(queue, head, name, ownership)
        if len(start) not in (known, len(head.next)):
            raise Invalid(
                f"group {name!r} was given {len(start)} starting offsets, {queue} has {len(head.next)} partitions"
            )
        begin = (*start, *(0,) * (len(head.next) - len(start)))
        kept = tuple(map(max, begin, head.earliest))
        if exact and kept != begin:
            raise Invalid(
                f"group {name!r} cannot begin at {[*begin]}: give offsets from {[*head.earliest]} on, or `earliest`"
            )
        kind = None if ownership is None else group_kind(ownership)
        made = Group(since_sequence=head.sequence + 1, start=kept, ownership=kind)
        grown = _with(head, name, made)
        _check_size(queue, name, grown.groups)
        return grown

    return queue.change(decide).groups[name]


def _check_size(queue: QueueLog, name: str, every: Mapping[str, Group]) -> None:
    size = codec.groups_bytes(every)
    if size > MOST_GROUP_BYTES:
        raise Invalid(
            f"group {name!r} would be number {len(every)} of {queue}: its groups' starting offsets would take {size} "
            f"bytes of its head, which every publish writes, at most {MOST_GROUP_BYTES} are allowed: remove some "
            f"with `partq group remove {queue.name} --group G --yes` (`partq group list {queue.name}` shows "
            "all), or publish to several queues by a topic and give each some of the groups"
        )


def count_rewind(queue: QueueLog, group: str) -> Group:
    """Say in the head that checkpoints of the group were rewound, after they were: coordinators look at them again.

    Counting once too often is harmless, so an outcome that is unknown is simply tried again. Raises `Invalid` if the
    queue has no such group.
    """

    def decide(head: Head) -> Head:
        found = group_of(queue, head, group)
        return _with(head, group, structs.replace(found, rewinds=found.rewinds + 1))

    return queue.change(decide).groups[group]


def group_of(queue: QueueLog, head: Head, group: str) -> Group:
    """A group of the head. Raises `Invalid`, which says which groups there are."""
    found = head.groups.get(group)
    if found is None:
        known = ", ".join(sorted(head.groups)) or "none yet"
        raise Invalid(
            f"{queue} has no group {group!r} (its groups: {known}): correct the name, or make the group before its "
            "first flow binds (docs/groups.md)"
        )
    return found
