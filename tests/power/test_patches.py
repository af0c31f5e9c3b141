"""Each patch still applies to the code as it is: else it would test nothing, and be taken for noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.patches import Patch, patched, patches

ROOT = Path(__file__).parents[2]
ALL = [(kind, patch) for kind in ("guards", "repairs") for patch in patches(kind)]


def test_names_are_each_ones_own() -> None:
    assert len({(kind, patch.name) for kind, patch in ALL}) == len(ALL)


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
