"""An empty store in memory under a clock of its own."""

import pytest

from tests.log.queues import World


@pytest.fixture
def world() -> World:
    return World()
