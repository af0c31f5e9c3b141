"""Which test proves which statement of docs/conformance.md: the `conformance` mark, its checks and the printed table.

A pytest plugin (loaded by the root conftest), and what it and the tests of the house share. It knows nothing of what
the tests do. Where tests run in several processes, the one that gives them out collects none: the ids come to it in the
reports, and the table there has no tests that never began.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.parallel import is_worker

_STATEMENT = re.compile(r"^- (?P<id>[A-Z]{3}-\d{2}) (?P<text>.*(?:\n  .*)*)$", re.MULTILINE)
_PROPERTY: Final = "conformance"
"""Under this name the ids of a test are in its reports, also in those of another process."""

_WORDS: Final = ("failed", "passed", "not run")
"""What a run shows of a test: of several the one that stands first. One that was skipped has proven nothing."""


def read_statements() -> dict[str, str]:
    """All statements by id, in the document's order, each as one line of text."""
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    found = [(match["id"], re.sub(r"\n +", " ", match["text"])) for match in _STATEMENT.finditer(text)]
    assert len(dict(found)) == len(found), "an id is there twice"
    return dict(found)


class Ledger:
    """The tests that carry each statement's id, with what this run has shown of them."""

    def __init__(self, mode: str | None) -> None:
        self._mode = mode
        self._statements = read_statements()
        self._proofs: dict[str, dict[str, str]] = {each: {} for each in self._statements}

    def note(self, statement: str, test: str, word: str) -> None:
        """Of one of its phases."""
        known = self._proofs[statement].get(test, "not run")
        self._proofs[statement][test] = min(known, word, key=_WORDS.index)

    def verdict(self, statement: str) -> str:
        """`passed` if a test ran and none failed, else `failed`, or `missing`."""
        word = min(self._proofs[statement].values(), key=_WORDS.index, default="not run")
        return "missing" if word == "not run" else word

    def unproven(self) -> list[str]:
        return [each for each in self._statements if self.verdict(each) != "passed"]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            ids = [str(each) for mark in item.iter_markers("conformance") for each in mark.args]
            for each in ids:
                if each not in self._statements:
                    raise pytest.UsageError(f"{item.nodeid} proves {each!r}, which docs/conformance.md does not have")
                self.note(each, item.nodeid, "not run")
                item.user_properties.append((_PROPERTY, each))
            (chosen if ids else others).append(item)
        if self._mode == "table" and others:
            config.hook.pytest_deselected(items=others)
            items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        has_passed = report.when == "call" and report.passed
        word = "failed" if report.failed else "passed" if has_passed else "not run"
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self.note(str(value), report.nodeid, word)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # A worker has run a part only.
        if self._mode and not is_worker(session.config) and exitstatus == pytest.ExitCode.OK and self.unproven():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._mode is None:
            return
        terminalreporter.section("conformance (docs/conformance.md)")
        for line in self.table() if self._mode == "table" else ():
            terminalreporter.write_line(line)
        verdicts = [self.verdict(each) for each in self._statements]
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("passed", "failed", "missing"))
        terminalreporter.write_line(f"{counts} of {len(verdicts)} statements")
        if unproven := self.unproven():
            terminalreporter.write_line("not proven: " + ", ".join(unproven), red=True)

    def table(self) -> Iterator[str]:
        """Verdict, id and statement, and below it the tests that carry the id, the cases of a function together."""
        for statement, text in self._statements.items():
            yield f"{self.verdict(statement):<8}{statement}  {text}"
            functions: defaultdict[str, list[str]] = defaultdict(list)
            for test, word in sorted(self._proofs[statement].items()):  # several processes end in any order
                functions[test.partition("[")[0]].append(word)
            for function, words in functions.items():
                count = f" ({len(words)} cases)" if len(words) > 1 else ""
                worst = min(words, key=("failed", "not run", "passed").index)
                yield f"{'':<16}{worst}: {function}{count}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--conformance",
        choices=["check", "table"],
        help="check: the run fails unless every statement is proven; "
        "table: run only tests that carry a statement's id, and print all statements with their proofs as well",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ledger(config.getoption("conformance")), "conformance-ledger")
