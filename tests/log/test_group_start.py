"""Where a group begins in a partition: what coordinator, flows and command line agree upon."""

from __future__ import annotations

import pytest

from partq_spark.log.model import Group, group_start


@pytest.mark.conformance("RES-02")
def test_a_partition_that_came_after_the_group_begins_at_its_beginning() -> None:
    """Also one that was removed and is back before the group took it: all of its messages came after the group did."""
    group = Group(since_sequence=5, start=(3, 7))
    assert [group_start(group, partition) for partition in range(4)] == [3, 7, 0, 0]
    assert group_start(None, 2) == 0
