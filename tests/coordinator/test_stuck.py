"""One checkpoint that is damaged, or that cannot be written: the others go on, and it heals by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import checkpoint_folder
from partq_spark.group.model import Phase, RebalanceStatus
from partq_spark.log.model import Head, QueueConfig
from partq_spark.objects.api import Document
from tests.coordinator.world import KEY, SESSION_S, HandFlow, World, two_flows

DELAY_S = 5.0
BLOB = checkpoint_folder(KEY)


class Trouble:
    """What is the matter with one checkpoint's blob, and how it goes away."""

    def __init__(self, world: World, partition: int) -> None:
        self.world = world
        self.name = f"{BLOB}{partition}"
        self._was: Mapping[str, str] = {}

    def begin(self, kind: str) -> None:
        if kind == "damaged":
            found = self._found()
            self._was = found.metadata
            self.world.objects.swap(self.name, {**found.metadata, "epoch": "x"}, expected=found.etag)
        else:
            self.refuse(Invalid("not allowed") if kind == "not allowed" else Unavailable("no answer"))

    def end(self) -> None:
        if self._was:
            self.world.objects.swap(self.name, self._was, expected=self._found().etag)
        else:
            vars(self.world.objects).pop("swap", None)

    def _found(self) -> Document:
        found = self.world.objects.load(self.name)
        assert isinstance(found, Document)
        return found

    def refuse(self, error: Exception) -> None:
        swap = self.world.objects.swap

        def refused(name: str, *arguments: Any, **named: Any) -> Any:
            if name == self.name:
                raise error
            return swap(name, *arguments, **named)

        vars(self.world.objects)["swap"] = refused


KINDS = pytest.mark.parametrize("kind", ["damaged", "not allowed", "no answer"])


def shared() -> tuple[World, HandFlow, HandFlow]:
    """Two flows with two partitions each."""
    world = World(config=QueueConfig(rebalance_delay_s=DELAY_S, max_handoff_time_s=2.0))
    return world, *two_flows(world, DELAY_S)


def healthy(world: World, partition: int) -> dict[int, str | None]:
    """Who has what, by the state alone, of the others."""
    found = world.state().partitions.items()
    return {n: p.owner.flow if p.owner else None for n, p in found if n != partition and p.phase is Phase.OWNED}


@KINDS
@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("LOS-04")
def test_a_dead_flows_healthy_partitions_go_to_others(kind: str) -> None:
    world, a, b = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    trouble.begin(kind)
    a.die()
    world.run(SESSION_S + DELAY_S + 5)
    assert set(healthy(world, number).values()) == {"b"}
    assert len(healthy(world, number)) == 3
    assert world.state().status is RebalanceStatus.READY
    (told,) = world.log.of("partition_stuck")
    assert told["partition"] == number
    assert world.state().partitions[number].stuck == told["reason"]
    assert "partition" in world.coordinators[0].runtime.stuck
    trouble.end()
    world.run(12)
    assert world.counts() == {"b": 4}, "by itself"
    assert world.coordinators[0].runtime.stuck == ""
    assert b.mapping()[number] == 2


@KINDS
@pytest.mark.conformance("HAN-04")
@pytest.mark.conformance("REB-15")
def test_a_new_flow_gets_its_share_of_what_is_healthy(kind: str) -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    trouble.begin(kind)
    a.die()
    world.run(SESSION_S + DELAY_S + 5)
    c = world.flow("c")
    world.run(DELAY_S + 5)
    assert sorted(name or "" for name in healthy(world, number).values()) in (["b", "b", "c"], ["b", "c", "c"])
    assert world.state().status is RebalanceStatus.READY
    c.unbind()
    world.run(DELAY_S + 5)
    assert set(healthy(world, number).values()) == {"b"}
    trouble.end()
    world.run(12)
    assert world.counts() == {"b": 4}


@pytest.mark.conformance("REB-15")
@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_new_leader_adopts_a_group_with_a_damaged_checkpoint(state: str) -> None:
    world, a, b = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    trouble.begin("damaged")
    mappings = {flow: flow.mapping() for flow in (a, b)}
    world.coordinators[0].stopped = True
    if state == "lost":
        world.server.flush()
        for flow, mapping in mappings.items():
            flow.store = world.server.open()
            flow.bind(mapping)
    world.coordinator("c2")
    world.run(20)
    (told,) = world.log.of("checkpoint_damaged")
    assert told["partition"] == number
    assert f"checkpoint/{number}" in str(told["reason"])
    others = {n: flow.name for flow, mapping in mappings.items() for n in mapping if n != number}
    assert healthy(world, number) == others
    if state == "kept":
        left = world.state().partitions[number]
        assert (left.phase, left.owner, left.epoch) == (Phase.OWNED, a.owner, 1), "nothing says that it is not"
    assert world.state().status is RebalanceStatus.READY
    a.die()
    world.run(SESSION_S + DELAY_S + 5)
    assert set(healthy(world, number).values()) == {"b"}
    trouble.end()
    world.run(15)
    assert world.counts() == {"b": 4}
    assert world.checkpoints()[number].redelivered_below >= (1000 if state == "lost" else 0)
    assert [facts["partition"] for facts in world.log.of("checkpoint_repaired")] == [number]


