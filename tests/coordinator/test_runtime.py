"""One group's leaders, step by step: what a leader tells and bounds, that it does not act on what it knew before, and
what queue heads and checkpoints tell it. Whole processes (two leaders, stores that forget, kills between calls) are in
`tests/world` and `tests/scenarios/test_coordination.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from coordinator import runtime as runtime_module
from coordinator.core.events import Event, FlowBound, Told
from coordinator.core.machine import decide
from coordinator.heads import Heads, group_facts
from coordinator.reconciliation import RemovedPartitions
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import encode_state
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import GroupState, Owner, Phase, RebalanceStatus
from partq_spark.log import groups
from partq_spark.log.layouts import resized
from partq_spark.log.settings import QueueConfig
from partq_spark.objects.api import Document
from tests.coordinator.runtimes import KEY, SESSION_S, World, two_flows
from tests.support.way import Hooked

AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=0.0)

# --- what it tells, and its bounds ------------------------------------------------------------------------------------


def test_a_decision_that_did_not_hold_is_not_told() -> None:
    def lost(*_: object, **__: object) -> str:
        raise Unavailable("lost")

    world = World(config=QueueConfig(rebalance_delay_s=0.0))
    only = world.coordinator()
    world.settle()
    world.flow("a")
    world.log.all.clear()
    with pytest.MonkeyPatch.context() as away:
        away.setattr(only.ownership, "swap_state", lost)
        only.step()
    assert [event for level, event, _ in world.log.all if level == "info"] == []
    world.settle()
    assert len(world.log.of("flow_bound")) == 1
    assert all(facts.get("reason") for event in ("status", "fence", "assign") for facts in world.log.of(event))


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


def test_a_state_against_the_invariants_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(partitions=2)
    coordinator = world.coordinator()

    def wrong(state: GroupState, event: Event, now_s: float) -> tuple[GroupState, tuple[Told, ...]]:
        after, told = decide(state, event, now_s)
        if isinstance(event, FlowBound):
            partitions = {number: replace(each, phase=Phase.OWNED) for number, each in after.partitions.items()}
            after = replace(after, partitions=partitions)
        return after, told

    monkeypatch.setattr(runtime_module, "decide", wrong)
    world.flow("a")
    world.run(10)
    assert world.counts() == {"…": 2}
    assert world.checkpoints() == {}, "nothing was done about it either"
    assert "partition 0 is owned" in str(world.log.of("state_refused")[0]["reason"])
    assert max(coordinator.step() for _ in range(20)) > 1.0, "with growing pauses"
    monkeypatch.undo()
    world.run(6)
    assert world.counts() == {"a": 2}


# --- what it takes for true -------------------------------------------------------------------------------------------


def test_a_new_leader_with_an_old_look_at_the_head_takes_nothing_away() -> None:
    """The former leader has seen that the queue has more partitions; the next one's look at the head is older."""
    world = World(partitions=4)
    first = world.coordinator("c1")
    world.flow("a")
    world.settle()
    old = first.facts()
    world.altered(lambda head: resized(head, 6))
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
    world, alone = World(partitions=2), Owner("alone", "i1")
    checkpoints = checkpoints_of(world.queue, KEY.group)
    for partition in (0, 1):
        held = checkpoints.fence(partition, to=alone, epoch=1, start=0)
        checkpoints.write(held, offset=0, may_reach=9, marked=0, origin=None, swap=False)
    world.coordinator()
    world.run(60)  # longer than anybody is waited for
    assert {each.owner for each in world.checkpoints().values()} == {alone}
    # A flow that joins by this store takes over, above that query's epoch, and what that delivered is marked.
    flow = world.flow("a")
    world.run(30)  # nobody here knows whether it lives: it is waited for as for a flow whose record was lost
    marks = world.checkpoints()
    assert {each.owner for each in marks.values()} == {flow.owner}
    assert all(each.epoch > 1 and each.redelivered_below == 9 for each in marks.values())
    # Once it has left, another query may have the group alone again, and a new leader leaves it at that.
    flow.unbind()
    world.run(30)
    for partition, mark in world.checkpoints().items():
        assert mark.owner is None
        checkpoints.fence(partition, to=alone, epoch=mark.epoch + 1, start=0)
    world.coordinators[0].stopped = True
    second = world.coordinator("c2")
    world.run(60)
    assert second.runtime.leading
    assert {each.owner for each in world.checkpoints().values()} == {alone}


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("harm", ["cut off", "impossible", "not of partq"])
def test_a_state_that_cannot_be_used_is_made_anew_from_the_checkpoints(harm: str) -> None:
    world, *flows = two_flows()
    mappings = [flow.mapping() for flow in flows]
    state = world.state()
    number = min(mappings[0])
    nobodys = replace(state.partitions[number], owner=None)
    body = encode_state(replace(state, partitions={**state.partitions, number: nobodys}), world.now_s)
    written = world.server.state_of(KEY)
    assert written is not None
    if harm == "not of partq":
        name, objects = f"{KEY}/ownership/state", world.server.store
        found = objects.load(name)
        assert isinstance(found, Document)
        objects.swap(name, b'{"token":"t}', expected=found.etag)
        for flow in flows:
            assert flow.store.beat(KEY, flow.says), "heartbeats go on, or leases would end"
    else:
        broken = body if harm == "impossible" else body[:-9]
        world.server.open().swap_state(KEY, broken, token="harmed", expected=written.token)
    world.settle()
    (told,) = (facts for level, event, facts in world.log.all if event == "group_adopted" and level == "error")
    assert "begins anew with the checkpoints" in str(told["reason"])
    for flow, mapping in zip(flows, mappings, strict=True):
        flow.bind(mapping)
    world.settle()
    assert [flow.mapping() for flow in flows] == mappings
    assert world.state().status is RebalanceStatus.READY


