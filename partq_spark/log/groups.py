"""Removing a consumer group from a queue's head, by one swap. Its checkpoints are `operations.groups`' business."""

from __future__ import annotations

from dataclasses import replace

from partq_spark.errors import Conflict
from partq_spark.log.model import Group, Head
from partq_spark.log.queue import Queue


def remove_group(queue: Queue, name: str, group: Group) -> Head:
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
        left = {each: value for each, value in head.groups.items() if each != name}
        return replace(head, groups=left, sequence=head.sequence + 1)

    return queue.change(decide)
