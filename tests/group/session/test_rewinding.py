"""A flow's checkpoints are rewound while it has the partitions; and when checkpoints are read at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.group.session.world import Process, World, bound


def rewind(world: World, partition: int, offset: int, *, counted: bool = True) -> None:
    """As `partq checkpoints rewind` does it."""
    world.checkpoints().rewind(partition, offset, fence=True, delivered=world.ends[partition])
    if counted:
        world.facts = replace(world.facts, rewinds=world.facts.rewinds + 1)


def idle(world: World) -> Process:
    """A flow that has acknowledged 100 messages of each partition, all there are."""
    world.ends = [100] * len(world.ends)
    world.coordinator()
    flow = world.flow("a")
    bound(flow)
    for partition in flow.look().claims:
        assert flow.deliver(partition, 100)
        assert flow.acknowledge(partition, 100)
    flow.session.flush()
    return flow


def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Which checkpoints are read from now on, and how often they are listed."""
    counts: Counter[str] = Counter()

    def counting(verb: str, really: Any) -> Any:
        def call(name: str, **named: Any) -> Any:
            counts[verb + name.rpartition("/")[2]] += 1
            return really(name, **named)

        return call

    for verb in ("load", "list"):
        monkeypatch.setattr(world.objects, verb, counting(verb, getattr(world.objects, verb)))
    return counts


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_read_when_they_are_claimed_and_at_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(partitions=4)
    a = idle(world)
    counts = reads(world, monkeypatch)
    for number in range(60):
        world.sleep(1.0)
        a.look()
        if number % 10 == 0:
            for partition in range(4):
                assert a.deliver(partition, 101 + number)
                assert a.acknowledge(partition, 101 + number)
    assert not counts, "not while it goes on, with acknowledgements by anybody"
    b = world.flow("b")
    bound(b)
    world.until(lambda: len(a.look().deliverable) == len(b.look().deliverable) == 2)
    moved = {f"load{partition}" for partition in b.look().claims}
    assert counts.keys() <= {*moved, "list"}, "only those that moved: fenced by the one and claimed by the other"
    assert counts["list"] == 0
    before = Counter(counts)
    world.sleep(30.0)
    rewind(world, 0, 50, counted=False)
    assert counts - before == {"load0": 1}, "the rewind itself"
    before = Counter(counts)
    world.facts = replace(world.facts, rewinds=1)
    for _ in range(60):
        world.sleep(1.0)
        a.look(), b.look()
    assert (counts - before)["list"] == 1
    assert (counts - before).keys() == {"list", "load0"}


@pytest.mark.conformance("CHK-04")
def test_an_idle_flow_begins_again_where_it_was_rewound_to() -> None:
    world = World()
    a = idle(world)
    instance = a.session.instance
    (epoch, *_) = {claim.epoch for claim in a.look().claims.values()}
    rewind(world, 0, 40)
    begun_s = world.now_s
    world.until(lambda: a.look().claims[0].epoch > epoch if 0 in a.look().claims else False, wait_s=3.0)
    assert world.now_s - begun_s < 1.0
    claim = a.look().claims[0]
    assert (claim.position, claim.acknowledged, claim.redelivered_below) == (40, 40, 100)
    assert a.look().claims[1].epoch == epoch
    assert a.session.instance == instance, "it had not to bind again"
    assert {partition: at for view in a.views for partition, at in view.lost.items()} == {0: epoch}
    assert a.deliver(0, 100)
    assert a.acknowledge(0, 100)
    a.session.flush()
    assert world.offset(0) == 100


def test_what_was_in_hand_comes_again_marked_and_is_not_acknowledged() -> None:
    """More was published and delivered since the person who rewinds looked at the log's end."""
    world = World()
    a = idle(world)
    epoch = a.look().claims[0].epoch
    world.ends = [120, 120]
    assert a.deliver(0, 120)
    world.checkpoints().rewind(0, 40, fence=True, delivered=100)
    world.facts = replace(world.facts, rewinds=1)
    world.until(lambda: 0 in a.look().claims and a.look().claims[0].epoch > epoch)
    assert not a.acknowledge(0, 120, epoch)
    claim = a.look().claims[0]
    assert (claim.position, claim.redelivered_below) == (40, 120)


def test_a_busy_flow_notices_also_where_it_was_not_counted() -> None:
    """The command that rewound it was killed: the flow's acknowledgement fails, and it binds again."""
    world = World()
    a = idle(world)
    epoch = a.look().claims[0].epoch
    rewind(world, 0, 40, counted=False)
    world.sleep(20.0)
    assert a.look().claims[0].epoch == epoch, "idle, it has no way to know"
    world.ends = [101, 101]
    assert a.deliver(0, 101)
    a.acknowledge(0, 101)
    a.session.flush()
    world.until(lambda: 0 in a.look().claims and a.look().claims[0].epoch > epoch)
    claim = a.look().claims[0]
    assert claim.position == 40
    assert claim.redelivered_below >= 101
