"""The core has no I/O, clock, chance, logging or threads: every import of every module, looked at one by one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).parents[3] / "coordinator/core"
ALLOWED = {*("__future__", "collections.abc", "dataclasses", "enum", "typing", "heapq"), "partq_spark.group.model"}


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from coordinator.core import handoff` names a module
            names |= {f"{module}.{alias.name}" for alias in node.names} if module == "coordinator.core" else {module}
    return names


@pytest.mark.parametrize("file", sorted(CORE.glob("*.py")), ids=lambda file: file.name)
def test_imports(file: Path) -> None:
    others = {name for name in imported(file.read_text(encoding="utf-8")) if not name.startswith("coordinator.core.")}
    assert others <= ALLOWED
