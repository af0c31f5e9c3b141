"""One group's leaders: another one finishes whatever a leader had begun, and none acts on what it knew before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from coordinator.core.machine import pending
from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Phase, RebalanceStatus
from partq_spark.group.ownership import StateDocument
from partq_spark.log.model import QueueConfig
from tests.coordinator.runtimes import KEY, SESSION_S, Coordinator, HandFlow, Killed, Strike, World

AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0)
PATIENT = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0)


def leading(world: World) -> list[bool]:
    """Which of the coordinators take themselves for the leader."""
    return [each.runtime.leading for each in world.coordinators]


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


PLAYS = pytest.mark.parametrize(
    ("play", "shares"), [(_handoffs, [1, 1, 2]), (_loss, [4]), (_restart, [4])], ids=["handoffs", "loss", "restart"]
)


@pytest.mark.slow
@PLAYS
@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_whenever_a_leader_is_killed_the_next_one_finishes(
    play: Callable[[World], None], shares: Sequence[int], delay_s: float
) -> None:
    struck = []
    for at in itertools.count(1):
        world = World(config=QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=2.0))
        world.coordinator("c1").hook = strike = Strike(at, Killed())
        play(world)
        world.run(3)  # nothing more happens for long before the end, so that the loop ends when the calls do
        if not strike.struck:
            break
        struck.append(strike.struck)
        world.coordinator("c2")
        world.run(12)
        assert sorted(world.counts().values()) == shares, f"killed at call {at}, {strike.struck}"
        assert pending(world.state()) == ()
        assert world.state().status is RebalanceStatus.READY
    assert {"swap_state", "swap_state answered", "objects.swap", "objects.swap answered"} <= set(struck)


@pytest.mark.slow
@PLAYS
def test_whatever_answer_is_lost_the_leader_settles_it_by_reading(
    play: Callable[[World], None], shares: Sequence[int]
) -> None:
    for at in itertools.count(1):
        world = World(config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=2.0))
        world.coordinator("c1").hook = strike = Strike(at, Unavailable("lost"))
        play(world)
        world.run(8)
        if not strike.struck:
            break
        assert sorted(world.counts().values()) == shares, f"lost at call {at}, {strike.struck}"
        assert world.state().status is RebalanceStatus.READY
    assert at > 30


@pytest.mark.parametrize("verb", ["swap_state", "objects.swap"])
def test_a_leader_that_slept_with_a_decision_in_hand_changes_nothing(verb: str) -> None:
    """Before it wrote the state, or a checkpoint that the state had asked for; another one has led since."""
    world = World(config=AT_ONCE)
    first, second = world.coordinator("c1"), world.coordinator("c2")
    world.flow("a")
    world.run(1)
    b = world.flow("b")

    def sleep() -> None:
        first.stopped = True
        world.run(10)
        b.unbind()
        world.run(10)
        assert second.runtime.leading
        assert world.counts() == {"a": 4}
        first.stopped = False

    first.at(verb, sleep)
    first.step()
    assert world.counts() == {"a": 4}
    world.run(3)
    assert (leading(world), world.counts()) == ([False, True], {"a": 4})
    assert "lease_lost" in [event for _, event, _ in world.log]


def test_a_decision_that_did_not_hold_is_not_told() -> None:
    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    only = world.coordinator()
    world.settle()
    world.flow("a")
    strike = Strike(1, Unavailable("lost"))
    only.at("swap_state", lambda: strike(""))
    world.log.clear()
    only.step()
    assert [event for level, event, _ in world.log if level == "info"] == []
    world.settle()
    assert len(world.log.of("flow_bound")) == 1
    decisions = {"status", "fence", "assign", "flow_bound"}
    assert all(facts.get("reason") for _, event, facts in world.log if event in decisions)


def test_a_state_that_somebody_else_wrote_is_adopted_also_in_quiet_times() -> None:
    world = World()
    only = world.coordinator()
    world.flow("a")
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


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OWN-05")
@pytest.mark.parametrize("skew_s", [-600.0, 600.0])
def test_clocks_that_differ_by_ten_minutes_change_nothing(skew_s: float) -> None:
    """The same run with and without skew, a leader change and a holddown in it: the same decisions at the same time."""

    def decisions(skew_s: float) -> list[tuple[str, float]]:
        world = World(config=QueueConfig(rebalance_delay_s=5.0))
        told: list[tuple[str, float]] = []

        def log(_level: str, event: str, /, **facts: object) -> None:
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


def test_a_holddown_runs_on_through_any_number_of_leaders() -> None:
    """Those that gave up their lease, and one that was killed between taking it and reading anything."""
    world = World(config=QueueConfig(rebalance_delay_s=30.0))
    world.coordinator("c0")
    world.flow("a")
    world.settle()
    world.flow("b")
    world.settle()
    begun_s, number = world.now_s, 0
    while world.state().status is RebalanceStatus.HOLDDOWN:
        world.run(4)
        number += 1
        assert world.now_s - begun_s <= 30 + 4 + number
        world.coordinators[-1].runtime.release()
        world.coordinators[-1].stopped = True
        world.coordinator(f"c{number}")
    assert number >= 7

    world = World(config=QueueConfig(rebalance_delay_s=30.0))
    first = world.coordinator("c1")
    world.flow("a")
    world.settle()
    world.flow("b")
    world.run(20)
    first.stopped = True
    second = world.coordinator("c2")
    second.hook = lambda verb: Strike(1, Killed())(verb) if verb == "read_state" else None
    world.run(7)
    assert second.stopped
    world.coordinator("c3")
    world.run(7)
    assert world.state().status is RebalanceStatus.HOLDDOWN
    world.run(10)
    assert world.counts() == {"a": 2, "b": 2}, "30 s, and twice the time without a leader"


def test_a_leader_that_was_frozen_lets_nobody_go() -> None:
    world = World(partitions=2)
    coordinator = world.coordinator()
    flow = world.flow("a")
    world.settle()
    world.now_s += 3600  # the machine slept: nobody's counter could move
    coordinator.step()
    assert world.state().flows["a"].bound
    assert world.log.of("all_flows_granted")
    flow.live()
    world.run(SESSION_S * 2)
    assert world.state().flows["a"].bound


def test_so_many_fences_at_once_leave_time_for_the_lease() -> None:
    world = World(partitions=600, config=AT_ONCE)
    coordinator = world.coordinator()
    world.flow("a")
    calls: list[str] = []
    coordinator.hook = calls.append
    for _ in range(10):
        coordinator.step()
    assert world.counts() == {"a": 600}
    since, most = 0, 0
    for call in calls:
        since = 0 if call == "renew_lease" else since + (call == "objects.swap")
        most = max(most, since)
    assert 0 < most <= 250


# --- what a flow has in hand ------------------------------------------------------------------------------------------


def test_a_handoff_waits_for_what_was_delivered_and_no_longer() -> None:
    world = World(partitions=2, config=PATIENT)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
    world.flow("b")
    world.run(5)
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    assert not a.deliver(paused, 200), "new messages are held back"
    a.acknowledge(paused, 99)
    coordinator.step()
    assert world.state().partitions[paused].phase is Phase.PAUSED
    a.acknowledge(paused, 100)
    coordinator.step()
    assert world.counts() == {"a": 1, "b": 1}
    after = world.checkpoints()[paused]
    assert (after.offset, after.epoch) == (100, 2)
    assert after.redelivered_below <= 100, "nothing that is still to come is marked"


def step_while_delivering(coordinator: Coordinator, flow: HandFlow) -> None:
    """The flow delivers 100 messages of both partitions just before the step's first write of the state."""

    def deliver() -> None:
        for number in (0, 1):
            assert flow.deliver(number, 100)

    coordinator.at("swap_state", deliver)
    coordinator.step()


