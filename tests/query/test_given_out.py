"""What a process gave out and takes back when the next batch is planned already: no scenario comes between these."""

from __future__ import annotations

from partq_spark.query.manual import GivenOut, RoundPosition
from partq_spark.query.offsets import BatchSpan


def span(start: int, to: int) -> BatchSpan:
    return BatchSpan(epoch=1, start=start, to=to, redelivered_below=0)


def test_what_is_given_back_after_the_next_batch_was_planned_is_not_left_behind_it() -> None:
    """It goes on where the former one ended: an acknowledgement of it would cover both."""
    given = GivenOut("p")
    given.planned()
    given.add({0: span(0, 4), 1: span(0, 1)})
    given.planned()
    given.refuse("p", {0: RoundPosition(1, 4, 0)}, ())
    assert given.as_planned({0: span(4, 8), 1: span(1, 2)}) == {1: span(1, 2)}
    given.planned()
    assert given.as_planned({0: span(0, 8)}) == {0: span(0, 8)}
