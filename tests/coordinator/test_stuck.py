"""One checkpoint that is damaged, or that cannot be written: the others go on, and it heals by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from coordinator.core.actions import Fence
from coordinator.core.events import FenceStuck
from coordinator.fence_retries import MOST_WORDS, STUCK_AFTER_S, FenceRetries
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import checkpoint_folder
from partq_spark.group.model import Owner, Phase, RebalanceStatus
from partq_spark.log.model import Head
from partq_spark.objects.api import Document
from tests.coordinator.runtimes import KEY, SESSION_S, HandFlow, World, two_flows

DELAY_S = 5.0
LATER_S = SESSION_S + DELAY_S + 5


class Trouble:
    """What is the matter with one checkpoint's blob, and how it goes away."""

    def __init__(self, world: World, partition: int) -> None:
        self.world = world
        self.name = f"{checkpoint_folder(KEY)}{partition}"
        self._was: Mapping[str, str] = {}

    def begin(self, kind: str) -> None:
        if kind == "damaged":
            found = self._found()
            self._was = found.metadata
            self.world.objects.swap(self.name, {**found.metadata, "epoch": "x"}, expected=found.etag)
        else:
            error = Invalid("not allowed") if kind == "not allowed" else Unavailable("no answer")
            swap = self.world.objects.swap

            def refused(name: str, *arguments: Any, **named: Any) -> Any:
                if name == self.name:
                    raise error
                return swap(name, *arguments, **named)

            vars(self.world.objects)["swap"] = refused

    def end(self) -> None:
        if self._was:
            self.world.objects.swap(self.name, self._was, expected=self._found().etag)
        else:
            vars(self.world.objects).pop("swap", None)

    def _found(self) -> Document:
        found = self.world.objects.load(self.name)
        assert isinstance(found, Document)
        return found


KINDS = pytest.mark.parametrize("kind", ["damaged", "not allowed", "no answer"])


def shared() -> tuple[World, HandFlow, HandFlow, Trouble]:
    """Two flows with two partitions each, and what is to become the matter with the first one's first."""
    world, a, b = two_flows(delay_s=DELAY_S)
    return world, a, b, Trouble(world, min(a.mapping()))


def healthy(world: World, partition: int) -> dict[int, str | None]:
    """Who has what, by the state alone, of the others."""
    found = world.state().partitions.items()
    return {n: p.owner.flow if p.owner else None for n, p in found if n != partition and p.phase is Phase.OWNED}


def counted(head: Head) -> Head:
    """As if a rewind had been counted."""
    group = structs.replace(head.groups[KEY.group], rewinds=head.sequence + 1)
    return replace(head, groups={**head.groups, KEY.group: group})


@KINDS
@pytest.mark.conformance("REB-15", "LOS-04", "HAN-04")
def test_what_is_healthy_goes_to_others_and_is_shared_with_a_new_flow(kind: str) -> None:
    world, a, b, trouble = shared()
    number = min(a.mapping())
    trouble.begin(kind)
    a.die()
    world.run(LATER_S)
    assert list(healthy(world, number).values()) == ["b"] * 3
    assert world.state().status is RebalanceStatus.READY
    (told,) = world.log.of("partition_stuck")
    assert told["partition"] == number
    assert world.state().partitions[number].stuck == told["reason"]
    assert f"partition {number}" in world.coordinators[0].runtime.stuck
    # While a state is written, who asks is told all the same.
    asked: list[str] = []
    first = world.coordinators[0]
    first.hook = lambda call: asked.append(first.runtime.stuck) if call == "swap_state" else None
    c = world.flow("c")
    world.run(DELAY_S + 5)
    assert set(asked) == {first.runtime.stuck} != {""}
    assert sorted(name or "" for name in healthy(world, number).values()) in (["b", "b", "c"], ["b", "c", "c"])
    assert world.state().status is RebalanceStatus.READY
    # It is tried every 5 s, and told once.
    tried = len(world.log.of("fence_failed"))
    world.run(60)
    assert 10 <= len(world.log.of("fence_failed")) - tried <= 14
    assert len([level for level, event, _ in world.log if event == "fence_failed" and level != "debug"]) <= 12
    assert len(world.log.of("partition_stuck")) == 1
    c.unbind()
    world.run(DELAY_S + 5)
    trouble.end()
    world.run(12)
    assert world.counts() == {"b": 4}, "by itself"
    assert first.runtime.stuck == ""
    assert b.mapping()[number] > 1


@pytest.mark.conformance("REB-15")
@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_new_leader_adopts_a_group_with_a_damaged_checkpoint(state: str) -> None:
    world, a, b, trouble = shared()
    number = min(a.mapping())
    trouble.begin("damaged")
    mappings = {flow: flow.mapping() for flow in (a, b)}
    world.coordinators[0].stopped = True
    if state == "lost":
        world.server.flush()
        for flow, mapping in mappings.items():
            flow.rebind(mapping)
    second = world.coordinator("c2")
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
    world.run(LATER_S)
    assert set(healthy(world, number).values()) == {"b"}
    listed = second.calls("objects.list")
    world.run(60)
    assert 11 <= len(listed) <= 13, "every 5 s"
    trouble.end()
    world.run(15)
    assert world.counts() == {"b": 4}
    assert world.checkpoints()[number].redelivered_below >= (1000 if state == "lost" else 0)
    assert [facts["partition"] for facts in world.log.of("checkpoint_repaired")] == [number]


def test_what_a_damaged_checkpoint_hid_is_seen_when_it_is_repaired() -> None:
    """It was rewound, and the queue altered, while nobody could read it."""
    world, a, _, trouble = shared()
    number = min(a.mapping())
    trouble.begin("damaged")
    world.altered(counted)
    world.run(2)
    assert world.log.of("checkpoint_damaged")
    trouble.end()
    lifecycle.checkpoints_of(world.queue, KEY.group).rewind(number, 0, fence=True, delivered=0)
    world.run(10)
    assert world.counts() == {"a": 2, "b": 2}
    assert world.checkpoints()[number].epoch > 2


FENCE = Fence(partition=3, owner=Owner("a", "1"), owner_epoch=1, to=None, epoch=2, reports_lost=False, reason="")


@pytest.mark.parametrize(
    ("error", "at_s", "stuck", "said"),
    [
        (Unavailable("no answer"), 0.0, (), None),
        (Unavailable("no answer"), STUCK_AFTER_S, (), "no answer"),
        (Conflict("another was faster"), 0.0, (), None),
        (Corrupt("damaged"), 0.0, (), "damaged"),
        (
            Invalid("not allowed: " + "and \n so on " * 1000),
            0.0,
            (),
            ("not allowed: " + "and so on " * 1000)[:MOST_WORDS],
        ),
        (Corrupt("damaged"), 0.0, (3,), None),
        (None, 0.0, (), None),
    ],
)
def test_a_fence_that_failed(error: PartqError | None, at_s: float, stuck: tuple[int, ...], said: str | None) -> None:
    retries = FenceRetries(0.1, 5.0)
    failed = {3: error} if error is not None else {}
    retries.tried([FENCE], {3: Unavailable("first")} if at_s else {}, stuck, 0.0)
    events = retries.tried([FENCE], failed, stuck, at_s)
    assert events == ([FenceStuck(partition=3, epoch=2, reason=said)] if said is not None else [])
    assert (retries.due([FENCE], at_s) == [FENCE]) == (error is None)
    assert retries.next_s([FENCE], at_s) == pytest.approx(0.0 if error is None else 0.2 if at_s else 0.1)
    retries.forget()
    assert retries.due([FENCE], at_s) == [FENCE]
