"""The judge of queries without a group finds what it is there to find: bad histories, each with its word."""

from __future__ import annotations

import pytest

from tests.simulation.queries.exact import ExactJudge
from tests.simulation.queries.judge import Row
from tests.support.judge import Publications, Violation


class Story:
    """A query of one load; the queue has two partitions, and a key whose messages changed place."""

    def __init__(self, *, latest: bool = False) -> None:
        self.queue = Publications()
        self.queue.publish(2, [0, 0, 0, 1, 1, 1])
        self.queue.publish(1, [3])  # as message 3 of partition 0
        self.queue.publish(2, [3])  # and of partition 1
        self.judge = ExactJudge(self.queue)
        self.latest = (2, 2) if latest else None

    def made(self, start: str, end: str) -> Story:
        self.judge.made("q", 0, start, end, latest=self.latest)
        return self

    def read(self, end: str, *places: tuple[int, int]) -> Story:
        self.judge.planned("q", 0, end, [Row(p, offset, redelivered=False, epoch=0) for p, offset in places])
        return self


def test_a_query_that_reads_everything_in_order_has_nothing_left() -> None:
    story = Story().made("", "a").read("a", (0, 0), (0, 1), (1, 0))
    assert story.judge.left("q", 0, "a") == 5
    story.made("a", "b").read("b", (0, 2), (0, 3), (1, 1), (1, 2)).made("b", "c").read("c", (1, 3))
    assert story.judge.left("q", 0, "c") == 0
    assert story.judge.left("q", 0, "") == 8


def test_a_batch_may_come_again_as_it_was_and_in_no_other_way() -> None:
    story = Story().made("", "a").read("a", (0, 0)).made("a", "b").read("b", (0, 1)).read("a", (0, 0))
    with pytest.raises(Violation, match="had other rows before"):
        story.read("b", (0, 1), (0, 2))


@pytest.mark.parametrize("offset", [0, 2])
def test_a_batch_goes_on_where_the_one_before_it_ended(offset: int) -> None:
    story = Story().made("", "a").read("a", (0, 0)).made("a", "b")
    with pytest.raises(Violation, match="goes on at"):
        story.read("b", (0, offset))


def test_no_message_is_left_out_within_a_batch() -> None:
    with pytest.raises(Violation, match="goes on at"):
        Story().made("", "a").read("a", (0, 0), (0, 2))


@pytest.mark.parametrize(("row", "said"), [(Row(0, 0, True, 0), "marks"), (Row(0, 0, False, 1), "names an owner")])
def test_nothing_is_marked_and_nobody_owns_anything(row: Row, said: str) -> None:
    story = Story().made("", "a")
    with pytest.raises(Violation, match=said):
        story.judge.planned("q", 0, "a", [row])


def test_a_key_keeps_its_order_over_partitions() -> None:
    story = Story().made("", "a").read("a", *((1, offset) for offset in range(3))).made("a", "b")
    with pytest.raises(Violation, match="of its key"):
        story.read("b", *((0, offset) for offset in range(4)), (1, 3))


def test_who_begins_at_the_latest_message_begins_between_the_question_and_its_answer() -> None:
    for offset in (2, 3, 4):
        story = Story(latest=True).made("", "a").read("a").made("a", "b")
        story.queue.publish(1, [5] * 5)
        story.read("b", (0, offset))
    for offset in (1, 5):
        story = Story(latest=True).made("", "a").read("a").made("a", "b")
        story.queue.publish(1, [5] * 5)
        with pytest.raises(Violation, match="goes on at"):
            story.read("b", (0, offset))


def test_nothing_follows_what_was_never_given_to_spark() -> None:
    with pytest.raises(Violation, match="never given"):
        Story().read("a", (0, 0))
    with pytest.raises(Violation, match="never read"):
        Story().made("a", "b")


def test_what_is_not_there_is_not_read() -> None:
    with pytest.raises(Violation, match="not there"):
        Story().made("", "a").read("a", *((0, offset) for offset in range(5)))
