"""How a query is opened: the queue, the group in its head, the stores that its options name, the membership. No
pyspark.

The group is created before its first flow binds, with the starting offset of every partition, so that two flows never
resolve `latest` differently.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from partq_spark.base.effects import Effects, in_a_row, side_by_side
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.documents.urls import STORE
from partq_spark.group.membership import GroupInQueue, Membership
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.group.solo import SoloSession
from partq_spark.log import admin
from partq_spark.log.connect import shared_store
from partq_spark.log.groups import require_ownership
from partq_spark.log.model import at
from partq_spark.log.queue import QueueLog
from partq_spark.query import planning
from partq_spark.query.offsets import rewind_command
from partq_spark.query.settings import Boundary, GroupOptions, SourceOptions

BEAT_S = 1.0
STORE_RETRY_S = 2.0
"""How long the stores themselves try again: not for long, because their callers go on trying."""

CHECKPOINT_INTERVAL_S = 1.0
PAID_CHECKPOINT_INTERVAL_S = 10.0
"""The defaults: a write costs next to nothing on a disk, and a request elsewhere."""

VERIFY_S = 30.0
"""Where requests are paid for: a listing of checkpoints is priced like a write, and what they say is looked at before
each delivery anyway.
"""

MOST_AT_ONCE = 16
"""Checkpoints that are written side by side where each write takes a request."""

_log = logging.getLogger("partq.flow")


def starting_place(options: SourceOptions) -> Boundary:
    """Where a query begins that has read nothing yet."""
    return options.start or Boundary(edge="latest")


def create_group(queue: QueueLog, options: SourceOptions, group: GroupOptions) -> None:
    """Make the group where it is not there; warn if it is there and the options would have it begin elsewhere. Raises
    `Invalid` if it is shared in another way.
    """
    head = queue.refresh()
    place = starting_place(options)
    require_ownership(head, group.name, group.ownership, store=queue.store.url)
    found = head.groups.get(group.name)
    if found is None:
        start = planning.resolve(head, place, "startingOffsets", queue.offsets_at)
        offsets = [start[partition] for partition in sorted(start)]
        # An edge or a time means what can be read; offsets that were trimmed are an error that says so.
        found = admin.create_group(
            queue, group.name, offsets, exact=place.offsets is not None, ownership=group.ownership
        )
        head = queue.head  # messages may have gone meanwhile
    if options.start is None or place.edge == "latest":  # that is where the group began, at its time
        return
    wanted = planning.resolve(head, place, "startingOffsets", queue.offsets_at)
    if any(max(at(found.start, p), at(head.earliest, p)) != offset for p, offset in wanted.items()):
        _log.warning(
            "group %s of %s exists and begins elsewhere than startingOffsets or startingTimestamp say, which is of no "
            "effect: to go back in an existing group use `%s`",
            group.name,
            queue,
            rewind_command(options.target, group.name, place),
        )


def join_group(
    queue: QueueLog, options: SourceOptions, group: GroupOptions, flow: str, effects: Effects
) -> tuple[Membership, CheckpointStore]:
    """A membership of `flow` in the group as the queue's head shows it, not bound yet, and its checkpoints. Raises
    `Invalid`.
    """
    target, paid = options.target, is_paid(queue.store.url)
    found = GroupInQueue(queue, group.name)
    checkpoints = found.checkpoints(shared_store(target.store, min(STORE_RETRY_S, target.retry_timeout_s)), effects)
    interval_s = group.checkpoint_interval_s
    if interval_s is None:
        interval_s = PAID_CHECKPOINT_INTERVAL_S if paid else CHECKPOINT_INTERVAL_S
    settings = SessionSettings(
        session_timeout_s=group.session_timeout_s,
        beat_interval_s=beat_interval_s(group, queue.store.url),
        checkpoint_interval_s=interval_s,
        verify_interval_s=max(interval_s, VERIFY_S if paid else BEAT_S),
        keep_offsets=group.keep_offsets,
        max_unacknowledged=options.max_delivered_unacked,
    )
    run = side_by_side(ThreadPoolExecutor(MOST_AT_ONCE, "partq checkpoints")) if paid else in_a_row
    if group.ownership == "none":
        return SoloSession(found, checkpoints, flow, settings, effects, run), checkpoints
    ownership = open_ownership(group.ownership, store=shared_store(target.store, 0.0), group=found.key)
    return Session(ownership, found, checkpoints, flow, settings, effects, run), checkpoints


def beat_interval_s(group: GroupOptions | None, store_url: str) -> float:
    """Seconds between two heartbeats. With Redis and on a disk they cost next to nothing; as objects each is a write,
    and four in a session timeout are enough.
    """
    if group is None or group.ownership != STORE or not is_paid(store_url):
        return BEAT_S
    return max(BEAT_S, group.session_timeout_s / 4)


def is_paid(store_url: str) -> bool:
    """Whether each request to the store costs money."""
    return store_url.startswith("azure:")
