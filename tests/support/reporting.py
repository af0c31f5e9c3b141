"""At the end of a run, the files that took longest; with `--seconds FILE` what each file took, for
`tests.support.folders`.

A pytest plugin (loaded by the root conftest). It knows nothing of what the tests do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.support.parallel import is_worker

SHOWN: Final = 10
MANY: Final = 50
"""A run of fewer files shows what it takes by `--durations`."""


class Costs:
    """How long each file took, all its tests together with their fixtures, in whichever process they ran."""

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self._files_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._files_s[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._target is not None:
            self._target.write_text(json.dumps(self._files_s, indent=1, sort_keys=True) + "\n")
        if len(self._files_s) >= MANY:
            longest = sorted(self._files_s.items(), key=lambda each: -each[1])
            terminalreporter.section(f"the {SHOWN} files that took longest, of {sum(self._files_s.values()):.0f} s")
            for file, seconds in longest[:SHOWN]:
                terminalreporter.write_line(f"{seconds:6.1f} s  {file}")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "write how many seconds each file of tests took, as JSON"
    parser.getgroup("reporting").addoption("--seconds", type=Path, metavar="FILE", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("seconds")
    config.pluginmanager.register(Costs(None if is_worker(config) else target), "costs")
