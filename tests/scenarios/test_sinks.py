"""Queries write into queues, and Spark's checkpoint is not what it was."""

from __future__ import annotations

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


def written(sink: str, event: Event, seed: int = 0) -> World:
    """The world after it: a person does what refusals say."""
    world = played(replace(ALONE, seed=seed, query=QueryPlan(sink=sink)), event)
    assert any(isinstance(each, Wrote) and each.ending == "refused" for each in world.facts)
    return world


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("harm", HARMED)
def test_where_sparks_checkpoint_is_not_what_it_was_rows_are_refused_and_never_dropped(sink: str, harm: str) -> None:
    world = written(sink, HARMED[harm])
    assert any(what.startswith("resolved") for what in world.counts)


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("seed", [6, 9])
def test_a_batch_that_one_queue_refuses_is_in_none(seed: int) -> None:
    """In these two an earlier queue would take its part, because it knows nothing of the number."""
    written("fan-out", Event(14.0, "restore", "query", number=2), seed)
