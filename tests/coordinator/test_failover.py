"""A Redis that failed over and back at once: nobody called in between, no connection broke, and a report is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from partq_spark.group.claims import Claim
from partq_spark.group.model import GroupKey
from tests.coordinator.sidecars import Place, consuming, living
from tests.group.ownership.redis_servers import Pair, followed
from tests.support.flow_loop import Batch
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]

IN_HAND = 30

MOVES = 1
"""Of two partitions, the one that goes to a second flow."""


@pytest.fixture
def pair(redis: RedisServer) -> Iterator[Pair]:
    """The Redis that everybody uses, and its replica."""
    with followed(redis) as pair:
        yield pair


def in_queue(place: Place, key: GroupKey, messages: int) -> None:
    """As if so many were in every partition."""
    place.queue(key).change(
        lambda head: replace(head, sequence=head.sequence + 1, next=(messages,) * len(head.next)),
    )


@pytest.mark.conformance("OWN-04")
def test_what_a_lost_report_said_comes_again_marked(place: Place, pair: Pair) -> None:
    key = place.group(partitions=2)
    in_queue(place, key, IN_HAND)
    given, handled, go_on = threading.Event(), threading.Event(), threading.Event()

    def read(claim: Claim) -> Batch[int] | None:
        if claim.partition != MOVES or handled.is_set() or not given.is_set():
            return None
        return Batch(partition=MOVES, begin=0, end=IN_HAND, messages=range(IN_HAND))

    def handle(_batch: Batch[int]) -> None:
        handled.set()
        go_on.wait(60)

    def owner() -> str | None:
        found = place.checkpoints(key).read(MOVES)
        return found.owner.flow if found is not None and found.owner is not None else None

    with place.sidecar() as sidecar, consuming(place.session(key, "a"), read, handle):
        try:
            wait_until(lambda: place.shares(key) == {"a": 2}, "assignment")
            pair.fail_over()
            given.set()
            assert handled.wait(10)
            pair.fail_back()  # all of it is in hand, and the report of that is gone
            other = place.flow(key, "b")
            wait_until(lambda: owner() == "b", "handoff", also=living(other))
        finally:
            go_on.set()
        found = place.checkpoints(key).read(MOVES)
        assert found is not None
        assert found.redelivered_below >= IN_HAND
        assert sidecar.end()[0] == 0
