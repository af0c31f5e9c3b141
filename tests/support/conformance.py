"""Which test proves which statement of docs/conformance.md: the `conformance` mark, its checks and the printed table.

A pytest plugin (loaded by the root conftest) and the two functions that it and the tests of the house share. It knows
nothing of what the tests do. Where tests run in several processes, the one that gives them out collects none: the ids
come to it in the reports, and the table there has no tests that never began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.parallel import is_worker

STATEMENTS_FILE = Path(__file__).parents[2] / "docs" / "conformance.md"

_STATEMENT = re.compile(r"^- (?P<id>[A-Z]{3}-\d{2}) (?P<text>.*)$")


def read_statements(path: Path = STATEMENTS_FILE) -> dict[str, str]:
    """All statements by id, in the document's order, each as one line of text."""
    statements: dict[str, str] = {}
    current: str | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _STATEMENT.match(line):
            current = match["id"]
            if current in statements:
                raise ValueError(f"{path.name} has {current} twice")
            statements[current] = match["text"]
        elif current is not None and line.startswith("  "):
            statements[current] += " " + line.strip()
        else:
            current = None
    return statements


def ids_of(item: pytest.Item) -> Iterator[str]:
    """The ids that a test carries, its own first, then those of its class and module."""
    for mark in item.iter_markers("conformance"):
        for argument in mark.args:
            yield str(argument)


@dataclass(slots=True)
class Proof:
    """What this run has shown of one test."""

    passed: bool = False
    failed: bool = False

    @property
    def word(self) -> str:
        """`failed` wins over `passed`; a test that was skipped or never ran has proven nothing."""
        if self.failed:
            return "failed"
        return "passed" if self.passed else "not run"


@dataclass(slots=True)
class Ledger:
    """Statements, the tests that carry their ids, and the outcomes so far."""

    statements: dict[str, str]
    tests: dict[str, list[str]] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)

    def add(self, statement_id: str, node_id: str) -> None:
        """Note that the test `node_id` carries `statement_id`."""
        tests = self.tests.setdefault(statement_id, [])
        if node_id not in tests:
            tests.append(node_id)
            self.proofs.setdefault(node_id, Proof())

    def verdict(self, statement_id: str) -> str:
        """`passed` if a test ran and none failed, else `failed`, or `missing`."""
        words = [self.proofs[test].word for test in self.tests.get(statement_id, [])]
        if "failed" in words:
            return "failed"
        return "passed" if "passed" in words else "missing"

    def unproven(self) -> list[str]:
        """The statements that no test has shown, and all whose tests failed."""
        return [each for each in self.statements if self.verdict(each) != "passed"]


_ledger_key = pytest.StashKey[Ledger]()
_PROPERTY = "conformance"
"""Under this name the ids of a test are in its reports, also in those of another process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--conformance",
        choices=["check", "table"],
        help="check: the run fails unless every statement is proven; "
        "table: run only tests that carry a statement's id, and print all statements with their proofs as well",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ledger = config.stash[_ledger_key] = Ledger(statements=read_statements())
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        ids = list(ids_of(item))
        for each in ids:
            if each not in ledger.statements:
                raise pytest.UsageError(f"{item.nodeid} proves {each!r}, which docs/conformance.md does not have")
            ledger.add(each, item.nodeid)
            item.user_properties.append((_PROPERTY, each))
        (chosen if ids else others).append(item)
    if config.getoption("conformance") == "table" and others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


def _ledger_of(config: pytest.Config) -> Ledger:
    """The ledger; an empty one where nothing was collected."""
    if _ledger_key not in config.stash:
        config.stash[_ledger_key] = Ledger(statements=read_statements())
    return config.stash[_ledger_key]


class ReportCollector:
    """Notes the outcome of each test in the ledger; reports know no configuration, hence an object that does."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = [str(value) for name, value in report.user_properties if name == _PROPERTY]
        if not ids:
            return
        ledger = _ledger_of(self._config)
        for each in ids:
            ledger.add(each, report.nodeid)
        proof = ledger.proofs[report.nodeid]
        if report.failed:
            proof.failed = True
        elif report.when == "call" and report.passed:
            proof.passed = True


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ReportCollector(config), "conformance-reports")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if is_worker(session.config) or not session.config.getoption("conformance"):
        return  # a worker has run a part only
    if exitstatus == pytest.ExitCode.OK and _ledger_of(session.config).unproven():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    mode = config.getoption("conformance")
    ledger = config.stash.get(_ledger_key, None)
    if mode is None or ledger is None:
        return
    terminalreporter.section("conformance (docs/conformance.md)")
    if mode == "table":
        for line in table(ledger):
            terminalreporter.write_line(line)
    verdicts = [ledger.verdict(each) for each in ledger.statements]
    terminalreporter.write_line(
        ", ".join(f"{verdicts.count(word)} {word}" for word in ("passed", "failed", "missing"))
        + f" of {len(verdicts)} statements"
    )
    if unproven := ledger.unproven():
        terminalreporter.write_line("not proven: " + ", ".join(unproven), red=True)


def table(ledger: Ledger) -> Iterator[str]:
    """The lines of the printed table: verdict, id and statement, and below it the tests that carry the id."""
    for statement_id, text in ledger.statements.items():
        yield f"{ledger.verdict(statement_id):<8}{statement_id}  {text}"
        for node_id, cases in _by_function(ledger, statement_id).items():
            count = f" ({len(cases)} cases)" if len(cases) > 1 else ""
            word = min(cases, key=("failed", "not run", "passed").index)
            yield f"{'':<8}{'':<8}{word}: {node_id}{count}"


def _by_function(ledger: Ledger, statement_id: str) -> dict[str, list[str]]:
    """The outcomes of the tests that carry an id, the cases of one parametrised function together. By name: several
    processes end in any order.
    """
    functions: dict[str, list[str]] = {}
    for node_id in sorted(ledger.tests.get(statement_id, [])):
        functions.setdefault(node_id.partition("[")[0], []).append(ledger.proofs[node_id].word)
    return functions
