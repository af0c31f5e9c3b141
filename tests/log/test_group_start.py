"""Where a group begins in a partition: what coordinator, flows and command line agree upon."""

from __future__ import annotations

from partq_spark.log.model import Group, Head, Layout, QueueConfig, group_start

HEAD = Head(
    namespace="default",
    queue="orders",
    queue_id="q",
    created_us=0,
    sequence=9,
    time_us=0,
    config=QueueConfig(),
    layouts=(Layout(generation=1, partitions=3, since_sequence=9, begin=(0, 0, 40)),),
    next=(10, 10, 45),
    earliest=(0, 0, 0),
)


def test_a_partition_that_came_after_the_group_begins_where_its_layout_does() -> None:
    """A number that was there before goes on where it was (RES-04): what lies below is none of this group's."""
    group = Group(since_sequence=5, start=(3, 7))
    assert [group_start(HEAD, group, partition) for partition in range(4)] == [3, 7, 40, 0]
    assert [group_start(HEAD, None, partition) for partition in range(3)] == [0, 0, 40]
