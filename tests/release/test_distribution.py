"""Wheel and sdist, as far as can be told without installing what they need, which `scripts/release-check` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.release.check import ROOT, build, check_contents


@pytest.mark.slow
def test_the_sdist_is_whole_and_makes_the_same_wheel(tmp_path: Path) -> None:
    check_contents(build(ROOT, "wheel", tmp_path), build(ROOT, "sdist", tmp_path), tmp_path / "source")
