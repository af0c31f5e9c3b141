"""What a part measured, as values: series, ratios, goals; and the table that shows them. No measuring, no Spark.

Each part's outcome is kept as one JSON file, so that parts can be run at different times and the document still is
written from all of them, by command.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tools.cost.requests import Counted, Counts
from tools.environment import Environment

Named = tuple[str, Iterable[float]]  # samples, and whose they are
HEADER = ("measure", "partq", "compared with", "ratio", "goal", "")
FLOOR = "bare Python"  # how the names begin of a source or sink that does nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """`sign` is `>=` or `<=`. It is about the ratio, or about the subject itself where nothing is compared."""

    sign: Literal[">=", "<="]
    limit: float
    unit: str = ""

    def met(self, value: float) -> bool:
        """Whether `value` reaches the goal."""
        return value >= self.limit if self.sign == ">=" else value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.sign == ">=" else "≤"
        return f"{sign} {number(self.limit)}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One sample per round, in the order of the rounds."""

    name: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def __str__(self) -> str:
        return f"{spread(self.samples)} {self.unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One line of the table: partq's series, and if it is compared, the other's from the same rounds."""

    what: str
    subject: Series
    reference: Series | None = None
    goal: Goal | None = None

    @property
    def ratios(self) -> tuple[float, ...]:
        """Subject / reference, round by round; empty where nothing is compared."""
        if self.reference is None:
            return ()
        return tuple(a / b for a, b in zip(self.subject.samples, self.reference.samples, strict=True))

    @property
    def value(self) -> float:
        """What the goal is about: the median of the paired ratios, or of the subject."""
        return statistics.median(self.ratios or self.subject.samples)

    def verdict(self, floor: Series | None = None) -> str:
        """`met`, or by how much it was missed; empty without a goal. `floor`: of the same rounds, which may miss it
        too.
        """
        if self.goal is None:
            return ""
        if self.goal.met(self.value):
            return "met"
        missed = f"missed by {abs(self.value / self.goal.limit - 1):.0%}"
        if floor is None or floor == self.reference:
            return missed
        its = Measure(what=self.what, subject=floor, reference=self.reference).value
        return missed if self.goal.met(its) else f"{missed}; the floor, too ({number(its)})"

    def cells(self, floor: Series | None = None) -> tuple[str, ...]:
        """The line's cells, in the order of `HEADER`; `floor` as in `verdict`."""
        return (
            self.what,
            str(self.subject),
            f"{self.reference.name}: {self.reference}" if self.reference else "",
            spread(self.ratios) if self.ratios else "",
            str(self.goal) if self.goal else "",
            self.verdict(floor),
        )


def figure(
    what: str, samples: Iterable[float], unit: str, *, most: float | None = None, name: str = "partq"
) -> Measure:
    """A line that is compared with nothing: what was found, round by round, and how much it may be at most."""
    goal = Goal(sign="<=", limit=most, unit=unit.removesuffix(" of a core")) if most is not None else None
    return Measure(what=what, subject=Series(name=name, unit=unit, samples=tuple(samples)), goal=goal)


def compared(
    what: str,
    unit: str,
    ours: Named,
    theirs: Named,
    goal: Goal | None = None,
) -> Measure:
    """A line of two sides, each with its name, from the same rounds."""
    one, other = (Series(name=name, unit=unit, samples=tuple(samples)) for name, samples in (ours, theirs))
    return Measure(what=what, subject=one, reference=other, goal=goal)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One part's run. `notes` are plain sentences about what this very run used, such as versions and settings;
    `counted` is what part `cost` counted.
    """

    part: str
    environment: Environment
    rows: int
    rounds: int
    took_s: float
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    counted: tuple[Counted, ...] = ()


def number(value: float) -> str:
    """Three significant digits at least, thousands apart: 1,234,567; 45.6; 1.23; 0.0123."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3f}" if size >= 0.1 else f"{value:.2g}"


def spread(samples: Sequence[float]) -> str:
    """`median (min..max)`, or the one value there is."""
    median = number(statistics.median(samples))
    return median if len(samples) == 1 else f"{median} ({number(min(samples))}..{number(max(samples))})"


def text_table(measures: Iterable[Measure]) -> str:
    """For a terminal: columns padded, no more."""
    lines = [HEADER, *cells_of(measures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown_table(measures: Iterable[Measure]) -> str:
    """For the document."""
    return "\n".join(map(markdown_line, (HEADER, ("---",) * len(HEADER), *cells_of(measures))))


def markdown_line(cells: Iterable[str]) -> str:
    """One line of it."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cells_of(measures: Iterable[Measure]) -> list[tuple[str, ...]]:
    """Of every line, which is told what the floor was in the same rounds of the same measurement."""
    lines = list(measures)
    references = [(each.what, each.reference) for each in lines if each.reference is not None]
    floors = {what: found for what, found in references if found.name.startswith(FLOOR)}
    return [each.cells(floors.get(each.what)) for each in lines]


# --- kept between runs ------------------------------------------------------------------------------------------------


def save(outcome: Outcome, folder: Path) -> Path:
    """Write the outcome in place of the part's former one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.part}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return partial.replace(path)


def load(path: Path) -> Outcome:
    """Read what `save` wrote."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Outcome(
        part=raw["part"],
        environment=Environment(**raw["environment"]),
        rows=raw["rows"],
        rounds=raw["rounds"],
        took_s=raw["took_s"],
        measures=tuple(
            Measure(
                what=each["what"],
                subject=_series(each["subject"]),
                reference=_series(each["reference"]) if each["reference"] else None,
                goal=Goal(**each["goal"]) if each["goal"] else None,
            )
            for each in raw["measures"]
        ),
        notes=tuple(raw["notes"]),
        counted=tuple(
            Counted(table=each["table"], what=each["what"], counts=Counts(**each["counts"]))
            for each in raw.get("counted", ())
        ),
    )


def _series(raw: dict[str, object]) -> Series:
    name, unit, samples = raw["name"], raw["unit"], raw["samples"]
    if not isinstance(samples, list):
        raise TypeError(
            f"samples of {name!r} are {type(samples).__name__}, not a list: remove the file and measure again"
        )
    return Series(name=str(name), unit=str(unit), samples=tuple(float(sample) for sample in samples))
