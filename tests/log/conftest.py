"""An empty store in memory under a clock of its own, and lines for the end of the run."""

import pytest

from tests.log.queues import World
from tests.support.reporting import reporting

report, pytest_terminal_summary = reporting("the message log")


@pytest.fixture
def world() -> World:
    return World()
