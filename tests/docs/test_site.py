"""The documentation site is built without a complaint, and whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partq
from tools import ROOT
from tools.site import build


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{names\}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"\w+", " ".join(blocks))) == sorted(set(vars(partq)["__all__"]) - {"__version__"})


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_complaint(tmp_path: Path) -> None:
    assert build(tmp_path) == ""
    assert "mermaid" in (tmp_path / "docs/topics.html").read_text(encoding="utf-8")
    assert "mermaid" not in (tmp_path / "docs/options.html").read_text(encoding="utf-8")
