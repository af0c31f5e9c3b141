"""How a test of the simulation reports numbers that are worth seeing even when it passes."""

from collections.abc import Callable

import pytest

_lines = pytest.StashKey[list[str]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line at the end of the run: numbers that a person wants to see also when all is well."""
    return request.config.stash.setdefault(_lines, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_lines, [])
    if lines:
        terminalreporter.section("the simulation of ownership")
        for line in lines:
            terminalreporter.write_line(line)
