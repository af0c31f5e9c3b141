"""What a group's coordinator needs of the queue's head, taken out of it: values only, made by the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partq_spark.group.model import AccessType, GroupSettings
from partq_spark.log import layouts
from partq_spark.log.model import Group, Head, group_start


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """A group as the head of its queue has it. `starts`: where each partition begins for it, where nothing is
    acknowledged yet. `leaving`: partitions that the queue does not have any more, and where they end, if the group has
    something to deliver of them; the runtime adds those that are not finished to `partitions`.

    `rewinds` grows whenever checkpoints of it were rewound, or the group was removed and made again: each of that takes
    a sequence number of the head, so that the sum of both numbers never comes again.
    """

    queue_id: str
    settings: GroupSettings
    partitions: tuple[int, ...]
    starts: Mapping[int, int]
    since: int = 0  # the sequence number of the head that the group was made with
    rewinds: int = 0
    leaving: Mapping[int, int] = field(default_factory=dict)


def facts_of(head: Head, group: Group) -> GroupFacts:
    """The facts of one of the head's groups."""
    starts = {partition: group_start(group, partition) for partition in range(len(head.next))}
    leaving = layouts.leaving(head)
    if group.rewinds == 0:  # else somebody may have gone back behind the group's start
        leaving = {number: end for number, end in leaving.items() if starts[number] < end}
    return GroupFacts(
        queue_id=head.queue_id,
        settings=GroupSettings(
            rebalance_delay_s=head.config.rebalance_delay_s,
            max_handoff_time_s=head.config.max_handoff_time_s,
            access_type=AccessType(head.config.access_type),
        ),
        partitions=tuple(range(head.partitions)),
        starts=starts,
        leaving=leaving,
        since=group.since_sequence,
        rewinds=group.since_sequence + group.rewinds,
    )
