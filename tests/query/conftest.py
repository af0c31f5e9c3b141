"""A world with two partitions, no delay, and a coordinator."""

import pytest

from tests.query.world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.coordinated()
    return made
