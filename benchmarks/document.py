"""docs/benchmarks.md, written from the outcomes that are kept and from template.md; never by hand."""

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


def write_document(outcomes: Iterable[Outcome], target: Path = DOCUMENT) -> None:
    """Put every outcome in its place. Raises `ValueError` if they come from different machines, or there is none."""
    target.write_text(document(list(outcomes), TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")


def document(outcomes: list[Outcome], template: str) -> str:
    """The template with its places filled: `{{environment}}`, and one of each part's name."""
    if not outcomes:
        raise ValueError("no outcome of a full run is kept: run scripts/bench all --peer kafka --write-docs")
    machines = {outcome.environment.machine for outcome in outcomes}
    if len(machines) > 1:
        raise ValueError(
            f"outcomes come from {len(machines)} machines, {sorted(machines)}: run scripts/bench all again"
        )
    texts = {part.name: _missing(part.name) for part in PARTS}
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
        f"Measured {environment.date} at commit {environment.commit} with {outcome.rows:,} rows, "
        f"{outcome.rounds} rounds, in {outcome.took_s / 60:.0f} min; load of the machine before: "
        f"{environment.load:.1f}."
    )
    return "\n\n".join((markdown_table(outcome.measures), " ".join((measured, *outcome.notes))))


def _missing(part: str) -> str:
    return f"Not measured yet: run `scripts/bench {part} --write-docs`."
