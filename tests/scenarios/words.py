"""The words that scenarios are written in: a calm plan to begin with, a world that was played, what flows were given in
it. The judge of the world holds in each of them: nothing is lost, nothing comes twice without a mark, keys keep their
order, nobody waits for too long.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Final

from tests.world.facts import Checkpointed, Given, Row
from tests.world.plan import Event, Plan
from tests.world.world import World

CALM: Final = Plan(messages=60, pause_s=1.0, partitions=2, flows=("one", "two"), handles_s=0.4)


def played(plan: Plan, *events: Event) -> World:
    """The world after it."""
    world = World(replace(plan, events=events))
    world.play()
    return world


def given(world: World, flow: str = "", *, since_s: float = 0.0, until_s: float = float("inf")) -> list[Row]:
    """What a flow was given, or all were."""
    batches = [each for each in world.facts if isinstance(each, Given)]
    return list(
        chain.from_iterable(
            each.rows for each in batches if each.flow.startswith(flow) and since_s <= each.at_us / 1e6 <= until_s
        )
    )


def owners(world: World, *, since_s: float = 0.0, until_s: float = float("inf")) -> set[tuple[int, str, int]]:
    """Which flow had which partition, at which epoch, by the checkpoints as they were at the beginning and since."""
    written = [each for each in world.facts if isinstance(each, Checkpointed) and each.at_us / 1e6 <= until_s]
    first = {each.partition: each for each in written if each.at_us / 1e6 <= since_s}
    later = [each for each in written if each.at_us / 1e6 > since_s]
    return {(each.partition, each.flow, each.epoch) for each in (*first.values(), *later)}
