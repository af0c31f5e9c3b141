"""One group's coordinator over stores in memory: binds, handoffs, losses, and nothing waits longer than it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.core.machine import next_deadline
from coordinator.heads import group_facts
from coordinator.leadership import StoreLife
from partq_spark.group.documents.identity import NAME, store_id
from partq_spark.group.model import FlowRecord, Phase, RebalanceStatus
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, SESSION_S, Coordinator, HandFlow, World

AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0)


def test_the_first_flow_gets_everything_in_one_step() -> None:
    world = World(partitions=4)
    coordinator = world.coordinator()
    flow = world.flow("a")
    coordinator.step()
    assert coordinator.runtime.leading
    assert world.owners() == dict.fromkeys(range(4), "a")
    assert {each.owner for each in world.checkpoints().values()} == {flow.owner}
    assert world.state().status is RebalanceStatus.READY


def test_ownership_records_follow_the_state() -> None:
    world = World(partitions=2)
    world.coordinator()
    flow = world.flow("a")
    world.settle()
    records = world.server.open().list_ownership(KEY)
    assert [(number, each.owner, each.epoch) for number, each in records.items()] == [
        (number, flow.owner, 1) for number in range(2)
    ]
    flow.unbind()
    world.run(30)
    assert world.owners() == {0: None, 1: None}
    records = world.server.open().list_ownership(KEY)
    assert {(each.owner, each.epoch) for each in records.values()} == {(None, 2)}


@pytest.mark.conformance("REB-13")
def test_delays_of_zero_mean_at_once() -> None:
    world = World(partitions=4, config=AT_ONCE)
    world.coordinator()
    world.flow("a")
    world.settle()
    world.flow("b")
    world.coordinators[0].step()
    assert world.counts() == {"a": 2, "b": 2}, "in one step"


def test_an_idle_flow_hands_over_in_the_step_in_which_the_pause_was_written() -> None:
    world = World(partitions=4, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0))
    world.coordinator()
    world.flow("a")
    world.settle()
    world.flow("b")
    world.settle()
    assert world.counts() == {"a": 2, "b": 2}
    assert {each.redelivered_below for each in world.checkpoints().values()} == {0}


def test_a_handoff_waits_for_what_was_delivered_and_no_longer() -> None:
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0))
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
    world.flow("b")
    world.run(5)
    paused = next(n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
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


def test_a_handoff_that_is_not_drained_is_forced_at_its_deadline() -> None:
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=3.0))
    world.coordinator()
    a = world.flow("a")
    world.settle()
    for number in (0, 1):
        assert a.deliver(number, 100)
        a.acknowledge(number, 40)
    world.flow("b")
    world.run(2.5)
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    world.run(1)
    after = world.checkpoints()[paused]
    assert (after.offset, after.redelivered_below, after.epoch) == (40, 100, 2)
    assert world.counts() == {"a": 1, "b": 1}


def step_while_delivering(coordinator: Coordinator, flow: HandFlow) -> None:
    """The flow delivers 100 messages of both partitions just before the step's first write of the state."""

    def deliver(verb: str) -> None:
        if verb == "swap_state":
            coordinator.faults.hook = None
            for number in (0, 1):
                assert flow.deliver(number, 100)

    coordinator.faults.hook = deliver
    coordinator.step()


def test_messages_delivered_while_the_pause_was_written_are_waited_for() -> None:
    """The flow's delivery lands after the leader has read the records and before it writes the pause: the records that
    were read then must not count.
    """
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0))
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    world.flow("b")

    step_while_delivering(coordinator, a)
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    assert world.checkpoints()[paused].owner == a.owner


def test_messages_delivered_while_a_fence_was_decided_are_marked() -> None:
    world = World(partitions=2, config=AT_ONCE)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.settle()
    b = world.flow("b")

    step_while_delivering(coordinator, a)
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
    begun_s = world.now_s
    world.run(SESSION_S - 2)
    assert world.state().flows["b"].bound
    world.run(3)
    assert not world.state().flows["b"].bound
    world.run(3)
    assert world.now_s - begun_s < SESSION_S + 5
    assert world.counts() == {"a": 2}
    assert set(world.server.open().read_flows(KEY)) == {"a"}


