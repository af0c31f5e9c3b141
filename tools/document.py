"""docs/benchmarks.csv, all that was measured, and docs/benchmarks.md, its headlines: written from the outcomes that are
kept and from template.md; never by hand.

A part of which no outcome is kept keeps the lines that the file has of it: which machine and commit they are of stands
in each. Several measurements may stand in the document as one part: `parts` says of each, in the document's order, as
which; its lines begin with its own name then.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.environment import Environment
from tools.report import HEADER, Outcome, cells_of, markdown_line

DOCUMENT: Final = ROOT / "docs/benchmarks.md"
TEMPLATE: Final = ROOT / "benchmarks/template.md"
_FIELDS: Final = ("part", *HEADER[:-1], "result", "measured", "commit", "machine", "rows", "rounds", "notes")
_TABLE: Final = slice(1, 1 + len(HEADER))  # of these, what stands in the document
HEADLINE: Final = re.compile(r"^\{\{(\w+): (.+?)(?: \| (.+))?\}\}$", re.MULTILINE)
_ENVIRONMENT: Final = "{{environment}}"

Line = tuple[str, ...]  # as `_FIELDS` names its values


def write_document(outcomes: Iterable[Outcome], parts: Mapping[str, str], target: Path = DOCUMENT) -> None:
    """Write document and table. Raises `ValueError` if the outcomes come from different machines, or there is none."""
    found = list(outcomes)
    table = target.with_suffix(".csv")
    lines = merged(found, read_lines(table.read_text(encoding="utf-8")) if table.exists() else [], parts)
    target.write_text(document(found, lines, parts, TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")
    table.write_text(text_of(lines), encoding="utf-8")


def merged(outcomes: Sequence[Outcome], former: Iterable[Line], parts: Mapping[str, str]) -> list[Line]:
    """All lines in the order of the parts: those of the outcomes, and of everything else what there was."""
    if not outcomes:
        raise ValueError("no outcome of a full run is kept: run scripts/bench all --peer kafka --write-docs")
    machines = {outcome.environment.machine for outcome in outcomes}
    if len(machines) > 1:
        raise ValueError(
            f"outcomes come from {len(machines)} machines, {sorted(machines)}: run scripts/bench all again"
        )
    order = list(parts)
    measured = {outcome.part for outcome in outcomes}
    lines = [line for outcome in outcomes for line in lines_of(outcome, parts[outcome.part])]
    lines += [line for line in former if _measurement(line, parts) not in measured]
    return sorted(lines, key=lambda line: order.index(_measurement(line, parts)))


def _measurement(line: Line, parts: Mapping[str, str]) -> str:
    """Which one a line is of. Raises `ValueError` for one of a part that is not there."""
    part, what = line[:2]
    for name, shown in parts.items():
        if part == shown and (name == part or what.startswith(f"{name}: ")):
            return name
    raise ValueError(f"the table has a line of part {part!r}, {what!r}, which is not there: give it to one that is")


def lines_of(outcome: Outcome, part: str) -> list[Line]:
    """One line for each measure, as those of `part`; what holds for the whole run stands in each."""
    at = outcome.environment
    machine, notes = f"{at.cpu}, {at.cores} cores", " ".join(outcome.notes)
    run = (at.date, at.commit, machine, str(outcome.rows), str(outcome.rounds), notes)
    begin = "" if part == outcome.part else f"{outcome.part}: "
    return [(part, begin + what, *cells, *run) for what, *cells in cells_of(outcome.measures)]


def document(outcomes: Iterable[Outcome], lines: Sequence[Line], parts: Mapping[str, str], template: str) -> str:
    """The template with its places filled: `{{environment}}`, and the headlines. `{{part: measure | other}}` is the
    line of this measure that is compared with `other`, or with what begins so. Raises `ValueError` for a place that
    names no part.
    """
    unknown = {found[0] for found in HEADLINE.findall(template)} - set(parts.values())
    if unknown:
        raise ValueError(f"the template has places of parts that are not there: {sorted(unknown)}")
    newest = max((outcome.environment for outcome in outcomes), key=lambda each: each.date)
    text = template.replace(_ENVIRONMENT, _environment(newest))
    return HEADLINE.sub(lambda place: _headline(lines, place[1], place[2], place[3] or ""), text)


def _headline(lines: Iterable[Line], part: str, measure: str, other: str) -> str:
    for line in lines:
        if line[:2] == (part, measure) and line[3].startswith(other):
            return markdown_line(line[_TABLE])
    return markdown_line((measure, "", other, "", "", f"not measured yet: scripts/bench {part} --write-docs"))


def _environment(environment: Environment) -> str:
    machine = f"{environment.cpu}, {environment.cores} cores, {environment.memory}"
    return f"{machine}; {environment.disk}; {environment.system}; {environment.versions}"


def read_lines(text: str) -> list[Line]:
    """What `text_of` wrote. Raises `ValueError` for a file with other columns."""
    head, *lines = csv.reader(io.StringIO(text))
    if tuple(head) != _FIELDS:
        raise ValueError(f"the table has the columns {head}, not {list(_FIELDS)}: remove it, and measure again")
    return [tuple(line) for line in lines]


def text_of(lines: Iterable[Line]) -> str:
    """The table as a file has it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((_FIELDS, *lines))
    return text.getvalue()
