"""Each rule of the judge tells what must not happen. What may happen passes in every run of a simulation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.judge import (
    Delivery,
    Leases,
    Message,
    Ownership,
    Position,
    Publications,
    Violation,
    acknowledged_beyond,
    before_its_key,
    forbid,
    gap,
    shared_epochs,
    skipped,
    two_owners,
    undelivered,
    unmarked,
    unmarked_in_time,
    went_back,
)

A, B = Ownership(1, "a", "a1"), Ownership(2, "b", "b1")
OWNER = ("a", "a1")


def delivery(by: Ownership, start: int, end: int, below: int = 0, asked: float = 0.0) -> Delivery:
    return Delivery(by, start, end, below, asked, asked + 1)


def leases() -> Leases:
    found = Leases()
    found.bound(OWNER, 1_000_000)
    found.renewed(OWNER, 5)
    return found


def published() -> Publications:
    """Key 3 lies in partition 0 of one, and after a change in partition 1 of two."""
    found = Publications()
    found.publish(1, [3, 3])
    found.publish(2, [3, 2])
    return found


def of_its_key(reached: int) -> Iterable[str]:
    later = Message(1, 0)
    return before_its_key(later, published().earlier(later), lambda _: reached)


BEFORE = Position(2, "a", 10, 12)
BAD: dict[str, tuple[Iterable[str], str]] = {
    "epoch": (went_back(BEFORE, BEFORE._replace(epoch=1)), "epoch went from 2 back to 1"),
    "offset": (went_back(BEFORE, BEFORE._replace(offset=9)), "offset went from 10 back to 9"),
    "mark": (went_back(BEFORE, BEFORE._replace(redelivered_below=0)), "redelivered_below went from 12 back to 0"),
    "two flows": (shared_epochs([(1, "a"), (2, "b"), (1, "b")]), "epoch 1 belongs to a and to b"),
    "a flow and nobody": (shared_epochs([(1, ""), (1, "b")]), "epoch 1 belongs to nobody and to b"),
    "two owners": (two_owners(delivery(A, 0, 2, asked=4.1), B, 4.0), "two owners: a/a1 at epoch 1 delivered 0 to 2"),
    "acknowledged too much": (acknowledged_beyond(6, 5), "the checkpoint is at 6, beyond .* ends at 5"),
    "lease over": (leases().over(OWNER, 1_000_300), "after the lease has ended"),
    "never bound": (leases().over(("b", "b1"), 1), "after the lease has ended"),
    "a hole": (gap(delivery(A, 4, 5), 3), "delivered 4 to 5 after 3"),
    "a repetition": (gap(delivery(A, 2, 5), 3), "delivered 2 to 5 after 3"),
    "skipped": (skipped(delivery(A, 3, 5), 2), "nobody has delivered 2 to 3"),
    "nothing": (skipped(delivery(A, 3, 3), 3), "that is nothing"),
    "not marked": (unmarked(delivery(A, 0, 5), delivery(B, 3, 9, below=4)), "not marked: 4, by a/a1"),
    "in time, the second is not marked": (
        unmarked_in_time(delivery(A, 0, 5, 5, asked=1), delivery(B, 0, 5, asked=3)),
        "not marked: 0, by a/a1",
    ),
    "in time, whichever is asked about first": (
        unmarked_in_time(delivery(B, 0, 5, asked=3), delivery(A, 0, 5, 5, asked=1)),
        "not marked: 0, by a/a1",
    ),
    "side by side, neither is marked": (
        unmarked_in_time(delivery(A, 0, 5, asked=1), delivery(B, 0, 5, asked=2)),
        "not marked: 0",
    ),
    "lost in between": (undelivered([delivery(B, 6, 9), delivery(A, 0, 5)], 9), "nobody has delivered 5 to 6"),
    "lost at the end": (undelivered([delivery(A, 0, 5)], 9), "delivered up to 5 of 9"),
    "before its key": (of_its_key(1), "message 0 of partition 1 came before message 1 of partition 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_happen_is_told(name: str) -> None:
    broken, words = BAD[name]
    with pytest.raises(Violation, match=words):
        forbid(broken, "evidence")


def test_a_lease_begins_anew_with_a_bind() -> None:
    found = leases()
    found.bound(OWNER, 1_000_000)
    assert list(found.over(OWNER, 6))
