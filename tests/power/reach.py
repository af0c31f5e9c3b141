"""Which tests execute which lines of the deciding modules, and of those that mutants are in, and how long each takes:
one run of a suite writes it down.

A pytest plugin, loaded by `-p tests.power.reach` alone. With several processes each writes a file of its own into the
folder of `PARTQ_REACH`; `read` joins them. Only what runs in the processes of pytest is seen, not what these start, and
what runs in simulated strands only with `PARTQ_STRANDS=yes`, which makes all else several times slower.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.power.mutants import DRAWN, MODULES

FOLDER: Final = "PARTQ_REACH"
STRANDS: Final = "PARTQ_STRANDS"
_JVM: Final = frozenset({"spark", "connect"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """`lines`: by file and line the tests that execute it. `seconds` and `jvm` by test."""

    lines: dict[str, dict[int, tuple[str, ...]]]
    seconds: dict[str, float]
    jvm: frozenset[str]

    def tests(self, path: str, lines: range) -> tuple[str, ...]:
        """Those that execute one of these lines, the quickest first; those with a JVM last."""
        found = {test for line in lines for test in self.lines.get(path, {}).get(line, ())}
        return tuple(sorted(found, key=lambda test: (test in self.jvm, self.seconds.get(test, 0.0), test)))


class _Watch:
    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._jvm: set[str] = set()
        modules = {*MODULES, *(each["module"] for each in json.loads(DRAWN.read_text()))}
        include = [str(root / (name if name.endswith(".py") else f"{name}/*.py")) for name in modules]
        concurrency = ["thread", "greenlet"] if os.environ.get(STRANDS) else ["thread"]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=include, concurrency=concurrency)
        # The process that gives out the files runs no test.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if any(mark.name in _JVM for mark in item.iter_markers()):
            self._jvm.add(item.nodeid)
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(path).relative_to(self._root)): {
                str(line): sorted(filter(None, tests)) for line, tests in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }
        document = {"lines": lines, "seconds": self._seconds, "jvm": sorted(self._jvm)}
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(document))


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(_Watch(config.rootpath, folder), "reach")


def read(folder: Path) -> Reach:
    """What all processes of a run have written."""
    lines: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    seconds: dict[str, float] = {}
    jvm: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        seconds |= document["seconds"]
        jvm |= set(document["jvm"])
        for file, found in document["lines"].items():
            for line, tests in found.items():
                lines[file][int(line)] |= set(tests)
    return Reach(
        lines={file: {line: tuple(sorted(tests)) for line, tests in found.items()} for file, found in lines.items()},
        seconds=seconds,
        jvm=frozenset(jvm),
    )
