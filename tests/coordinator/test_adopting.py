"""What a leader takes for true when it adopts a group: what is there now, and nothing of a former life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator import runtime as runtime_module
from coordinator.bookkeeping import UNNAMED_S
from coordinator.core.actions import Action
from coordinator.core.events import Event, FlowBound
from coordinator.core.machine import decide
from coordinator.heads import group_facts
from coordinator.leadership import StoreLife
from coordinator.observe import Validity, drained
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.group import lifecycle
from partq_spark.group.codec import encode_state
from partq_spark.group.documents.memory import Stored
from partq_spark.group.model import GroupKey, GroupState, Owner, Phase, RebalanceStatus
from partq_spark.group.ownership import StateDocument
from partq_spark.log import admin
from partq_spark.log.model import QueueConfig
from tests.coordinator.runtimes import KEY, SESSION_S, HandFlow, World, two_flows

DELAY_S = 5.0


def shared() -> tuple[World, HandFlow, HandFlow]:
    """Two flows that share a queue, with messages in hand."""
    world, a, b = two_flows(delay_s=DELAY_S)
    for flow in (a, b):
        for number in flow.mapping():
            assert flow.deliver(number, 100)
            flow.acknowledge(number, 60)
    return world, a, b


# --- the queue and its group ------------------------------------------------------------------------------------------


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


def test_a_queue_that_was_made_again_begins_anew_and_its_epochs_continue() -> None:
    world = World(partitions=2)
    world.coordinator()
    a = world.flow("a")
    world.settle()
    a.deliver(0, 500)
    world.altered(lambda head: replace(head, queue_id="0123456789abcdef"))
    world.settle()
    assert world.state().queue_id == "0123456789abcdef"
    assert world.owners() == {0: None, 1: None}
    assert world.server.open().read_flows(KEY) == {}, "records of the former queue are removed"
    world.flows = []
    b = world.flow("b")
    world.settle()
    assert [(each.owner, each.epoch, each.offset, each.redelivered_below) for each in world.checkpoints().values()] == [
        (b.owner, 2, 0, 0)
    ] * 2


def test_a_leader_with_an_old_look_begins_a_group_that_was_made_again_at_its_own_start() -> None:
    """Where the former group began is no place to begin: messages would come that nobody asked for, or be left out.
    What it writes until it looks again counts for nothing.
    """
    world = World(partitions=2)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.run(2)
    a.unbind()
    world.run(30)
    assert {each.owner for each in world.checkpoints().values()} == {None}
    old = coordinator.facts()
    lifecycle.remove(world.queue, lifecycle.remains(world.queue, KEY.group, None), None)
    admin.create_group(world.queue, KEY.group, [7, 7])
    coordinator.facts = lambda: old  # type: ignore[method-assign]
    b = world.flow("b")
    world.run(5)
    assert {each.offset for each in world.checkpoints().values()} == {None}
    del coordinator.facts
    world.run(30)
    assert {(each.owner, each.offset) for each in world.checkpoints().values()} == {(b.owner, 7)}


def test_a_group_that_is_gone_is_not_adopted() -> None:
    world = World()
    coordinator = world.coordinator()
    world.flow("a")
    head = world.queue.refresh()

    def facts_now() -> None:
        raise Invalid("queue or group was deleted")

    coordinator.runtime._facts_now = facts_now  # type: ignore[assignment] # as the heads say it
    with pytest.raises(Invalid, match="was deleted"):
        coordinator.runtime.step(group_facts(head, head.groups[KEY.group]))
    assert world.server.open().read_state(KEY) is None


def test_a_group_that_no_flow_has_joined_is_left_to_the_query_that_has_it_alone() -> None:
    """`ownership=none`: such a query fences for itself, and a coordinator of the same namespace must not end it."""
    world = World(partitions=2)
    alone = Owner("alone", "i1")
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    for partition in (0, 1):
        checkpoints.fence(partition, to=alone, epoch=1, start=0, delivered=None)
    world.coordinator()
    world.run(60)  # longer than anybody is waited for
    assert {each.owner for each in world.checkpoints().values()} == {alone}
    # A flow that joins by this store takes over, above that query's epoch, and what that delivered is marked.
    world.published(9)
    flow = world.flow("a")
    world.run(30)  # nobody here knows whether it lives: it is waited for as for a flow whose record was lost
    marks = world.checkpoints()
    assert {each.owner for each in marks.values()} == {flow.owner}
    assert all(each.epoch > 1 and each.redelivered_below == 9 for each in marks.values())
    # Once it has left, another query may have the group alone again, and a new leader leaves it at that.
    flow.unbind()
    world.run(30)
    assert {each.owner for each in world.checkpoints().values()} == {None}
    for partition, mark in world.checkpoints().items():
        checkpoints.fence(partition, to=alone, epoch=mark.epoch + 1, start=0, delivered=None)
    world.coordinators[0].stopped = True
    world.coordinator("c2")
    world.run(60)
    assert world.coordinators[1].runtime.leading
    assert {each.owner for each in world.checkpoints().values()} == {alone}


def test_records_that_were_read_across_a_restart_are_not_used() -> None:
    """Two groups share a connection. The store is restarted with an old copy while one of them reads its records, and
    the other one has acknowledged the restart: the store then answers the first without a word.
    """
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0))
    world.published(1000)
    other = GroupKey("default", "orders", "other")
    admin.create_group(world.queue, other.group, (0, 0))
    ownership = world.server.open()
    life = StoreLife(ownership)
    runtimes = [
        GroupRuntime(
            key,
            store=ownership,
            life=life,
            checkpoints=lambda _, key=key: lifecycle.checkpoints_of(world.queue, key.group),  # type: ignore[misc]
            ends=lambda queue_id: world.queue.require(queue_id).next,
            settings=Settings(name="c1"),
            effects=world.effects(),
            log=world.log,
        )
        for key in (KEY, other)
    ]
    head = world.queue.refresh()
    facts = [group_facts(head, head.groups[key.group]) for key in (KEY, other)]
    a = world.flow("a")
    for runtime, each in zip(runtimes, facts, strict=True):
        runtime.step(each)
    old = world.server.snapshot()
    for number in (0, 1):
        assert a.deliver(number, 500)
    a.unbind()
    world.flow("b")
    reads = 0

    def restart(verb: str) -> None:
        nonlocal reads
        reads += verb == "read_flows"
        if verb == "read_flows" and reads == 2:  # the one before the fences
            world.server.before = lambda _: None
            world.server.restore(old)
            assert runtimes[1].step(facts[1]) < 1.0
            runtimes[1].step(facts[1])

    world.server.before = restart
    runtimes[0].step(facts[0])
    assert reads == 2
    assert {each.owner for each in world.checkpoints().values()} == {a.owner}, "nothing was fenced by an old copy"


def test_a_state_against_the_invariants_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(partitions=2)
    coordinator = world.coordinator()

    def wrong(state: GroupState, event: Event, now_s: float) -> tuple[GroupState, tuple[Action, ...]]:
        after, actions = decide(state, event, now_s)
        if isinstance(event, FlowBound):
            partitions = {number: replace(each, phase=Phase.OWNED) for number, each in after.partitions.items()}
            after = replace(after, partitions=partitions)
        return after, actions

    monkeypatch.setattr(runtime_module, "decide", wrong)
    world.flow("a")
    world.run(10)
    assert world.owners() == {0: None, 1: None}
    assert world.checkpoints() == {}, "nothing was done about it either"
    assert "partition 0 is owned" in str(world.log.of("state_refused")[0]["reason"])
    assert max(coordinator.step() for _ in range(20)) > 1.0, "with growing pauses"
    monkeypatch.undo()
    world.run(6)
    assert world.counts() == {"a": 2}


# --- the ownership store loses all, or jumps back in time -------------------------------------------------------------


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["flush", "restart_empty", "restart"])
def test_flows_that_come_back_keep_everything(how: str) -> None:
    world, a, b = shared()
    mappings = {flow: flow.mapping() for flow in (a, b)}
    before, told = world.checkpoints(), len(world.log.of("pause"))
    if how == "restart":  # nothing is lost but the reports since
        world.server.incarnation = "another life"
    else:
        getattr(world.server, how)()
    for flow, mapping in mappings.items():
        flow.rebind(mapping)
    world.run(3)
    assert {flow: flow.mapping() for flow in (a, b)} == mappings, "the same epochs"
    assert world.state().status is RebalanceStatus.READY
    assert world.state().incarnation == world.server.incarnation
    assert len(world.log.of("pause")) == told
    after = world.checkpoints()
    assert {n: (c.epoch, c.offset) for n, c in after.items()} == {n: (c.epoch, c.offset) for n, c in before.items()}
    assert {each.redelivered_below for each in after.values()} == {100}, "they said themselves what they delivered"


@pytest.mark.conformance("OWN-03")
def test_partitions_of_flows_that_do_not_come_back_are_marked_to_the_logs_end() -> None:
    """One of them was rewound, which its owner did not know yet, and the store forgets who that was."""
    world, a, b = shared()
    lost, mapping = set(b.mapping()), a.mapping()
    lifecycle.checkpoints_of(world.queue, KEY.group).rewind(min(lost), 10, fence=True, delivered=100)
    assert b.deliver(min(lost), 900)
    world.server.flush()
    b.die()
    a.rebind(mapping)
    world.settle()
    assert world.state().status is RebalanceStatus.HOLDDOWN
    world.run(SESSION_S + DELAY_S - 1)
    assert [world.owners()[n] for n in sorted(lost)] == [None, "b"], "they have their session timeout and the delay"
    world.run(3)
    assert world.counts() == {"a": 4}
    after = world.checkpoints()
    assert [(after[n].offset, after[n].redelivered_below) for n in sorted(lost)] == [(10, 1000), (60, 1000)]


@pytest.mark.conformance("OWN-04")
@pytest.mark.parametrize("lives", [True, False], ids=["both live", "one is gone"])
def test_a_store_that_jumps_back_is_noticed_by_the_checkpoints(lives: bool) -> None:
    """By the old copy a partition is a's, by its checkpoint it is b's."""
    world, a, b = shared()
    old = world.server.snapshot()
    before = {number: each.epoch for number, each in world.checkpoints().items()}
    a.unbind()
    world.run(DELAY_S + 5)
    assert world.counts() == {"b": 4}
    for number in b.mapping():
        assert b.deliver(number, 300)
    if lives:
        a = world.flow("a")
        world.run(DELAY_S + 3)
        assert world.counts() == {"a": 2, "b": 2}
    epochs = {number: each.epoch for number, each in world.checkpoints().items()}
    moved = [number for number in range(4) if epochs[number] > before[number]]
    mappings: Mapping[HandFlow, dict[int, int]] = {flow: flow.mapping() for flow in ((a, b) if lives else (b,))}
    world.server.restore(old)
    for flow, mapping in mappings.items():
        flow.rebind(mapping)
    world.settle()
    assert [each["partition"] for each in world.log.of("checkpoint_ahead")] == moved
    world.run(3 if lives else SESSION_S + DELAY_S + 10)
    assert sum(world.counts().values()) == 4, "state and checkpoints agree, long before a session timeout"
    after = world.checkpoints()
    for number in moved:
        assert after[number].epoch > epochs[number], "above the one that the state had forgotten"
        assert after[number].redelivered_below == 1000, "nobody knows what was delivered there"


def test_what_an_old_copy_says_of_deliveries_is_not_believed() -> None:
    """A flow's record in the copy has less than it delivered. It is gone, so that nobody corrects the record."""
    world, a, b = shared()
    (number, *_) = b.mapping()
    old = world.server.snapshot()
    assert b.deliver(number, 900)
    b.die()
    mapping = a.mapping()
    world.server.restore(old)
    a.rebind(mapping)
    world.run(SESSION_S * 2 + DELAY_S + 3)
    assert world.counts() == {"a": 4}
    assert world.checkpoints()[number].redelivered_below == 1000


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("harm", ["cut off", "impossible", "not of partq"])
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
    if harm == "not of partq":
        world.server.groups[KEY]["state"] = Stored(world.token(), b'[{"token":"t', world.now_s)
        for flow in (a, b):
            assert flow.store.beat(KEY, flow.name, flow.instance), "heartbeats go on, or leases would end"
    else:
        store.swap_state(KEY, body if harm == "impossible" else body[:-9], token="harmed", expected=document.token)
    world.settle()
    (told,) = (facts for level, event, facts in world.log if event == "group_adopted" and level == "error")
    assert "begins anew with the checkpoints" in str(told["reason"])
    for flow, mapping in mappings.items():
        flow.rebind(mapping)
    world.settle()
    assert {flow: flow.mapping() for flow in (a, b)} == mappings
    assert world.state().status is RebalanceStatus.READY


