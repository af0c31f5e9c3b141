"""What the benchmarks' document promises: paired ratios, goals, and parts that stay until they are measured again. No
JVM, no measuring.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.document import TEMPLATE, document, write_document
from benchmarks.environment import Environment
from benchmarks.parts import PARTS
from benchmarks.report import FLOOR, Goal, Measure, Outcome, Series, load, markdown_table, save

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


def test_the_document_has_every_part_and_keeps_those_that_were_not_measured_again(tmp_path: Path) -> None:
    assert load(save(outcome(), tmp_path / "new")) == outcome()
    page = tmp_path / "benchmarks.md"
    write_document([outcome()], page)
    old = page.read_text(encoding="utf-8")
    assert "{{" not in old
    assert "Measured 2026-01-02 03:04 UTC on a cpu, 2 cores, at commit abc with 8 rows, 3 rounds, in 1 min" in old
    assert "A note." in old
    own = [part for part in PARTS if not part.has_own_document]
    assert old.count("Not measured yet: run `scripts/bench ") == len(own) - 1
    head = outcome("head", replace(MACHINE, cpu="another"))
    write_document([head], page)
    text = page.read_text(encoding="utf-8")
    assert text.count("| reading | 20 (10..30) k rows/s |") == 2
    assert "Measured 2026-01-02 03:04 UTC on a cpu, 2 cores, at commit abc" in text
    assert "Measured 2026-01-02 03:04 UTC on another, 2 cores, at commit abc" in text
    template = TEMPLATE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="2 machines"):
        document([outcome("read"), outcome("head", replace(MACHINE, cores=64))], template)
    with pytest.raises(ValueError, match="places"):
        document([outcome()], template.replace("{{head}}", ""))
