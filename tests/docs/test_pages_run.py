"""The pages that are followed step by step, run as they stand: shell and Python blocks in their order, on one store.

Blocks with Spark are left out here (tests/docs/test_code_blocks.py reads them); `sh` in place of `bash` marks what only
makes sense on a user's machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import partq
from tests.docs.blocks import ROOT, blocks

PAGES = ("docs/quickstart.md", "docs/recipes.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PARTQ_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    run = 0
    for block in blocks(ROOT / page):
        if block.language == "bash":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True, timeout=60)
        elif block.language == "python" and 'format("partq")' not in block.text:  # which is Spark's
            exec(compile(block.text, str(block), "exec"), names)  # noqa: S102 - our own pages
        else:
            continue
        run += 1
    assert run >= 3
    assert partq.open_queue("orders").describe().messages > 0, "in ~/.partq, as the pages say"