def test_a_flow_that_was_forgotten_does_not_come_back_by_what_is_remembered() -> None:
    world = World(partitions=1)
    world.coordinator()
    world.flow("a")
    world.settle()
    standby = world.flow("b")
    world.settle()
    standby.unbind()
    world.run(3)
    standby = world.flow("b")
    standby.die()
    world.run(SESSION_S + 5)
    assert set(world.state().flows) == {"a"}
    assert len(world.log.of("flow_bound")) == 3


def test_a_leader_that_was_frozen_lets_nobody_go() -> None:
    world = World(partitions=2)
    coordinator = world.coordinator()
    flow = world.flow("a")
    world.settle()
    # The machine slept: nobody's counter could move.
    world.now_s += 3600
    coordinator.step()
    assert world.state().flows["a"].bound
    assert "all_flows_granted" in world.log.events()
    flow.live()
    world.run(SESSION_S * 2)
    assert world.state().flows["a"].bound


def test_a_flow_that_restarts_within_the_delay_gets_its_partitions_again_without_handoffs() -> None:
    world = World(partitions=4, config=QueueConfig(rebalance_delay_s=5.0))
    world.coordinator()
    world.flow("a")
    world.settle()
    b = world.flow("b")
    world.run(6)
    mine = b.mapping()
    assert len(mine) == 2
    number = next(iter(mine))
    assert b.deliver(number, 50)
    b.unbind()
    world.run(2)
    b.bind(mine)
    world.settle()
    assert b.mapping() == mine, "the same epochs"
    assert world.checkpoints()[number].owner == b.owner
    assert world.checkpoints()[number].redelivered_below == 50
    assert world.log.of("pause") == [each for each in world.log.of("pause") if each["to"] == "b"]
    assert world.state().status is RebalanceStatus.READY


# --- the queue --------------------------------------------------------------------------------------------------------


def test_changed_settings_are_taken_over() -> None:
    world = World(partitions=2)
    world.coordinator()
    world.flow("a")
    world.settle()
    world.altered(lambda head: replace(head, config=replace(head.config, rebalance_delay_s=77.0)))
    world.settle()
    assert world.state().settings.rebalance_delay_s == 77.0


def test_a_queue_that_was_made_again_begins_anew_and_its_epochs_continue() -> None:
    world = World(partitions=2)
    world.coordinator()
    a = world.flow("a")
    world.settle()
    a.deliver(0, 500)
    world.altered(lambda head: replace(head, queue_id="0123456789abcdef"))
    # `require` refuses another queue to this handle: a look now is a new one.
    world.settle()
    assert world.state().queue_id == "0123456789abcdef"
    assert world.owners() == {0: None, 1: None}
    assert world.server.open().read_flows(KEY) == {}, "records of the former queue are removed"
    world.flows = []
    b = world.flow("b")
    world.settle()
    found = world.checkpoints()
    assert {each.owner for each in found.values()} == {b.owner}
    assert [(each.epoch, each.offset, each.redelivered_below) for each in found.values()] == [(2, 0, 0)] * 2


def test_timers_run_on_in_the_lease() -> None:
    world = World(partitions=4, config=QueueConfig(rebalance_delay_s=30.0))
    world.coordinator()
    world.flow("a")
    world.settle()
    world.flow("b")
    world.settle()
    assert world.state().status is RebalanceStatus.HOLDDOWN
    world.run(10)
    lease = world.server.open().read_lease(KEY)
    assert lease is not None
    assert lease.lease.timers["holddown"] == pytest.approx(20, abs=1.0)
    assert next_deadline(world.state()) == pytest.approx(world.now_s + 30, abs=0.1), "the state's own is as written"


def test_a_new_leader_with_an_old_look_at_the_head_takes_nothing_away() -> None:
    """The former leader has seen that the queue has more partitions; the next one's look at the head is older."""
    world = World(partitions=4)
    first = world.coordinator("c1")
    world.flow("a")
    world.settle()
    old = group_facts(world.queue.head, world.queue.head.groups[KEY.group])
    six = structs.replace(world.queue.head.layout, partitions=6, begin=(0,) * 6)
    world.altered(lambda head: replace(head, layouts=(six,), next=(0,) * 6, earliest=(0,) * 6))
    world.settle()
    assert world.counts() == {"a": 6}
    first.runtime.release()
    first.stopped = True
    second = world.coordinator("c2")
    for _ in range(3):
        second.runtime.step(old)
    assert world.counts() == {"a": 6}
    assert len(world.log.of("queue_altered")) == 1


