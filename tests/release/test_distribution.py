"""Wheel and sdist, as far as can be told without installing what they need, which `scripts/release-check` does."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.release.check import ROOT, Failed, build, check_contents


@pytest.mark.slow
def test_the_sdist_is_whole_and_makes_the_same_wheel(tmp_path: Path) -> None:
    check_contents(build(ROOT, "wheel", tmp_path), build(ROOT, "sdist", tmp_path), tmp_path / "source")


@pytest.mark.slow
def test_an_sdist_that_lacks_a_file_is_noticed(tmp_path: Path) -> None:
    wheel, sdist = build(ROOT, "wheel", tmp_path), build(ROOT, "sdist", tmp_path)
    less = tmp_path / "less" / sdist.name
    less.parent.mkdir()
    with tarfile.open(sdist) as whole, tarfile.open(less, "w:gz") as cut:
        for member in whole.getmembers():
            if not member.name.endswith("/SECURITY.md"):
                cut.addfile(member, whole.extractfile(member) if member.isfile() else None)
    with pytest.raises(Failed, match=r"SECURITY\.md"):
        check_contents(wheel, less, tmp_path / "source")
