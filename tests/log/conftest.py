"""An empty store in memory under a clock of its own, and lines for the end of the run."""

from collections.abc import Callable

import pytest

from tests.log.queues import World

_lines = pytest.StashKey[list[str]]()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line at the end of the run: numbers that a person wants to see also when all is well."""
    return request.config.stash.setdefault(_lines, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_lines, [])
    if lines:
        terminalreporter.section("the message log")
        for line in lines:
            terminalreporter.write_line(line)
