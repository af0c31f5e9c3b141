"""What the benchmarks' document and table promise: paired ratios, goals, headlines that are lines of the table, and
parts that stay until they are measured again. No JVM, no measuring.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.document import DOCUMENT, HEADLINE, TEMPLATE, document, merged, read_lines, write_document
from tools.environment import Environment
from tools.report import FLOOR, Goal, Measure, Outcome, Series, load, markdown_table, save

PARTS = {name: name for name in ("read", "publish", "rows", "microbatch", "latency", "memory", "flows", "planning")}
PARTS |= {"head": "bounds", "against": "against"}
MACHINE = Environment(
    date="2026-01-02 03:04 UTC",
    commit="abc",
    cpu="a cpu",
    cores=2,
    memory="24 GiB",
    disk="ext4",
    system="Linux",
    versions="Python 3.11",
    load=0.1,
)


def series(*samples: float, name: str = "other", unit: str = "k rows/s") -> Series:
    return Series(name=name, unit=unit, samples=samples)


READING = Measure(
    what="reading", subject=series(30, 10, 20), reference=series(10, 10, 10), goal=Goal(sign=">=", limit=1.0)
)
ALONE = Measure(what="alone", subject=series(2.5), goal=Goal(sign="<=", limit=2.0, unit="s"))


def outcome(part: str = "read", environment: Environment = MACHINE) -> Outcome:
    measures = (READING, ALONE)
    return Outcome(
        part=part, environment=environment, rows=8, rounds=3, took_s=61, measures=measures, notes=("A note.",)
    )


def test_a_line_has_the_median_of_the_rounds_ratios_and_says_by_how_much_a_goal_was_missed() -> None:
    assert Measure(what="x", subject=series(1, 9, 5), reference=series(1, 3, 10)).value == 1, "of medians it is 5 / 3"
    lines = markdown_table([READING, ALONE]).splitlines()
    assert lines[2] == "| reading | 20 (10..30) k rows/s | other: 10 (10..10) k rows/s | 2 (1..3) | ≥ 1 | met |"
    assert lines[3] == "| alone | 2.50 k rows/s |  |  | ≤ 2 s | missed by 25% |"


def test_a_missed_goal_says_whether_the_floor_of_the_same_rounds_misses_it_too() -> None:
    goal = Goal(sign=">=", limit=1.5)
    found = [
        Measure(what="publishing", subject=series(2, 2, 2), reference=series(*[rate] * 3), goal=goal)
        for rate in (1.0, 2.0, 6.0)
    ]
    floor = series(3, 3, 3, name=f"{FLOOR} sink")
    bare = Measure(what="publishing", subject=series(2, 2, 2), reference=floor, goal=Goal(sign=">=", limit=0.75))
    lines = markdown_table([*found, bare, replace(found[2], what="reading")]).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == [
        "met",
        "missed by 33%",
        "missed by 78%; the floor, too (0.500)",
        "missed by 11%",
        "missed by 78%",
    ]


def test_all_lines_are_kept_beside_the_headlines_and_those_of_parts_not_measured_again_stay(tmp_path: Path) -> None:
    assert load(save(outcome(), tmp_path / "new")) == outcome()
    page = tmp_path / "benchmarks.md"
    write_document([outcome()], PARTS, page)
    text = page.read_text(encoding="utf-8")
    assert "{{" not in text
    assert text.count("not measured yet: scripts/bench ") == len(HEADLINE.findall(TEMPLATE.read_text(encoding="utf-8")))
    run = ("2026-01-02 03:04 UTC", "abc", "a cpu, 2 cores", "8", "3", "A note.")
    reading = ("read", "reading", "20 (10..30) k rows/s", "other: 10 (10..10) k rows/s", "2 (1..3)", "≥ 1", "met", *run)
    old = read_lines(page.with_suffix(".csv").read_text(encoding="utf-8"))
    assert [line[:2] for line in old] == [("read", "reading"), ("read", "alone")]
    assert old[0] == reading
    write_document([outcome("head", replace(MACHINE, cpu="another"))], PARTS, page)
    lines = read_lines(page.with_suffix(".csv").read_text(encoding="utf-8"))
    assert lines[:2] == old
    assert {(line[0], line[1][:6], line[9]) for line in lines[2:]} == {("bounds", "head: ", "another, 2 cores")}
    with pytest.raises(ValueError, match="2 machines"):
        merged([outcome("read"), outcome("head", replace(MACHINE, cores=64))], [], PARTS)
    with pytest.raises(ValueError, match="places of parts"):
        document([outcome()], lines, PARTS, "{{reed: reading}}")
    with pytest.raises(ValueError, match="columns"):
        read_lines("part,what\n")


def test_a_headline_is_the_line_of_its_measure_and_of_what_it_is_compared_with() -> None:
    lines = merged([outcome()], [], PARTS)
    template = "{{environment}}\n{{read: reading | oth}}\n{{read: reading | none}}\n{{read: alone}}"
    text = document([outcome()], lines, PARTS, template)
    assert [line.split(" | ")[0] for line in text.splitlines()] == [
        "a cpu, 2 cores, 24 GiB; ext4; Linux; Python 3.11",
        "| reading",
        "| reading",
        "| alone",
    ]
    assert "| reading | 20 (10..30) k rows/s | other: 10 (10..10) k rows/s | 2 (1..3) | ≥ 1 | met |" in text
    assert "| reading |  | none |  |  | not measured yet: scripts/bench read --write-docs |" in text


def test_every_headline_was_measured() -> None:
    """What the page shows is what the table has: none was left out, and no number was changed by hand."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = read_lines(DOCUMENT.with_suffix(".csv").read_text(encoding="utf-8"))
    template = TEMPLATE.read_text(encoding="utf-8")
    shown = document([outcome()], lines, PARTS, template)
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        line for line in shown.splitlines() if line.startswith("|")
    ]
