"""Each patch still applies to the code as it is: else it would test nothing, and be taken for noticed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.power.patches import Patch, patched, patches

ROOT = Path(__file__).parents[2]
ALL = [(kind, patch) for kind in ("guards", "repairs") for patch in patches(kind)]


def test_names_are_each_ones_own() -> None:
    assert len({(kind, patch.name) for kind, patch in ALL}) == len(ALL)


def test_what_notices_them_is_there() -> None:
    """Whether it still notices is tried at night; a test that was renamed is found now."""
    missing = []
    for _, patch in ALL:
        path, _, test = (patch.noticed_by or "").split(" -")[0].partition("::")
        names = ast.walk(ast.parse((ROOT / path).read_text())) if test and (ROOT / path).is_file() else ()
        found = {each.name for each in names if isinstance(each, ast.FunctionDef)}
        if test and test.partition("[")[0] not in found:
            missing.append((patch.name, patch.noticed_by))
    assert not missing


@pytest.mark.parametrize("patch", [patch for _, patch in ALL], ids=[f"{kind}: {patch.name}" for kind, patch in ALL])
def test_it_applies_and_compiles(patch: Patch) -> None:
    """The text that it changes is there once. Where code was changed on purpose, change the patch with it: what is to
    go wrong is said in `without`.
    """
    before = {change.module: (ROOT / change.module).read_text() for change in patch.changes}
    for module, text in patched(patch, before.__getitem__).items():
        assert text != before[module]
        if module.endswith(".py"):
            compile(text, module, "exec", dont_inherit=True)