@pytest.mark.parametrize("config", [PATIENT, AT_ONCE], ids=["a pause", "a fence"])
def test_messages_that_were_delivered_while_it_was_decided_count(config: QueueConfig) -> None:
    """They land after the leader has read the records and before it writes: what was read then must not count."""
    world = World(partitions=2, config=config)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    b = world.flow("b")
    step_while_delivering(coordinator, a)
    if config is PATIENT:
        (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
        assert world.checkpoints()[paused].owner == a.owner
    else:
        (moved,) = (each for each in world.checkpoints().values() if each.owner == b.owner)
        assert moved.redelivered_below == 100


# --- who leaves -------------------------------------------------------------------------------------------------------


def test_a_silent_flow_is_let_go_after_its_session_timeout_and_forgotten() -> None:
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=2.0))
    world.coordinator()
    world.flow("a")
    world.settle()
    b = world.flow("b")
    world.run(6)
    assert world.counts() == {"a": 1, "b": 1}
    b.die()
    world.run(SESSION_S - 2)
    assert world.state().flows["b"].bound
    world.run(3)
    assert not world.state().flows["b"].bound
    world.run(3)
    assert world.counts() == {"a": 2}
    assert set(world.server.open().read_flows(KEY)) == {"a"}


def test_a_flow_that_was_forgotten_does_not_come_back_by_what_is_remembered() -> None:
    """Something makes the leader look in full before it reads the records again, which it had done just before."""
    for number in range(4):
        world = World(partitions=1)
        coordinator = world.coordinator()
        a = world.flow("a")
        world.settle()
        standby = world.flow("b")
        world.run(1 + number / 4)
        standby.die()
        while "b" in world.state().flows:
            assert a.deliver(0, int(world.now_s * 4))
            world.run(0.25)
        world.altered(lambda head: replace(head, config=replace(head.config, rebalance_delay_s=77.0)))
        coordinator.step()
        assert world.state().settings.rebalance_delay_s == 77.0
        assert set(world.state().flows) == {"a"}


def test_a_leader_that_was_replaced_before_it_forgets_a_flow_forgets_nobody() -> None:
    """Its successor may have given the flow partitions again: without its record nobody knows what it delivered."""
    world = World(partitions=1)
    coordinator = world.coordinator()
    world.flow("a")
    world.settle()
    standby = world.flow("b")
    world.settle()
    standby.die()
    kept: list[bool] = []

    def replaced() -> None:
        state = world.server.state_of(KEY)
        assert state is not None
        world.server.open().swap_state(KEY, state.body, token="successor", expected=state.token)
        coordinator.at("renew_lease", lambda: kept.append("b" in world.server.records_of(KEY)))

    coordinator.at("forget_flow", replaced)
    world.run(SESSION_S * 3)
    assert kept == [True]
    assert "b" not in world.server.records_of(KEY), "forgotten under the state as it is by now"
