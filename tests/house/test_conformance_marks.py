"""Every statement that is due is carried by some test, and every mark names a statement that exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.conformance import REQUIRED, Ledger, Proof, read_statements, table

TESTS = Path(__file__).parents[1]


@cache
def carried_ids() -> list[tuple[str, str]]:
    """(id, file) of every `conformance(...)` in the tests' source, whether or not this run collects it."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "conformance" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.conformance"):
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: an id must be a literal, so that grep finds it"
                    found.append((str(argument.value), str(path.relative_to(TESTS))))
    return found


def test_marks_name_only_statements_that_exist() -> None:
    known = read_statements()
    assert [(each, file) for each, file in carried_ids() if each not in known] == []


def test_every_statement_that_is_due_has_a_test() -> None:
    assert sorted(REQUIRED - {each for each, _ in carried_ids()}) == []


def test_what_is_due_exists() -> None:
    assert sorted(REQUIRED - read_statements().keys()) == []


@pytest.mark.parametrize(
    ("proofs", "verdict"),
    [
        ([], "missing"),
        ([Proof()], "missing"),
        ([Proof(passed=True)], "passed"),
        ([Proof(passed=True), Proof()], "passed"),
        ([Proof(passed=True), Proof(failed=True)], "failed"),
        ([Proof(passed=True, failed=True)], "failed"),
    ],
)
def test_a_statement_is_proven_by_a_test_that_ran_and_passed(proofs: list[Proof], verdict: str) -> None:
    ledger = Ledger(statements={"DIS-01": "first", "ZZZ-99": "not yet due"})
    for number, proof in enumerate(proofs):
        ledger.add("DIS-01", f"test_{number}")
        ledger.proofs[f"test_{number}"] = proof
    assert ledger.verdict("DIS-01") == verdict
    assert ledger.verdict("ZZZ-99") == "later"
    assert ledger.unproven() == ([] if verdict == "passed" else ["DIS-01"])


def test_the_table_shows_cases_of_one_test_as_one_line() -> None:
    ledger = Ledger(statements={"DIS-01": "first"})
    for case in ("file", "azure"):
        ledger.add("DIS-01", f"test_a[{case}]")
        ledger.proofs[f"test_a[{case}]"] = Proof(passed=True)
    assert list(table(ledger)) == ["passed  DIS-01  first", " " * 16 + "passed: test_a (2 cases)"]
