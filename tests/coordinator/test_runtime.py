"""One group's leaders, step by step: none acts on what it knew before, and what a leader takes for true when it adopts
a group is what is there now. What is shown of whole processes (two leaders, stores that forget, kills between calls)
is in `tests/scenarios/test_coordination.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator import runtime as runtime_module
from coordinator.bookkeeping import UNNAMED_S
from coordinator.core.actions import Action
from coordinator.core.events import Event, FlowBound
from coordinator.core.machine import decide
from coordinator.heads import group_facts
from partq_spark.base.errors import Corrupt, Fenced, Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.codec import encode_state
from partq_spark.group.documents.memory import Stored
from partq_spark.group.model import GroupState, Owner, Phase, RebalanceStatus
from partq_spark.group.ownership import StateDocument
from partq_spark.log import admin
from partq_spark.log.model import QueueConfig
from partq_spark.objects.api import Document
from tests.coordinator.runtimes import KEY, SESSION_S, HandFlow, World, two_flows

AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0)
DELAY_S = 5.0


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def shared() -> tuple[World, HandFlow, HandFlow]:
    """Two flows that share a queue, with messages in hand."""
    world, a, b = two_flows(delay_s=DELAY_S)
    for flow in (a, b):
        for number in flow.mapping():
            assert flow.deliver(number, 100)
            flow.acknowledge(number, 60)
    return world, a, b


def test_a_decision_that_did_not_hold_is_not_told() -> None:
    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    only = world.coordinator()
    world.settle()
    world.flow("a")
    only.at("swap_state", raising(Unavailable("lost")))
    world.log.clear()
    only.step()
    assert [event for level, event, _ in world.log if level == "info"] == []
    world.settle()
    assert len(world.log.of("flow_bound")) == 1
    decisions = {"status", "fence", "assign", "flow_bound"}
    assert all(facts.get("reason") for _, event, facts in world.log if event in decisions)


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
    world = World(partitions=2, config=AT_ONCE)
    world.published(1000)
    admin.create_group(world.queue, "other", (0, 0))
    first = world.coordinator("c1")
    second = world.coordinator("c1", group="other", beside=first)
    a = world.flow("a")
    first.step()
    second.step()
    old = world.server.snapshot()
    for number in (0, 1):
        assert a.deliver(number, 500)
    a.unbind()
    world.flow("b")
    reads: list[str] = []

    def restart(verb: str) -> None:
        reads.extend([verb] if verb == "read_flows" else [])
        if verb == "read_flows" and len(reads) == 2:  # the one before the fences
            del first.hook
            world.server.restore(old)
            for _ in range(2):
                assert second.runtime.step(second.facts()) <= 1.0

    first.hook = restart
    first.step()
    assert len(reads) == 2
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


def test_what_a_damaged_checkpoint_hid_is_seen_when_it_is_repaired() -> None:
    """It was rewound while nobody could read it."""
    world, a, _ = two_flows(delay_s=DELAY_S)
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    number = min(a.mapping())
    name = checkpoints.name_of(number)

    def swapped(change: dict[str, str]) -> dict[str, str]:
        found = world.objects.load(name)
        assert isinstance(found, Document)
        world.objects.swap(name, {**found.metadata, **change}, expected=found.etag)
        return dict(found.metadata)

    was = swapped({"epoch": "x"})
    admin.count_rewind(world.queue, KEY.group)
    world.run(2)
    (told,) = world.log.of("checkpoint_damaged")
    assert told["partition"] == number
    swapped(was)
    checkpoints.rewind(number, 0, fence=True, delivered=0)
    world.run(10)
    assert [facts["partition"] for facts in world.log.of("checkpoint_repaired")] == [number]
    assert world.counts() == {"a": 2, "b": 2}
    assert world.checkpoints()[number].epoch > 2


def test_a_flow_of_a_former_queue_is_not_taken_in_nor_one_whose_record_is_gone_kept() -> None:
    """The former one's record lies under the same names, and it lives. The other one binds anew if it lives."""
    world = World(partitions=2)
    coordinator = world.coordinator()
    flow = world.flow("a")
    world.settle()
    store = world.server.open()
    (record,) = store.read_flows(KEY).values()
    store.bind(KEY, replace(record, flow="b", instance="b1", queue_id="former", mapping={}), replaces=None)
    world.run(5)
    assert [*world.state().flows] == ["a"]
    state = world.server.state_of(KEY)
    assert state is not None
    assert store.forget_flow(KEY, "a", flow.instance, state_token=state.token)
    flow.die()
    world.now_s += 1.0
    coordinator.step()
    assert not world.state().flows["a"].bound


def test_records_of_a_former_life_of_the_store_are_removed_and_ownership_follows_the_state() -> None:
    world = World(partitions=2)
    world.coordinator()
    flow = world.flow("a")
    world.settle()

    def owned() -> list[tuple[Owner | None, int]]:
        return [(each.owner, each.epoch) for _, each in sorted(world.server.open().list_ownership(KEY).items())]

    assert owned() == [(flow.owner, 1)] * 2
    flow.die()
    world.server.incarnation = "another"
    world.settle()
    world.run(SESSION_S * 2 + 10)
    assert world.server.open().read_flows(KEY) == {}
    assert world.state().flows == {}
    assert owned() == [(None, 2)] * 2


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
    after = world.server.state_of(KEY)
    assert after is not None
    assert after.token != "somebody", "from now on that one's swaps fail"
