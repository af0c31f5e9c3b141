"""Numbers that a person wants to see at the end of a run also when all is well: a fixture and a section for a suite,
and the files that took longest.

A pytest plugin (loaded by the root conftest) for the latter. It knows nothing of what the tests do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

import pytest

SHOWN: Final = 10
MANY: Final = 50
"""A run of fewer files shows what it takes by `--durations`."""


class Costs:
    """How long each file took, all its tests together with their fixtures, in whichever process they ran."""

    def __init__(self) -> None:
        self._files_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._files_s[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._files_s) >= MANY:
            longest = sorted(self._files_s.items(), key=lambda each: -each[1])
            terminalreporter.section(f"the {SHOWN} files that took longest, of {sum(self._files_s.values()):.0f} s")
            for file, seconds in longest[:SHOWN]:
                terminalreporter.write_line(f"{seconds:6.1f} s  {file}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(), "costs")


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
