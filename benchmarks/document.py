"""docs/benchmarks.md, written from the outcomes that are kept and from template.md; never by hand.

A part of which no outcome is kept keeps the text that the document has of it: which machine and commit it is of stands
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.environment import ROOT, Environment
from benchmarks.parts import PARTS
from benchmarks.report import Outcome, markdown_table

DOCUMENT: Final = ROOT / "docs/benchmarks.md"
TEMPLATE: Final = Path(__file__).with_name("template.md")
_PLACE: Final = re.compile(r"^\{\{([a-z]+)\}\}$", re.MULTILINE)
_PROCESSOR: Final = re.compile(r"^\| processor \| (.+?) \|$", re.MULTILINE)
_TABLE: Final = "| measure |"


def write_document(outcomes: Iterable[Outcome], target: Path = DOCUMENT) -> None:
    """Put every outcome in its place. Raises `ValueError` if they come from different machines, or there is none."""
    former = target.read_text(encoding="utf-8") if target.exists() else ""
    target.write_text(document(list(outcomes), TEMPLATE.read_text(encoding="utf-8"), former), encoding="utf-8")


def document(outcomes: list[Outcome], template: str, former: str = "") -> str:
    """The template with its places filled: `{{environment}}`, and one of each part's name. `former`: the document that
    this one replaces.
    """
    if not outcomes:
        raise ValueError("no outcome of a full run is kept: run scripts/bench all --peer kafka --write-docs")
    machines = {outcome.environment.machine for outcome in outcomes}
    if len(machines) > 1:
        raise ValueError(
            f"outcomes come from {len(machines)} machines, {sorted(machines)}: run scripts/bench all again"
        )
    texts = {part.name: _missing(part.name) for part in PARTS if not part.has_own_document}
    texts |= _kept(template, former)
    texts |= {outcome.part: _part(outcome) for outcome in outcomes}
    texts["environment"] = _environment(max((outcome.environment for outcome in outcomes), key=lambda each: each.date))
    places = _PLACE.findall(template)
    if sorted(places) != sorted(texts):
        raise ValueError(f"the template has places {sorted(places)}, there are texts for {sorted(texts)}")
    return _PLACE.sub(lambda place: texts[place[1]], template)


def _environment(environment: Environment) -> str:
    lines = (
        ("processor", f"{environment.cpu}, {environment.cores} cores"),
        ("memory", environment.memory),
        ("disk", environment.disk),
        ("system", environment.system),
        ("versions", environment.versions),
    )
    return "\n".join(("| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in lines)))


def _part(outcome: Outcome) -> str:
    environment = outcome.environment
    measured = (
        f"Measured {environment.date} on {environment.cpu}, {environment.cores} cores, at commit {environment.commit} "
        f"with {outcome.rows:,} rows, "
        f"{outcome.rounds} rounds, in {outcome.took_s / 60:.0f} min; load of the machine before: "
        f"{environment.load:.1f}."
    )
    return "\n\n".join((markdown_table(outcome.measures), " ".join((measured, *outcome.notes))))


def _kept(template: str, former: str) -> dict[str, str]:
    """What `former` has of each part: from the table in its section on."""
    processor = _PROCESSOR.search(former)
    old, new = _sections(former), _sections(template)
    found: dict[str, str] = {}
    for heading, text in new.items():
        place = _PLACE.search(text)
        table = old.get(heading, "").find(_TABLE)
        if place is None or table < 0:
            continue
        kept = old[heading][table:].strip()
        if processor is not None:  # written before every part named its own
            kept = re.sub(
                r"^(Measured \S+ \S+ UTC) at commit", rf"\1 on {processor[1]}, at commit", kept, flags=re.MULTILINE
            )
        found[place[1]] = kept
    return found


def _sections(text: str) -> dict[str, str]:
    """By heading, of the second level."""
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in text.split("\n## ")[1:]}


def _missing(part: str) -> str:
    return f"Not measured yet: run `scripts/bench {part} --write-docs`."
