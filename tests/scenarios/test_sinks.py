"""Queries write into queues while they are killed, Spark's checkpoint is not what it was, and queues are changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from tests.scenarios.words import CALM, played
from tests.world.facts import Wrote
from tests.world.plan import Event
from tests.world.query_plan import QueryPlan
from tests.world.world import World

ALONE: Final = replace(CALM, flows=(), queries=("query",), messages=40)
SINKS: Final = ("stream", "fan-out", "one write", "two queues")
HARMED: Final = {
    "an older copy of it is put back": Event(14.0, "restore", "query", number=7),
    "the newest entries of both logs are gone": Event(14.0, "logs cut", "query", number=3),
    "the newest entries of the offset log are gone": Event(14.0, "logs cut", "query", number=5),
}
HEALTHY: Final = {
    "it is killed": (Event(8.0, "kill", "query", 1.0), Event(14.0, "kill", "query", 1.0)),
    "its tasks find another partition count": (
        *(Event(8.0, "kill", "query", 2.0), Event(9.0, "alter", "results", number=5)),
        *(Event(14.0, "kill", "query", 2.0), Event(15.0, "alter", "results", number=1)),
    ),
    "what it wrote is compacted meanwhile": (
        *(Event(12.0, "kill", "query", 3.0), Event(14.0, "compact", "results")),
        *(Event(18.0, "kill", "query", 3.0), Event(20.0, "compact", "results")),
    ),
    "what it reads is taken back": (Event(8.0, "kill", "query", 3.0), Event(10.0, "rewind", number=5)),
}


def written(sink: str, *events: Event, seed: int = 0, **how: float) -> World:
    """The world after it: a person does what refusals say."""
    return played(replace(ALONE, seed=seed, query=QueryPlan(sink=sink, **how)), *events)  # type: ignore[arg-type]


def endings(world: World) -> Counter[str]:
    return Counter(each.ending for each in world.facts if isinstance(each, Wrote))


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("harm", HARMED)
def test_where_sparks_checkpoint_is_not_what_it_was_rows_are_refused_and_never_dropped(sink: str, harm: str) -> None:
    world = written(sink, HARMED[harm])
    assert endings(world)["refused"] > 0
    assert any(what.startswith("resolved") for what in world.counts)


@pytest.mark.conformance("DIS-08", "DIS-09", "DIS-10")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("befalls", HEALTHY)
def test_a_healthy_repetition_adds_nothing_and_is_not_refused(sink: str, befalls: str) -> None:
    world = written(sink, *HEALTHY[befalls], cut_off=0.3, tasks_again=0.3)
    assert world.counts["batches repeated"] > 0
    assert not endings(world)["refused"]


@pytest.mark.conformance("DIS-10")
def test_a_second_write_of_one_call_under_one_name_is_refused_and_under_another_it_is_not() -> None:
    assert endings(written("two writes"))["refused"] > 0
    assert not endings(written("two applications"))["refused"]


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("seed", [6, 9])
def test_a_batch_that_one_queue_refuses_is_in_none(seed: int) -> None:
    """In these two an earlier queue would take its part, because it knows nothing of the number."""
    world = written("fan-out", Event(14.0, "restore", "query", number=2), seed=seed)
    assert endings(world)["refused"] > 0