def test_what_a_damaged_checkpoint_hid_is_seen_when_it_is_repaired() -> None:
    """It was rewound, and the queue altered, while nobody could read it."""
    world, a, _ = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    trouble.begin("damaged")
    world.altered(counted)
    world.run(2)
    assert world.log.of("checkpoint_damaged")
    trouble.end()
    checkpoints = lifecycle.checkpoints_of(world.queue, KEY.group)
    checkpoints.rewind(number, 0, fence=True, delivered=0)
    world.run(10)
    assert world.counts() == {"a": 2, "b": 2}
    assert world.checkpoints()[number].epoch > 2


def counted(head: Head) -> Head:
    """As if a rewind had been counted."""
    group = structs.replace(head.groups[KEY.group], rewinds=head.sequence + 1)
    return replace(head, groups={**head.groups, KEY.group: group})


@KINDS
def test_it_is_tried_seldom_and_told_once(kind: str) -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    Trouble(world, number).begin(kind)
    a.die()
    world.run(SESSION_S + DELAY_S + 5)
    tried = len(world.log.of("fence_failed"))
    world.run(60)
    assert 10 <= len(world.log.of("fence_failed")) - tried <= 14, "every 5 s"
    loud = [facts for level, event, facts in world.log.lines if event == "fence_failed" and level != "debug"]
    assert len(loud) <= 12
    assert len(world.log.of("partition_stuck")) == 1


def test_who_asks_while_a_state_is_written_is_told_what_is_stuck() -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    Trouble(world, number).begin("damaged")
    a.die()
    world.run(SESSION_S + DELAY_S + 5)
    told: list[str] = []
    first = world.coordinators[0]
    first.faults.hook = lambda call: told.append(first.runtime.stuck) if call == "swap_state" else None
    world.flow("c")
    world.run(DELAY_S + 5)
    assert told
    assert all(f"partition {number}" in reason for reason in told)


def test_a_store_that_is_away_for_a_moment_makes_nobody_stuck() -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    a.unbind()
    world.run(DELAY_S - 0.5)
    trouble.begin("no answer")
    world.run(2)
    assert world.log.of("fence_failed")
    trouble.end()
    world.run(2)
    assert world.log.of("partition_stuck") == []
    assert world.counts() == {"b": 4}


def test_each_time_that_a_store_is_away_for_a_moment_counts_by_itself() -> None:
    world, a, b = shared()
    number = min(a.mapping())
    trouble = Trouble(world, number)
    flows = [a, b, world.flow("c")]
    while len(flows) > 1:
        (owner,) = (flow for flow in flows if number in flow.mapping())
        flows.remove(owner)
        owner.unbind()
        world.run(DELAY_S - 0.5)
        failed = len(world.log.of("fence_failed"))
        trouble.begin("no answer")
        world.run(2)
        assert len(world.log.of("fence_failed")) > failed
        trouble.end()
        world.run(2)
    assert world.log.of("partition_stuck") == []
    assert flows[0].mapping().keys() == {0, 1, 2, 3}


def test_what_is_damaged_is_listed_again_seldom() -> None:
    world, a, _ = shared()
    Trouble(world, min(a.mapping())).begin("damaged")
    world.altered(counted)
    world.run(2)
    listed: list[str] = []
    world.coordinators[0].faults.hook = listed.append
    world.run(60)
    assert 11 <= listed.count("objects.list") <= 13, "every 5 s"


@pytest.mark.conformance("REB-15")
@pytest.mark.parametrize("kind", ["damaged", "not allowed"])
def test_for_what_does_not_mend_by_itself_nobody_waits_at_all(kind: str) -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    a.unbind()
    world.run(DELAY_S - 0.5)
    Trouble(world, number).begin(kind)
    world.run(1)
    assert [facts["partition"] for facts in world.log.of("partition_stuck")] == [number]
    assert world.state().status is RebalanceStatus.READY
    assert set(healthy(world, number).values()) == {"b"}


def test_the_state_keeps_the_first_words_of_what_is_wrong() -> None:
    world, a, _ = shared()
    number = min(a.mapping())
    a.unbind()
    Trouble(world, number).refuse(Invalid("not allowed: " + "and so on " * 1000))
    world.run(DELAY_S + 2)
    told = world.state().partitions[number].stuck
    assert told.startswith("not allowed")
    assert len(told) <= 400


@pytest.mark.parametrize("error", [Invalid("not allowed"), Unavailable("no answer")])
def test_what_nobody_ever_had_is_tried_again_too(error: Exception) -> None:
    """No flow is watched for silence then, and nothing else happens in the group."""
    world = World()
    world.coordinator()
    trouble = Trouble(world, 0)
    trouble.refuse(error)
    world.flow("b")
    world.run(30)
    assert healthy(world, 0) == {1: "b", 2: "b", 3: "b"}
    assert world.state().status is RebalanceStatus.READY
    trouble.end()
    world.run(12)
    assert world.counts() == {"b": 4}