def test_a_state_that_somebody_else_wrote_is_adopted_also_in_quiet_times() -> None:
    world = World()
    only = world.coordinator()
    world.flow("a")
    world.run(3)
    written = world.server.state_of(KEY)
    assert written is not None
    world.server.open().swap_state(KEY, written.body, token="somebody", expected=written.token)
    only.step()
    assert "another coordinator wrote the state" in [line["reason"] for line in world.log.of("adopting_again")]
    after = world.server.state_of(KEY)
    assert after is not None
    assert after.token != "somebody", "from now on that one's swaps fail"


def test_flows_that_did_not_come_back_after_a_restart_are_removed_and_ownership_follows_the_state() -> None:
    world = World(partitions=2)
    world.coordinator()
    flow = world.flow("a")
    world.settle()

    def owned() -> list[tuple[Owner | None, int]]:
        return [(each.owner, each.epoch) for _, each in sorted(world.server.open().list_ownership(KEY).items())]

    assert owned() == [(flow.owner, 1)] * 2
    world.server.store.swap(f"{KEY}/ownership/9", b'{"of": "nobody"}', expected=None)  # nobody decides by it
    flow.die()
    world.server.restart()
    world.settle()
    world.run(SESSION_S * 2 + 10)
    assert world.server.open().read_flows(KEY) == {}
    assert world.state().flows == {}
    world.server.store.delete(f"{KEY}/ownership/9")
    flow = world.flow("b")
    world.settle()
    assert owned() == [(flow.owner, 3)] * 2


# --- checkpoints that were rewound, or cannot be read -----------------------------------------------------------------


def rewind(world: World, partition: int) -> None:
    store = checkpoints_of(world.queue, KEY.group)
    store.rewind(partition, 0)


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_listed_once_for_a_rewind_and_not_in_other_rounds() -> None:
    world, *_ = two_flows()
    (first,) = world.coordinators
    calls: list[str] = []
    old, first.hook = first.facts(), calls.append
    world.run(30)
    rewind(world, 0)
    world.run(5)
    assert "objects.list" not in calls, "it is the head that tells"
    for times in (1, 2):  # somebody repeated the command
        groups.count_rewind(world.queue, KEY.group)
        world.run(30)
        assert calls.count("objects.list") == times
    first.runtime.step(old)
    world.run(1)
    assert calls.count("objects.list") == 2, "old facts are confirmed before anything is listed"
    rewind(world, 0)
    groups.count_rewind(world.queue, KEY.group)
    first.stopped = True
    world.coordinator("c2").hook = calls.append
    world.run(20)
    assert calls.count("objects.list") == 3, "to adopt the group, and not for the rewind once more"
    assert world.counts() == {"a": 2, "b": 2}


def test_what_a_damaged_checkpoint_hid_is_seen_when_it_is_repaired() -> None:
    """It was rewound while nobody could read it."""
    world, a, _ = two_flows(delay_s=5.0)
    checkpoints = checkpoints_of(world.queue, KEY.group)
    number = min(a.mapping())
    name = checkpoints.name_of(number)
    found = world.objects.load(name)
    assert isinstance(found, Document)
    damaged = world.objects.swap(name, {**found.metadata, "epoch": "x"}, expected=found.etag)
    groups.count_rewind(world.queue, KEY.group)
    world.run(2)
    assert [facts["partition"] for facts in world.log.of("checkpoint_damaged")] == [number]
    world.objects.swap(name, found.metadata, expected=damaged)
    rewind(world, number)
    world.run(10)
    assert [facts["partition"] for facts in world.log.of("checkpoint_repaired")] == [number]
    assert world.counts() == {"a": 2, "b": 2}
    assert world.checkpoints()[number].epoch > 2


