"""What the commands that run for minutes share (scripts/chaos, scripts/soak): the arguments that all of
them take, the folder of a run, the document, and how they tell and end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.support.servers import ROOT

DOCUMENT: Final = ROOT / "docs/reliability.md"


def parser_of(name: str, description: str, *, minutes: float, of: str) -> argparse.ArgumentParser:
    """Takes how long, where and whether the document is written. `minutes`: the default; `of`: what lasts so long."""
    parser = argparse.ArgumentParser(prog=f"scripts/{name}", description=description)
    parser.add_argument("--minutes", type=float, default=float(minutes), help=f"{of}; default {minutes:g}")
    parser.add_argument("--folder", type=Path, help="a new folder for everything (kept); default: a temporary one")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section of docs/{DOCUMENT.name}")
    return parser


def folder_of(name: str, given: Path | None) -> Path:
    """The folder of a run, which is there: the one that was given, or a temporary one."""
    folder = given or Path(tempfile.mkdtemp(prefix=f"partq-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def conclude(failures: Collection[str], folder: Path, again: str) -> int:
    """0 without failures; else 1, and where everything is and what repeats the run is told."""
    if failures:
        tell(f"{folder} is kept; to repeat it: {again}")
    return 1 if failures else 0


def tell(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
