"""Builds the documentation site; what `scripts/docs` runs.

Sphinx' warnings are errors: a link to a page or heading that is not there, a page that is in no list of contents, a
docstring that cannot be read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import ROOT


def build(folder: Path) -> str:
    """Build the site into a folder, anew. Answers Sphinx' complaints; empty if there are none."""
    with tempfile.TemporaryDirectory() as parsed:
        options = ["-b", "html", "-c", str(ROOT / "docs/site"), "-d", parsed, "-q", "--fail-on-warning"]
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    return done.stderr or ("" if done.returncode == 0 else f"sphinx ended with {done.returncode}")


def main() -> int:
    """Build into the folder that is named; 1 if Sphinx complained."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if complaints := build(folder):
        print(complaints, file=sys.stderr)  # noqa: T201 - a script's output
        return 1
    print(f"{folder / 'index.html'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
