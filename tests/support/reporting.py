"""Numbers that a person wants to see at the end of a run also when all is well: a fixture and a section for a suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def reporting(title: str) -> tuple[object, Callable[[pytest.TerminalReporter, pytest.Config], None]]:
    """The fixture `report` and the hook `pytest_terminal_summary` of one suite, to be given these names in its
    conftest. What its tests report stands under `title`.
    """
    lines = pytest.StashKey[list[str]]()

    @pytest.fixture
    def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
        """Print a line at the end of the run: numbers that a person wants to see also when all is well."""
        return request.config.stash.setdefault(lines, []).append

    def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        reported = config.stash.get(lines, [])
        if reported:
            terminalreporter.section(title)
            for line in reported:
                terminalreporter.write_line(line)

    return report, pytest_terminal_summary
