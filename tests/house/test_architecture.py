"""The arrows of docs/architecture.md are the imports: none that is no import, and none missing; and the contracts of
pyproject.toml hold.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]

Arrows = set[tuple[str, str]]


def drawn() -> Arrows:
    """What the drawing has, from room to room; a room's text stands in brackets, an arrow's between dashes."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = re.sub(r"\[.*?\]", "", text.partition("```mermaid")[2].partition("```")[0])
    lines = [line for line in drawing.splitlines() if ">" in line]
    arrows = [re.fullmatch(r"\s*(\w+)\s+-.*>\s+(\w+)\s*", line) for line in lines]
    assert all(arrows), lines
    return {(each[1], each[2]) for each in arrows if each}


def room(module: str) -> str | None:
    """Where a module stands; None for the package itself, which has only the version and `register`."""
    package, _, rest = module.partition(".")
    if package == "coordinator":
        return "core" if rest.startswith("core") else "service"
    return rest.partition(".")[0] if rest not in {"", "__main__"} else None


def imported() -> Arrows:
    graph = grimp.build_graph("partq_spark", "coordinator", cache_dir=None)
    pairs = {
        (room(module), room(other))
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    }
    return {(one, other) for one, other in pairs if one and other and one != other}


def reached(arrows: Arrows) -> Arrows:
    """Which rooms each can come to, along any number of arrows."""
    found = set(arrows)
    while longer := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= longer
    return found


def test_each_arrow_is_an_import_each_import_is_along_the_arrows_and_none_lead_back() -> None:
    arrows, imports = drawn(), imported()
    assert arrows - imports == set()
    assert imports - reached(arrows) == set()
    assert {one for one, other in reached(arrows) if one == other} == set()


@pytest.mark.conformance("API-01")
def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert f"Contracts: {len(contracts)} kept, 0 broken" in done.stdout, done.stdout + done.stderr


def test_a_module_is_read_in_one_sitting() -> None:
    modules = [path for package in ("partq_spark", "coordinator") for path in (ROOT / package).rglob("*.py")]
    assert [path for path in modules if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []
