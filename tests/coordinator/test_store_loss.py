"""The ownership store loses everything, or jumps back in time: the checkpoints decide, and it heals by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.bookkeeping import UNNAMED_S
from coordinator.observe import Validity, drained
from partq_spark.base.errors import Corrupt, Fenced
from partq_spark.group import lifecycle
from partq_spark.group.codec import encode_state
from partq_spark.group.documents.memory import Stored
from partq_spark.group.model import Phase, RebalanceStatus
from partq_spark.group.ownership import StateDocument
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, SESSION_S, HandFlow, World, two_flows

DELAY_S = 5.0


def shared(partitions: int = 4) -> tuple[World, HandFlow, HandFlow]:
    """Two flows that share a queue, with messages in hand."""
    world = World(partitions=partitions, config=QueueConfig(rebalance_delay_s=DELAY_S, max_handoff_time_s=2.0))
    a, b = two_flows(world, DELAY_S)
    for flow in (a, b):
        for number in flow.mapping():
            assert flow.deliver(number, 100)
            flow.acknowledge(number, 60)
    return world, a, b


def bind_again(flow: HandFlow, mapping: dict[int, int]) -> None:
    """What a session does when the store tells it that its record is gone or may be: a new instance, its own memory."""
    flow.store = flow.world.server.open()
    flow.bind(mapping)


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["flush", "restart_empty"])
def test_flows_that_come_back_keep_everything(how: str) -> None:
    world, a, b = shared()
    mappings = {flow: flow.mapping() for flow in (a, b)}
    before = world.checkpoints()
    getattr(world.server, how)()
    for flow, mapping in mappings.items():
        bind_again(flow, mapping)
    world.settle()
    assert {flow: flow.mapping() for flow in (a, b)} == mappings, "the same epochs"
    assert world.state().status is RebalanceStatus.READY
    after = world.checkpoints()
    assert {n: (c.epoch, c.offset) for n, c in after.items()} == {n: (c.epoch, c.offset) for n, c in before.items()}
    # They said themselves what they have delivered.
    assert {each.redelivered_below for each in after.values()} == {100}


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["flush", "restart_empty"])
def test_partitions_of_flows_that_do_not_come_back_are_marked_to_the_logs_end(how: str) -> None:
    world, a, b = shared()
    lost = set(b.mapping())
    mapping = a.mapping()
    getattr(world.server, how)()
    b.die()
    bind_again(a, mapping)
    world.settle()
    assert world.counts() == {"a": 2, "b": 2}
    assert world.state().status is RebalanceStatus.HOLDDOWN
    world.run(SESSION_S + DELAY_S - 1)
    assert world.counts() == {"a": 2, "b": 2}, "they have a session timeout and the delay to come back"
    world.run(3)
    assert world.counts() == {"a": 4}
    after = world.checkpoints()
    for number in lost:
        assert (after[number].offset, after[number].redelivered_below, after[number].epoch) == (60, 1000, 3)


@pytest.mark.conformance("OWN-04")
def test_a_store_that_jumps_back_is_noticed_by_the_checkpoints() -> None:
    world, a, b = shared()
    old = world.server.snapshot()
    before = {number: each.epoch for number, each in world.checkpoints().items()}
    # After the copy everything goes to b.
    a.unbind()
    world.run(DELAY_S + 5)
    assert world.counts() == {"b": 4}
    epochs = {number: each.epoch for number, each in world.checkpoints().items()}
    moved = [number for number in range(4) if epochs[number] > before[number]]
    for number in b.mapping():
        b.deliver(number, 300)
    mapping = b.mapping()
    world.server.restore(old)
    bind_again(b, mapping)
    world.run(SESSION_S + DELAY_S + 10)
    assert world.counts() == {"b": 4}
    assert len(world.log.of("checkpoint_ahead")) == len(moved)
    after = world.checkpoints()
    for number in moved:
        assert after[number].epoch > epochs[number], "a new epoch above the one that the state had forgotten"
        assert after[number].redelivered_below == 1000, "nobody knows what was delivered there"


def test_a_store_that_was_restarted_and_lost_nothing_costs_no_handoff() -> None:
    world, a, b = shared()
    mappings = {flow: flow.mapping() for flow in (a, b)}
    told = len(world.log.of("pause"))
    world.server.incarnation = "another life"
    for flow, mapping in mappings.items():
        bind_again(flow, mapping)
    world.run(3)
    assert {flow: flow.mapping() for flow in (a, b)} == mappings
    assert len(world.log.of("pause")) == told
    assert world.state().incarnation == "another life"


def test_what_an_old_copy_says_of_deliveries_is_not_believed() -> None:
    """A flow's record in the copy has less than it delivered. It is gone, so that nobody corrects the record."""
    world, a, b = shared()
    (number, *_) = b.mapping()
    old = world.server.snapshot()
    assert b.deliver(number, 900)
    b.die()
    mapping = a.mapping()
    world.server.restore(old)
    bind_again(a, mapping)
    world.run(SESSION_S * 2 + DELAY_S + 3)
    assert world.counts() == {"a": 4}
    assert world.checkpoints()[number].redelivered_below == 1000