def test_records_of_a_former_life_of_the_store_are_removed() -> None:
    world = World()
    world.coordinator()
    flow = world.flow("a")
    world.settle()
    flow.die()
    world.server.incarnation = "another"
    world.settle()
    world.run(SESSION_S * 2 + 10)
    assert world.server.open().read_flows(KEY) == {}
    assert world.state().flows == {}


def test_a_flow_whose_record_is_lost_is_let_go_at_once() -> None:
    """It binds anew if it lives: its next heartbeat tells it."""
    world = World()
    coordinator = world.coordinator()
    flow = world.flow("a")
    world.settle()
    flow.die()
    state = world.server.state_of(KEY)
    assert state is not None
    assert world.server.open().forget_flow(KEY, "a", flow.instance, state_token=state.token)
    world.now_s += 1.0
    coordinator.step()
    assert not world.state().flows["a"].bound


def test_what_is_remembered_of_a_forgotten_flow_is_forgotten_with_it() -> None:
    world = World(partitions=1)
    coordinator = world.coordinator()
    world.flow("a")
    world.settle()
    standby = world.flow("b")
    world.settle()
    standby.die()
    while "b" in world.state().flows:
        coordinator.runtime._records = None  # so that they were just read when the flow expires
        world.run(0.25)
    # Something else makes the leader look in full, before it reads the records again.
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
    successor = world.server.open()
    kept: list[bool] = []

    def replaced(verb: str) -> None:
        if verb == "forget_flow" and not kept:
            state = world.server.state_of(KEY)
            assert state is not None
            kept.append(True)
            successor.swap_state(KEY, state.body, token="successor", expected=state.token)
        elif verb == "renew_lease" and len(kept) == 1:
            kept.append("b" in world.server.records_of(KEY))

    coordinator.faults.hook = replaced
    world.run(SESSION_S * 3)
    assert kept == [True, True]
    assert "b" not in world.server.records_of(KEY), "forgotten under the state as it is by now"


def test_a_flow_of_a_former_queue_is_not_taken_in() -> None:
    """Its record lies under the same names, and it lives."""
    world = World(partitions=2)
    world.coordinator()
    flow = world.flow("a")
    world.settle()
    store = world.server.open()
    former = FlowRecord(
        flow="b",
        instance="b1",
        queue_id="former",
        incarnation=store.incarnation(),
        bound=True,
        session_timeout_s=SESSION_S,
        mapping={},
        deliveries={},
    )
    store.bind(KEY, former, replaces=None)
    world.run(5)
    assert world.state().flows.keys() == {"a"}
    assert world.counts() == {flow.name: 2}


def test_so_many_fences_at_once_leave_time_for_the_lease() -> None:
    world = World(partitions=600, config=AT_ONCE)
    coordinator = world.coordinator()
    world.flow("a")
    calls: list[str] = []
    coordinator.faults.hook = calls.append
    for _ in range(10):
        coordinator.step()
    assert world.counts() == {"a": 600}
    since, most = 0, 0
    for call in calls:
        since = 0 if call == "renew_lease" else since + (call == "objects.swap")
        most = max(most, since)
    assert 0 < most <= 250


def test_who_hears_late_that_a_store_was_restarted_does_not_ask_again() -> None:
    """Each of many groups hears of it; one of them asks."""
    life = StoreLife(World().server.open())
    before = life.ask()
    life.lost("an earlier one")
    assert life.value == before
    life.lost(before)
    assert life.value is None


def test_a_store_that_gets_its_id_is_the_one_that_it_was() -> None:
    world = World()
    life = StoreLife(world.server.open())
    before = life.ask()
    life.look_at(world.objects)
    store_id(world.objects)
    for _ in range(2):
        life.look_at(world.objects)
        assert life.value == before
    world.objects.delete(NAME)
    store_id(world.objects)
    life.look_at(world.objects)
    assert life.value is None, "it was removed and made anew"
