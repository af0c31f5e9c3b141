"""Several coordinators of one group: who leads, and that another one finishes whatever a leader had begun."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from coordinator.core.machine import pending
from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.model import RebalanceStatus
from partq_spark.group.ownership import StateDocument
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, Killed, World


def leading(world: World) -> list[str]:
    """The coordinators that take themselves for the leader."""
    return [f"c{number}" for number, each in enumerate(world.coordinators, 1) if each.runtime.leading]


def test_one_leads_and_the_others_watch() -> None:
    world = World()
    first, second = world.coordinator("c1"), world.coordinator("c2")
    world.flow("a")
    world.run(30)
    assert (first.runtime.leading, second.runtime.leading) == (True, False)
    assert len(world.log.of("lease_taken")) == 1


@pytest.mark.conformance("OWN-05")
@pytest.mark.parametrize("skew_s", [-600.0, 600.0])
def test_clocks_that_differ_by_ten_minutes_change_nothing(skew_s: float) -> None:
    """The same run with and without skew, a leader change and a holddown in it: the same decisions at the same time."""

    def decisions(skew_s: float) -> list[tuple[str, float]]:
        world = World(config=QueueConfig(rebalance_delay_s=5.0))
        told: list[tuple[str, float]] = []

        def log(level: str, event: str, /, **facts: object) -> None:
            told.append((f"{event} {facts.get('partition')} {facts.get('flow')} {facts.get('status')}", world.now_s))

        world.log = log  # type: ignore[assignment]
        first = world.coordinator("c1")
        world.coordinator("c2", skew_s=skew_s)
        world.flow("a")
        world.settle()
        world.flow("b")
        world.run(2)
        first.stopped = True
        world.run(12)
        world.flows[0].die()
        world.run(40)
        assert world.counts() == {"b": 4}
        return told

    assert decisions(skew_s) == decisions(0.0)


def test_a_leader_that_is_silent_is_replaced_after_the_lease_timeout() -> None:
    world = World()
    first, _ = world.coordinator("c1"), world.coordinator("c2")
    world.flow("a")
    world.run(10)
    first.stopped = True
    world.run(4.5)
    assert leading(world) == ["c1"], "it does not know yet"
    world.run(2)
    assert leading(world) == ["c1", "c2"]
    first.stopped = False
    world.run(2)
    assert leading(world) == ["c2"]
    assert "lease_lost" in world.log.events()


def test_a_lease_that_was_given_up_is_taken_at_once() -> None:
    world = World()
    first, second = world.coordinator("c1"), world.coordinator("c2")
    world.run(3)
    first.runtime.release()
    first.stopped = True
    second.step()
    assert second.runtime.leading


def test_a_new_leader_grants_every_flow_a_full_period() -> None:
    world = World()
    first = world.coordinator("c1")
    flow = world.flow("a")
    world.settle()
    world.run(5)
    flow.die()
    world.run(8)
    first.runtime.release()
    first.stopped = True
    second = world.coordinator("c2")
    world.run(9)
    assert second.runtime.leading
    assert world.state().flows["a"].bound, "silent for 17 s, but seen for 9"
    world.run(2)
    assert not world.state().flows["a"].bound


def test_a_holddown_is_not_made_longer_by_new_leaders() -> None:
    world = World(config=QueueConfig(rebalance_delay_s=30.0))
    world.coordinator("c0")
    world.flow("a")
    world.settle()
    world.flow("b")
    world.settle()
    begun_s = world.now_s
    number = 0
    while world.state().status is RebalanceStatus.HOLDDOWN:
        world.run(4)
        number += 1
        assert world.now_s - begun_s <= 30 + 4 + number
        world.coordinators[-1].runtime.release()
        world.coordinators[-1].stopped = True
        world.coordinator(f"c{number}")
    assert number >= 7


# --- a leader ends, or loses an answer, at any call -------------------------------------------------------------------


def _handoffs(world: World) -> None:
    """Three flows share what one had, with messages in hand that are acknowledged after a while."""
    a = world.flow("a")
    world.run(0.5)
    if a.mapping():
        a.deliver(min(a.mapping()), 100)
    world.flow("b")
    world.flow("c")


def _loss(world: World) -> None:
    """A flow leaves, another takes over."""
    world.flow("a")
    world.flow("b")
    world.run(0.5)
    world.flows[0].unbind()


def _restart(world: World) -> None:
    """A flow comes back as a new instance with its mapping."""
    a = world.flow("a")
    world.run(0.5)
    mapping = a.mapping()
    a.unbind()
    a.bind(mapping)


SCENARIOS: dict[str, tuple[Callable[[World], None], list[int]]] = {
    "handoffs": (_handoffs, [1, 1, 2]),
    "loss": (_loss, [4]),
    "restart": (_restart, [4]),
}


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 1.0])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whenever_a_leader_is_killed_the_next_one_finishes(name: str, delay_s: float) -> None:
    play, expected = SCENARIOS[name]
    struck = []
    for at in itertools.count(1):
        world = World(config=QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=2.0))
        first = world.coordinator("c1")
        first.faults.strike_at = at
        play(world)
        world.run(3)
        # Nothing more happens for long before the end, so that the loop ends when the calls do.
        if not first.faults.struck:
            break
        struck.append(first.faults.struck)
        world.coordinator("c2")
        world.run(12)
        assert sorted(world.counts().values()) == expected, f"killed at call {at}, {first.faults.struck}"
        assert pending(world.state()) == ()
        assert world.state().status is RebalanceStatus.READY
    assert {"swap_state", "swap_state answered", "objects.swap", "objects.swap answered"} <= set(struck)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_answer_is_lost_the_leader_settles_it_by_reading(name: str) -> None:
    play, expected = SCENARIOS[name]
    for at in itertools.count(1):
        world = World(config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=2.0))
        only = world.coordinator("c1")
        only.faults.strike_at = at
        only.faults.error = Unavailable("lost")
        play(world)
        world.run(8)
        if not only.faults.struck:
            break
        assert sorted(world.counts().values()) == expected, f"lost at call {at}, {only.faults.struck}"
        assert world.state().status is RebalanceStatus.READY
    assert at > 30


def test_a_leader_that_slept_before_its_swap_changes_nothing() -> None:
    """The former leader wakes up with a decision in hand, after another one led."""
    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    first, second = world.coordinator("c1"), world.coordinator("c2")
    world.flow("a")
    world.run(1)
    world.flow("b")

    def sleep(verb: str) -> None:
        if verb == "swap_state":
            first.faults.hook = None
            first.stopped = True
            world.run(20)
            first.stopped = False
            assert second.runtime.leading

    first.faults.hook = sleep
    before = len(world.log.of("assign"))
    first.step()
    assert world.counts() == {"a": 2, "b": 2}
    assert len(world.log.of("assign")) == before + 2
    world.run(3)
    assert (first.runtime.leading, second.runtime.leading) == (False, True)


def test_a_leader_that_slept_before_a_fence_changes_nothing() -> None:
    world = World(config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0))
    first, second = world.coordinator("c1"), world.coordinator("c2")
    world.flow("a")
    world.run(1)
    b = world.flow("b")

    def sleep(verb: str) -> None:
        if verb == "objects.swap":
            first.faults.hook = None
            first.stopped = True
            world.run(10)
            b.unbind()
            world.run(10)
            assert second.runtime.leading
            assert world.counts() == {"a": 4}
            first.stopped = False

    first.faults.hook = sleep
    first.step()
    world.run(3)
    assert world.counts() == {"a": 4}


def test_a_decision_that_did_not_hold_is_not_told() -> None:
    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    only = world.coordinator()
    world.settle()
    world.flow("a")

    lost: list[str] = []

    def lose(verb: str) -> None:
        if verb == "swap_state":
            lost.append(verb)
            only.faults.hook = None
            raise Unavailable("lost")

    only.faults.hook = lose
    world.log.lines.clear()
    only.step()
    assert lost
    assert [event for level, event, _ in world.log.lines if level == "info"] == []
    world.settle()
    told = world.log.of("flow_bound")
    assert len(told) == 1
    assert told[0]["reason"]
    decisions = {"status", "fence", "assign", "flow_bound"}
    assert all(facts.get("reason") for _, event, facts in world.log.lines if event in decisions)


def test_killed_is_not_handled() -> None:
    world = World()
    first = world.coordinator()
    first.faults.strike_at = 1
    first.step()
    assert first.stopped
    assert Killed.__mro__[1] is BaseException
    assert world.server.open().read_state(KEY) is None


def test_a_holddown_runs_on_where_the_killed_leader_left_it() -> None:
    """Also if the next one is killed between taking the lease and reading anything."""
    world = World(config=QueueConfig(rebalance_delay_s=30.0))
    first = world.coordinator("c1")
    world.flow("a")
    world.settle()
    world.flow("b")
    world.settle()
    world.run(20)
    first.stopped = True
    second = world.coordinator("c2")

    def kill(verb: str) -> None:
        if verb == "read_state":
            raise Killed

    second.faults.hook = kill
    world.run(7)
    assert second.stopped
    world.coordinator("c3")
    world.run(7)
    assert world.state().status is RebalanceStatus.HOLDDOWN
    world.run(10)
    assert world.state().status is RebalanceStatus.READY, "30 s, and twice the time without a leader"
    assert world.counts() == {"a": 2, "b": 2}


def test_a_lease_whose_answer_was_lost_is_recognised() -> None:
    world = World()
    only = world.coordinator()

    def lose(verb: str) -> None:
        if verb == "take_lease answered":
            only.faults.hook = None
            raise Unavailable("lost")

    only.faults.hook = lose
    only.step()
    assert leading(world) == []
    only.step()
    assert leading(world) == ["c1"]
    assert [line["reason"] for line in world.log.of("lease_taken")] == ["the answer to taking it had been lost"]


def test_a_state_that_somebody_else_wrote_is_adopted_also_in_quiet_times() -> None:
    world = World()
    only = world.coordinator()
    world.flow("a")
    world.settle()
    world.run(3)
    store = world.server.open()
    document = store.read_state(KEY)
    assert isinstance(document, StateDocument)
    store.swap_state(KEY, document.body, token="somebody", expected=document.token)
    only.step()
    assert "another coordinator wrote the state" in [line["reason"] for line in world.log.of("adopting_again")]
    after = store.read_state(KEY)
    assert isinstance(after, StateDocument)
    assert after.token != "somebody", "from now on that one's swaps fail"


@pytest.mark.conformance("OWN-04")
def test_a_rewind_does_not_pass_for_the_fence_that_a_killed_leader_owed() -> None:
    """It has the same epoch and nobody for an owner too, but knows nothing of what was delivered after it."""
    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    first = world.coordinator("c1")
    world.published(1000)
    a = world.flow("a")
    world.settle()
    assert a.deliver(0, 100)
    lifecycle.checkpoints_of(world.queue, KEY.group).rewind(0, 0, fence=True, delivered=100)
    assert a.deliver(0, 400), "it learns of the rewind with its next acknowledgement"

    def kill(verb: str) -> None:
        if verb == "swap_state answered":
            raise Killed

    first.faults.hook = kill
    a.unbind()
    world.run(1)
    assert first.stopped
    assert {(each.owner, each.epoch) for each in pending(world.state())} == {(a.owner, 2)}
    world.coordinator("c2")
    world.run(10)
    after = world.checkpoints()
    assert (after[0].owner, after[0].epoch, after[0].redelivered_below) == (None, 2, 400)
    assert pending(world.state()) == ()