def test_a_checkpoint_that_is_ahead_is_found_by_the_fence_itself() -> None:
    """Somebody rewound the checkpoint by hand: its epoch is one that the state does not know."""
    world, a, _ = shared()
    number = min(a.mapping())
    lifecycle.checkpoints_of(world.queue, KEY.group).rewind(number, 10, fence=True, delivered=100)
    a.unbind()
    world.run(DELAY_S + 5)
    assert world.counts() == {"b": 4}
    after = world.checkpoints()[number]
    assert after.offset == 10
    assert after.redelivered_below == 1000
    assert world.state().partitions[number].phase is Phase.OWNED


def test_what_was_delivered_between_a_rewind_and_the_loss_of_the_store_is_marked() -> None:
    """The owner did not know yet that it was rewound, and the store forgets who it was."""
    world, a, b = shared()
    number = min(a.mapping())
    lifecycle.checkpoints_of(world.queue, KEY.group).rewind(number, 10, fence=True, delivered=100)
    assert a.deliver(number, 900)
    world.server.flush()
    a.die()
    b.die()
    world.flow("c")
    world.run(SESSION_S * 2 + DELAY_S + 5)
    after = world.checkpoints()[number]
    assert after.owner is not None
    assert (after.offset, after.redelivered_below) == (10, 1000)


@pytest.mark.conformance("OWN-04")
def test_after_a_jump_back_nobody_waits_for_a_flow_to_leave() -> None:
    """By the old copy a partition is a's, by its checkpoint it is b's, and both live: neither could deliver it."""
    world, a, b = shared()
    old = world.server.snapshot()
    number = min(a.mapping())
    a.unbind()
    world.run(DELAY_S + 3)
    assert world.counts() == {"b": 4}
    a = world.flow("a")
    world.run(DELAY_S + 3)
    assert world.counts() == {"a": 2, "b": 2}
    mappings = {flow: flow.mapping() for flow in (a, b)}
    world.server.restore(old)
    for flow, mapping in mappings.items():
        bind_again(flow, mapping)
    world.settle()
    assert world.log.of("checkpoint_ahead")
    world.run(3)
    assert sum(world.counts().values()) == 4, "state and checkpoints agree again, long before a session timeout"
    assert world.state().partitions[number].epoch > 1


