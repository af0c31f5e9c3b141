"""What a leader must not do even if something else went wrong: write a broken state, or trust an old life's records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator import runtime as runtime_module
from coordinator.core.actions import Action
from coordinator.core.events import Event, FlowBound
from coordinator.core.machine import decide
from coordinator.heads import group_facts
from coordinator.leadership import StoreLife
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.errors import Invalid
from partq_spark.group import lifecycle
from partq_spark.group.model import GroupKey, GroupState, Owner, Phase
from partq_spark.log import admin
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, World


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
    after = world.server.open().read_state(KEY)
    assert world.owners() == {0: None, 1: None}
    assert world.checkpoints() == {}, "nothing was done about it either"
    refusals = world.log.of("state_refused")
    assert refusals
    assert "partition 0 is owned" in str(refusals[0]["reason"])
    assert max(coordinator.step() for _ in range(20)) > 1.0, "with growing pauses"
    assert after is not None
    monkeypatch.undo()
    world.run(6)
    assert coordinator.runtime.leading
    assert world.counts() == {"a": 2}


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
    marks = world.checkpoints()
    assert {each.owner for each in marks.values()} == {a.owner}, "nothing was fenced by what the old copy says"


@pytest.mark.parametrize("gone", ["queue", "group"])
def test_a_group_that_is_gone_is_not_adopted(gone: str) -> None:
    world = World()

    def facts_now() -> None:
        raise Invalid(f"{gone} was deleted")

    coordinator = world.coordinator()
    world.flow("a")
    head = world.queue.refresh()
    coordinator.runtime._facts_now = facts_now  # type: ignore[assignment]
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
    world.run(10)
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
    world.run(15)
    assert world.coordinators[1].runtime.leading
    assert {each.owner for each in world.checkpoints().values()} == {alone}
