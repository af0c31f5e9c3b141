"""The documentation site is built without a complaint, and whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partq
from tests.docs.site import ROOT, build, dead_links

CONTENTS = ROOT / "docs/site/contents.md"


def test_every_page_is_in_the_contents() -> None:
    """As Sphinx says too, but in a moment."""
    listed = set(re.findall(r"^[\w/-]+$", CONTENTS.read_text(encoding="utf-8"), re.MULTILINE))
    below = {"docs/api": ROOT / "docs/api/index.md", "docs/decisions": None}  # the decisions' index takes all of them
    for folder, index in below.items():
        assert f"{folder}/index" in listed
        if index is not None:
            names = re.findall(r"^[\w-]+$", index.read_text(encoding="utf-8"), re.MULTILINE)
            listed |= {f"{folder}/{name}" for name in names}
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    names = [path.relative_to(ROOT).with_suffix("").as_posix() for path in pages if path != CONTENTS]
    without = [each for each in names if not each.startswith("docs/decisions/")]
    assert sorted(set(without) - listed - {"README"}) == [], f"give it a line in {CONTENTS.relative_to(ROOT)}"


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    named = re.findall(r"^\.\. auto\w+:: partq\.(\w+)$", pages, re.MULTILINE)
    assert sorted(named) == sorted(set(vars(partq)["__all__"]) - {"__version__"})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_complaint(tmp_path: Path) -> None:
    assert build(tmp_path) == ""
    assert list(dead_links(tmp_path)) == []
    assert "mermaid" in (tmp_path / "docs/topics.html").read_text(encoding="utf-8")
    assert "mermaid" not in (tmp_path / "docs/options.html").read_text(encoding="utf-8")
