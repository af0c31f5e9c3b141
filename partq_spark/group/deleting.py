"""Deletes a queue with everything that is stored for it: the log's objects, then what its groups left.

The log does not know groups' checkpoints; here the two meet. The head goes first. After a crash the command is
repeated: it finds what belongs to a deleted queue by the id in each checkpoint. No words for people but errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.group.checkpoint import queue_id_of
from partq_spark.group.checkpoints import checkpoint_folder
from partq_spark.group.missed_partitions import missed_folder
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.log import admin, names
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import Document


def delete_queue(queue: QueueLog) -> int:
    """Delete the queue for good; returns the number of objects removed. Raises as `log.admin.delete_queue`."""
    removed = 0
    try:
        removed += admin.delete_queue(queue)
    finally:  # also where something of somebody else could not be deleted
        removed += _remove_groups(queue)
    return removed


def remove_remains(queue: QueueLog) -> int:
    """Delete what former queues by this name left; returns the number of objects removed. Nothing of the present one is
    touched. Raises as `log.admin.remove_remains`.
    """
    removed = 0
    try:
        removed += admin.remove_remains(queue)
    finally:
        removed += _remove_groups(queue)
    return removed


def _remove_groups(queue: QueueLog) -> int:
    """The checkpoints of groups of former queues and what they missed, and, where there is no queue now, their
    ownership beside it.
    """
    # Listed before the head is read: a queue created in between has an id that is not in the list.
    listed = [
        (key, [*queue.store.list(checkpoint_folder(key)), *queue.store.list(missed_folder(key))])
        for key in _groups(queue)
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
