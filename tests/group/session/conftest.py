"""A world with two partitions, no delay, and a coordinator."""

import pytest

from tests.group.session.world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.coordinator()
    return made
