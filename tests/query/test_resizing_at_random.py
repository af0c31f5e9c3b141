"""Random sequences of changes of the partition count, publishes and consumers at different speeds, with the planner,
the sessions and the coordinator as they are: every key in order, nothing lost, nothing waits longer than it must.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.resizing import Resizing
from tests.query.world import Query, begun, delivered, expected
from tests.support.properties import examples

FLOWS = ("a", "b", "c")


@dataclass(frozen=True)
class Publish:
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Alter:
    partitions: int


@dataclass(frozen=True)
class Trigger:
    """One flow is asked so often, while the others do nothing but live."""

    flow: int
    times: int


@dataclass(frozen=True)
class Idle:
    """Only these flows go on, until they have nothing to do: then whatever is left must have a reason to wait."""

    flows: frozenset[int]


@dataclass(frozen=True)
class Restart:
    flow: int


SEQUENCES = st.lists(
    st.one_of(
        st.builds(Publish, st.lists(st.integers(0, 15), min_size=1, max_size=12).map(tuple)),
        st.builds(Alter, st.integers(1, 9)),
        st.builds(Trigger, st.integers(0, 2), st.integers(1, 3)),
        st.builds(Idle, st.frozensets(st.integers(0, 2), min_size=1, max_size=2)),
        st.builds(Restart, st.integers(0, 2)),
    ),
    min_size=3,
    max_size=14,
)
Sequence = list[Publish | Alter | Trigger | Idle | Restart]


class Play:
    """One sequence."""

    def __init__(self, partitions: int, ownership: str) -> None:
        self.world = Resizing(partitions=partitions, handoff_s=1.0)
        if ownership == "store":
            self.world.coordinated()
        names = FLOWS if ownership == "store" else FLOWS[:1]
        options = {"ownership": ownership, "checkpointInterval": "20s"}
        self.queries = [self.world.query(name, **options) for name in names]
        begun(self.world, *self.queries)
        for query in self.queries:
            self.world.watched(query)

    def query(self, number: int) -> Query:
        return self.queries[number % len(self.queries)]

    def run(self, sequence: Sequence) -> None:
        for action in sequence:
            match action:
                case Publish(keys):
                    self.world.publish_keys([f"key-{key}" for key in keys])
                case Alter(partitions):
                    self.world.alter(partitions)
                case Trigger(flow, times):
                    for _ in range(times):
                        self.query(flow).trigger()
                case Idle(flows):
                    self.idle([self.query(flow) for flow in sorted(flows)])
                case Restart(flow):
                    self.query(flow).kill().start()
        self.idle(self.queries)
        self.world.until(self.is_over)

    def is_over(self) -> bool:
        for query in self.queries:
            query.trigger()
        return self.world.all_delivered(*self.queries) and not sum(query.trigger() for query in self.queries)

    def idle(self, active: list[Query]) -> None:
        """Until they have had nothing to do for as long as a look at others' checkpoints may take to be due."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if sum(query.trigger() for query in active) else quiet + 1
        for query in active:
            view = query.consumer._participant.view
            assert view is not None
            for partition, claim in view.deliverable.items():
                position = query.consumer._reached.get(partition, claim.position)
                assert not self.world.may_come(partition, position), (
                    f"{query.name} has partition {partition}, and message {position} of it waits for nothing"
                )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.conformance("RES-01", "RES-02", "RES-03", "RES-04")
@examples(150)
@given(partitions=st.integers(1, 5), sequence=SEQUENCES)
def test_flows_that_share_a_queue_keep_the_order_of_every_key(partitions: int, sequence: Sequence) -> None:
    play = Play(partitions, "store")
    play.run(sequence)
    state = play.world.state()
    assert state is not None
    assert set(state.partitions) >= set(range(play.world.counts[-1]))


@pytest.mark.conformance("RES-02", "RES-03", "RES-04")
@examples(40)
@given(partitions=st.integers(1, 5), sequence=SEQUENCES)
def test_a_query_alone_keeps_the_order_of_every_key(partitions: int, sequence: Sequence) -> None:
    play = Play(partitions, "none")
    play.run(sequence)
    assert delivered(*play.queries) == expected(play.world), "each message once: nothing was lost, nobody interfered"
