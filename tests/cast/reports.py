"""What the commands that run for minutes share (scripts/chaos, scripts/soak): the arguments that all of them take, the
folder of a run, how they tell and end, and the document, of which each replaces its own section.

A section stands between two comments that name it. Its text is a template with the places `{{command}}`, `{{machine}}`
and `{{report}}`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.environment import Environment

DOCUMENT: Final = ROOT / "docs/reliability.md"
TITLE: Final = "# Reliability\n"


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


# --- the document -----------------------------------------------------------------------------------------------------


def filled(template: str, *, command: str, machine: Environment, lines: Sequence[str]) -> str:
    """The template with its places filled; every line of the report becomes an item of a list."""
    where = (
        f"Run {machine.date} at commit {machine.commit} on {machine.cpu}, {machine.cores} cores, {machine.memory}, "
        f"{machine.system}; load of the machine before: {machine.load:.1f}."
    )
    text = template.replace("{{command}}", command).replace("{{machine}}", where)
    return text.replace("{{report}}", "\n".join(f"- {line}" for line in lines))


def put_section(target: Path, name: str, text: str) -> None:
    """Replace the section `name` of a document; one that it does not have yet comes last."""
    page = target.read_text(encoding="utf-8") if target.exists() else TITLE
    begin, end = f"<!-- section {name} -->\n", f"<!-- end of {name} -->\n"
    section = f"{begin}{text.strip()}\n{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if found.search(page):
        page = found.sub(lambda _: section, page)
    else:
        page = f"{page.rstrip()}\n\n{section}"
    target.write_text(page, encoding="utf-8")