@pytest.mark.parametrize("harm", ["unreadable", "impossible"])
def test_a_state_that_cannot_be_used_is_made_anew_from_the_checkpoints(harm: str) -> None:
    world, a, b = shared()
    mappings = {flow: flow.mapping() for flow in (a, b)}
    state = world.state()
    number = min(a.mapping())
    nobodys = replace(state.partitions[number], owner=None)
    body = encode_state(replace(state, partitions={**state.partitions, number: nobodys}), world.now_s)
    store = world.server.open()
    document = store.read_state(KEY)
    assert isinstance(document, StateDocument)
    store.swap_state(KEY, body if harm == "impossible" else body[:-9], token="harmed", expected=document.token)
    world.settle()
    told = [facts["reason"] for level, event, facts in world.log.lines if event == "group_adopted" and level == "error"]
    assert len(told) == 1
    assert "begins anew with the checkpoints" in str(told[0])
    for flow, mapping in mappings.items():
        bind_again(flow, mapping)
    world.settle()
    assert {flow: flow.mapping() for flow in (a, b)} == mappings
    assert world.state().status is RebalanceStatus.READY


def began_anew(world: World, flow: HandFlow) -> None:
    """The store lost the flow's record and told nobody; then a process without memory binds under the name."""
    world.server.lose_flow(KEY, flow.name)
    flow.deliveries = {}
    flow.bind({})


@pytest.mark.conformance("OWN-04")
def test_a_record_that_began_anew_does_not_say_that_nothing_was_delivered() -> None:
    world, _, b = shared()
    mine = set(b.mapping())
    former = b.owner
    began_anew(world, b)
    world.run(SESSION_S + DELAY_S + 5)
    assert former not in {each.owner for each in world.state().partitions.values()}
    after = world.checkpoints()
    assert {after[number].redelivered_below for number in mine} == {1000}


def test_a_record_that_went_on_says_that_nothing_was_delivered() -> None:
    """The flow was given its partitions and started again before it had claimed them."""
    world = World(config=QueueConfig(rebalance_delay_s=DELAY_S))
    world.coordinator()
    world.published(1000)
    a = world.flow("a")
    world.settle()
    mapping = a.mapping()
    a.unbind()
    a.bind({})
    a.unbind()
    a.bind(mapping)
    world.settle()
    assert a.mapping() == mapping
    assert {each.redelivered_below for each in world.checkpoints().values()} == {0}


def test_a_paused_partition_is_drained_only_by_its_owners_record() -> None:
    world, a, b = shared()
    validity = Validity(queue_id=world.queue.head.queue_id, incarnation=world.server.incarnation)
    state = world.state()
    number = min(b.mapping())
    pause = replace(state.partitions[number], phase=Phase.PAUSED, to=a.owner, deadline_s=world.now_s + 1)
    state = replace(state, partitions={**state.partitions, number: pause})

    def is_drained() -> bool:
        return bool(list(drained(state, world.server.records_of(KEY), validity)))

    assert not is_drained(), "it has 40 messages in hand"
    began_anew(world, b)
    assert not is_drained()
    state = replace(state, partitions={**state.partitions, number: replace(pause, owner=b.owner)})
    assert is_drained(), "this instance has nothing"


def lose_record(flow: HandFlow) -> None:
    """Its heartbeat stays, and nobody tells the flow."""
    del flow.world.server.groups[KEY][f"flows/{flow.name}/{flow.instance}"]


def beats_until_fenced(flow: HandFlow, *, most_s: int = 5) -> None:
    """Time passes, a heartbeat each second, until one is refused."""
    for _ in range(most_s):
        flow.world.run(1)
        try:
            flow.store.beat(KEY, flow.name, flow.instance)
        except Fenced:
            return
    pytest.fail(f"{flow.name} beats on, and nobody takes it in")


@pytest.mark.conformance("OWN-03")
def test_a_flow_whose_record_is_lost_before_it_was_taken_in_binds_anew() -> None:
    """It only beats, because it has nothing to deliver; so its heartbeat is what must fail."""
    world, a, b = shared()
    c = HandFlow(world, "c")
    c.bind({})
    lose_record(c)
    beats_until_fenced(c)
    assert not [name for name in world.server.groups[KEY] if name.endswith("/c")], "nothing is left of it"
    bind_again(c, {})
    world.run(1)
    assert set(world.state().flows) == {"a", "b", "c"}
    assert (len(a.mapping()), len(b.mapping())) == (2, 2)