# --- partitions that the queue has lost, and whose groups -------------------------------------------------------------


def begun_at_the_end() -> World:
    """As with `startingOffsets=latest`: the group begins where partitions 2 and 3 end, which then leave the queue."""
    world = World(partitions=4)
    world.published(10)
    starts = (0, 0, *world.queue.head.next[2:])
    world.altered(lambda head: replace(head, groups={KEY.group: structs.replace(head.groups[KEY.group], start=starts)}))
    return world


@pytest.mark.conformance("RES-02", "CHK-04")
def test_a_removed_partition_that_is_rewound_behind_the_groups_start_comes_back() -> None:
    """The partitions that share its keys wait for it, so somebody has to have it, until it is delivered to its end."""
    world = begun_at_the_end()
    world.coordinator()
    a = world.flow("a")
    world.run(3)
    world.altered(lambda head: resized(head, 2))
    world.run(3)
    assert [*world.owners()] == [0, 1], "nothing of the others is the group's to deliver"
    assert world.checkpoints()[2].offset == 10
    rewind(world, 2)
    groups.count_rewind(world.queue, KEY.group)
    world.run(3)
    assert world.owners() == {0: "a", 1: "a", 2: "a"}
    assert world.checkpoints()[2].offset == 0
    a.write(2, 10, 10)
    world.run(3)
    assert [*world.owners()] == [0, 1]


@pytest.mark.conformance("RES-02")
def test_a_rewind_brings_no_removed_partition_that_nobody_touched() -> None:
    """It is still where the group begins, at its end. One that cannot be read is not known to be there."""
    world = begun_at_the_end()
    world.altered(lambda head: resized(head, 2))
    head = world.queue.refresh()
    later = group_facts(head, structs.replace(head.groups[KEY.group], start=head.next))
    assert (later.leaving, later.partitions) == ({}, (0, 1)), "a group that began after the change has none of it"
    former = CheckpointStore(world.objects, KEY, world.queue.head.queue_id)
    former.fence(2, to=None, epoch=1, start=0)
    checkpoints = checkpoints_of(world.queue, KEY.group)
    groups.count_rewind(world.queue, KEY.group)
    facts = world.coordinator().facts()
    assert facts.starts == {0: 0, 1: 0, 2: 10, 3: 10}, "removed ones too begin where their group does"
    leaving = RemovedPartitions(lambda _: checkpoints, lambda: world.now_s)
    assert leaving.with_unfinished(facts).partitions == (0, 1)
    assert leaving.finished(facts) == {2: 10, 3: 10}
    assert leaving.finished(replace(facts, rewinds=facts.rewinds + 1)) == {}, "that was before the rewind"
    assert leaving.finished(replace(facts, leaving={2: 15, 3: 10})) == {3: 10}
    world.objects.swap(checkpoints.name_of(3), b"{damaged}", expected=None)
    leaving.forget()
    assert leaving.with_unfinished(facts).partitions == (0, 1, 3)


@pytest.mark.parametrize(
    ("ownership", "seen"),
    [("redis://h:6379/0", "billing redis"), ("rediss://h", "billing redis"), ("store", "billing store")],
)
def test_groups_are_seen_of_this_ownership_and_those_of_which_nobody_said_it(ownership: str, seen: str) -> None:
    world = World(partitions=1)  # with a group of which nobody said it
    for group, kind in {"none": "none", "store": "store", "redis": "redis://elsewhere:1/0"}.items():
        groups.create_group(world.queue, group, [0], ownership=kind)
    heads = Heads(world.objects, KEY.namespace, ownership=ownership)
    heads.look(KEY.queue)
    assert sorted(key.group for key in heads.groups()) == seen.split()
    late = Heads(way := Hooked(world.objects), KEY.namespace, ownership=ownership)

    def change(*_: object) -> None:
        """Another thread sees it, while the answer of the first one is on its way."""
        way.after = None
        groups.change_ownership(world.queue, KEY.group, world.queue.refresh().groups[KEY.group], "none")
        late.look(KEY.queue)

    way.after = change
    late.look(KEY.queue)
    assert KEY not in late.groups()
    with pytest.raises(Invalid, match="is shared in another way now"):
        heads.now(KEY)
