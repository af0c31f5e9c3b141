"""Every statement is carried by some test, and every mark names a statement that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.conformance import read_statements

TESTS = Path(__file__).parents[1]
TOLD = re.compile(r"^([A-Z]{3}-\d{2}(?:, [A-Z]{3}-\d{2})*): ", re.MULTILINE)
"""How a paragraph begins that `tests/coordinator/core/context.py` makes a test of."""


def carried_ids() -> list[tuple[str, str]]:
    """(id, file) of every `conformance(...)` and told history in the tests, whether or not this run collects it."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(TESTS))
        found += [(each, name) for ids in TOLD.findall(text) for each in ids.split(", ")]
        for node in ast.walk(ast.parse(text)) if "conformance" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.conformance"):
                starred = [each.value for each in node.args if isinstance(each, ast.Starred)]
                several = [each for group in starred if isinstance(group, ast.Tuple) for each in group.elts]
                for argument in [*several, *(each for each in node.args if not isinstance(each, ast.Starred))]:
                    assert isinstance(argument, ast.Constant), f"{path}: an id must be a literal, so that grep finds it"
                    found.append((str(argument.value), name))
    return found


def test_marks_name_statements_that_exist_and_every_one_has_a_test() -> None:
    known, carried = read_statements(), carried_ids()
    assert [(each, file) for each, file in carried if each not in known] == []
    assert sorted(known.keys() - {each for each, _ in carried}) == []