@pytest.mark.conformance("OWN-03")
def test_an_instance_whose_record_is_lost_binds_anew_while_the_group_has_a_former_one() -> None:
    world, _, b = shared()
    mapping = b.mapping()
    b.die()
    b.bind(mapping)
    lose_record(b)
    b.die()  # it beats below
    beats_until_fenced(b)
    bind_again(b, mapping)
    world.run(1)
    assert b.mapping() == mapping
    assert world.state().flows["b"].instance == b.instance


@pytest.mark.conformance("OWN-03")
def test_a_damaged_record_that_a_person_removes_costs_a_bind_and_nothing_else() -> None:
    world, *_ = shared()
    (coordinator,) = world.coordinators
    c, d = HandFlow(world, "c"), HandFlow(world, "d")
    c.bind({})
    group, name = world.server.groups[KEY], f"flows/c/{c.instance}"
    group[name] = group[name]._replace(value=b"{}", token=world.token())
    d.bind({})
    with pytest.raises(Corrupt, match=name):
        coordinator.step()
    lose_record(c)
    beats_until_fenced(c)
    bind_again(c, {})
    world.run(1)
    assert set(world.state().flows) == {"a", "b", "c", "d"}


@pytest.mark.conformance("OWN-03")
def test_a_state_that_is_nothing_that_partq_wrote_begins_anew_with_the_checkpoints() -> None:
    """Also for flows: their heartbeats go on, or their leases would end."""
    world, a, b = shared()
    mappings = {flow: flow.mapping() for flow in (a, b)}
    world.server.groups[KEY]["state"] = Stored(world.token(), b'[{"token":"t', world.now_s)
    for flow in (a, b):
        assert flow.store.beat(KEY, flow.name, flow.instance) not in (None, "")
    world.run(2)
    assert {flow: flow.mapping() for flow in (a, b)} == mappings, "the same epochs"
    assert any("could not be read" in str(facts["reason"]) for facts in world.log.of("group_adopted"))


def test_records_that_no_heartbeat_names_are_removed_once_in_a_term() -> None:
    """A bind that did not come to its end left one, and another was left where the heartbeat was evicted."""
    world, a, b = shared()
    group = world.server.groups[KEY]
    (own,) = (name for name in group if name.startswith("flows/a/"))
    half, evicted = "flows/c/0123456789abcdef", "flows/d/0123456789abcdef"
    group[half] = group[evicted] = group[own]
    world.coordinators[0].runtime.release()
    world.run(3)
    group["flows/e/0123456789abcdef"] = group[own]  # a bind that is under way at the second look
    assert {half, evicted} <= set(group), "one look is no look: a bind may be under way"
    world.run(UNNAMED_S + 1)
    assert {name for name in group if name.startswith("flows/")} == {
        f"flows/a/{a.instance}",
        f"flows/b/{b.instance}",
        "flows/e/0123456789abcdef",
    }
    assert (len(a.mapping()), len(b.mapping())) == (2, 2)


def test_a_bind_that_took_too_long_is_bound_anew() -> None:
    """Its record was removed for nobody's, and then its heartbeat came."""
    world, *_ = shared()
    c = HandFlow(world, "c")
    c.bind({})
    group = world.server.groups[KEY]
    heart = group.pop("beats/c")
    world.coordinators[0].runtime.release()
    world.run(UNNAMED_S + 5)
    assert not [name for name in group if name.startswith("flows/c/")]
    group["beats/c"] = heart
    beats_until_fenced(c)
    bind_again(c, {})
    world.run(1)
    assert set(world.state().flows) == {"a", "b", "c"}