# --- the store loses one record ---------------------------------------------------------------------------------------


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
    world.server.lose_flow(KEY, b.name)  # nobody is told; then a process without memory binds under the name
    b.deliveries = {}
    b.bind({})
    assert not is_drained()
    state = replace(state, partitions={**state.partitions, number: replace(pause, owner=b.owner)})
    assert is_drained(), "this instance has nothing"


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["lost", "lost beside a former one", "damaged", "removed as nobody's"])
def test_a_flow_whose_record_is_gone_before_it_was_taken_in_binds_anew(how: str) -> None:
    """It only beats, because it has nothing to deliver; so its heartbeat is what must fail."""
    world, _, b = shared()
    group = world.server.groups[KEY]
    flow = b if how == "lost beside a former one" else HandFlow(world, "c")
    mapping = b.mapping() if flow is b else {}
    b.beats = flow is not b  # it beats below
    flow.bind(mapping)
    flow.beats = False
    name = f"flows/{flow.name}/{flow.instance}"
    if how == "damaged":
        group[name] = group[name]._replace(value=b"{}", token=world.token())
        with pytest.raises(Corrupt, match=name):
            world.coordinators[0].step()
    if how == "removed as nobody's":  # its bind took too long: then its heartbeat comes
        heart = group.pop(f"beats/{flow.name}")
        world.coordinators[0].runtime.release()
        world.run(UNNAMED_S + 5)
        assert name not in group
        group[f"beats/{flow.name}"] = heart
    else:
        del group[name]
    for _ in range(5):
        world.run(1)
        try:
            flow.store.beat(KEY, flow.name, flow.instance)
        except Fenced:
            break
    assert not [each for each in group if each.endswith(f"/{flow.name}")], "nothing is left of it"
    flow.rebind(mapping)
    world.run(1)
    assert world.state().flows[flow.name].instance == flow.instance
    assert b.mapping() == mapping or flow is not b


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
