"""The judge of partition counts: what was published after a change waits for what its key has from before."""

from __future__ import annotations

import math

import pytest

from tests.chaos.__main__ import resized
from tests.chaos.checker import judge
from tests.chaos.evidence import Planned, Row, Times
from tests.chaos.layouts import Change, Count, changes, generation_of, too_early

COUNTS = (
    Count(at_s=0.0, partitions=2, begin=(0, 0)),
    Count(at_s=100.0, partitions=4, begin=(2, 0, 0, 0)),
    Count(at_s=200.0, partitions=1, begin=(3,)),
)


def row(number: int, driver: str, batch: int, partition: int, offset: int, *, marked: bool = False) -> Row:
    return Row(driver, batch, 0, partition, offset, "a", number, marked)


# Key a: messages 0 and 1 in partition 0 of 2, message 2 in partition 2 of 4, message 3 in partition 0 of 1.
ROWS = [row(0, "one", 1, 0, 0), row(1, "one", 1, 0, 1), row(2, "two", 1, 2, 0), row(3, "one", 2, 0, 3)]
PLANNED = [
    Planned("one", 1, 0, 1, 0, 2, 0, "f1"),
    Planned("two", 1, 2, 1, 0, 1, 0, "f2"),
    Planned("one", 2, 0, 1, 2, 4, 0, "f1"),
]
TIMES = {("one", 1): Times(99.0, 101.0), ("two", 1): Times(101.5, 150.0), ("one", 2): Times(201.0, 202.0)}


def test_a_row_belongs_to_the_count_under_which_it_was_published() -> None:
    assert [generation_of(each, COUNTS) for each in ROWS] == [0, 0, 1, 2]
    assert generation_of(row(9, "one", 1, 0, 2), COUNTS) == 1


def test_nothing_is_early_when_all_before_it_is_complete() -> None:
    assert list(too_early(ROWS, TIMES)) == []


@pytest.mark.parametrize(
    "times",
    [
        {**TIMES, ("two", 1): Times(100.5, 150.0)},  # planned before the first batch was complete
        {**TIMES, ("one", 2): Times(140.0, 202.0)},
        {**TIMES, ("one", 1): Times(99.0, math.inf)},  # which never was
    ],
)
def test_what_is_planned_too_early_is_told(times: dict[tuple[str, int], Times]) -> None:
    assert list(too_early(ROWS, times))
    found = judge(ROWS, PLANNED, [], dict.fromkeys(range(4), "a"), COUNTS, times)
    assert {each.split(":")[0] for each in found.violations} >= {"before an earlier partition count was finished"}


def test_one_partition_needs_no_wait_for_itself() -> None:
    """Both of message 1 and 3 in one batch, if there were no message 2 in another partition."""
    times = {**TIMES, ("one", 2): Times(99.0, 202.0)}
    assert list(too_early([ROWS[0], ROWS[1], ROWS[3]], times)) == []
    assert list(too_early(ROWS, times))


def test_a_copy_that_is_complete_is_enough() -> None:
    """The first owner's batch never was complete; the partition's next owner delivered it again."""
    times = {**TIMES, ("one", 1): Times(99.0, math.inf), ("two", 0): Times(100.2, 101.0)}
    again = [row(0, "two", 0, 0, 0, marked=True), row(1, "two", 0, 0, 1, marked=True)]
    assert list(too_early([*ROWS, *again], times)) == []


def test_how_long_new_messages_waited() -> None:
    found = list(changes(PLANNED, COUNTS, TIMES))
    assert [(each.before, each.after) for each in found] == [(2, 4), (4, 1)]
    assert found[0].pauses_s == {0: 101.0, 2: 1.5}  # message 2 of partition 0 is of the second count
    assert found[1].pauses_s == {0: 1.0}
    assert "2 → 4 partitions" in resized(found[0])
    assert "none was seen" in resized(Change(before=1, after=2, pauses_s={}))
