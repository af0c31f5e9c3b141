"""The benchmark's own arithmetic, tables and document, which turns it takes and what it pairs: no JVM, no measuring."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import rows
from benchmarks.__main__ import parsed
from benchmarks.against import losers, paired
from benchmarks.document import TEMPLATE, document, write_document
from benchmarks.environment import ROOT, Environment, observe
from benchmarks.messages import FILES, VALUE_BYTES, make_messages
from benchmarks.parts import AGAINST, PARTS
from benchmarks.report import FLOOR, Goal, Measure, Outcome, Series, load, markdown_table, number, save, text_table
from benchmarks.settings import DEFAULT_ROWS

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


def outcome(part: str = "read", environment: Environment = MACHINE, *lines: Measure) -> Outcome:
    reading = Measure(what="reading", subject=series(30, 10, 20), reference=series(10, 10, 10), goal=at_least(1.0))
    alone = Measure(what="alone", subject=series(2.5), goal=Goal(sign="<=", limit=2.0, unit="s"))
    return Outcome(
        part=part,
        environment=environment,
        rows=8,
        rounds=3,
        took_s=61,
        measures=lines or (reading, alone),
        notes=("A note.",),
    )


def at_least(limit: float) -> Goal:
    return Goal(sign=">=", limit=limit)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_numbers_have_three_digits() -> None:
    shown = [number(each) for each in (1234567.8, 123.4, 45.67, 3.0, 1.234, 0.3, 0.0123, 0.0)]
    assert shown == ["1,234,568", "123", "45.7", "3", "1.23", "0.300", "0.012", "0"]


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() -> None:
    measure = Measure(what="x", subject=series(1, 9, 5), reference=series(1, 3, 10))
    assert list(measure.ratios) == [1, 3, 0.5]
    assert measure.value == 1  # the medians' ratio would be 5 / 3


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        (Goal(sign=">=", limit=2.0), "met"),
        (Goal(sign="<=", limit=2.0), "met"),
        (Goal(sign=">=", limit=4.0), "missed by 50%"),
        (Goal(sign="<=", limit=1.6), "missed by 25%"),
        (None, ""),
    ],
)
def test_a_goal_says_by_how_much_it_was_missed(goal: Goal | None, verdict: str) -> None:
    assert Measure(what="x", subject=series(4), reference=series(2), goal=goal).verdict() == verdict


def test_tables_have_a_line_for_every_measure() -> None:
    measures = outcome().measures
    assert [line.split()[0] for line in text_table(measures).splitlines()] == ["measure", "reading", "alone"]
    lines = markdown_table(measures).splitlines()
    assert {line.count("|") for line in lines} == {7}
    assert lines[2] == "| reading | 20 (10..30) k rows/s | other: 10 (10..10) k rows/s | 2 (1..3) | ≥ 1 | met |"
    assert lines[3] == "| alone | 2.50 k rows/s |  |  | ≤ 2 s | missed by 25% |"


def test_a_missed_goal_says_whether_the_floor_of_the_same_rounds_misses_it_too() -> None:
    found = [
        Measure(what="publishing", subject=series(2, 2, 2), reference=series(*[rate] * 3), goal=at_least(1.5))
        for rate in (1.0, 2.0, 6.0)
    ]
    floor = series(3, 3, 3, name=f"{FLOOR} sink")
    bare = Measure(what="publishing", subject=series(2, 2, 2), reference=floor, goal=at_least(0.75))
    lines = markdown_table([*found, bare, replace(found[2], what="reading")]).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == [
        "met",
        "missed by 33%",
        "missed by 78%; the floor, too (0.500)",
        "missed by 11%",
        "missed by 78%",
    ]


# --- the document -----------------------------------------------------------------------------------------------------


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
    page.write_text(old.replace(" UTC on a cpu, 2 cores, at", " UTC at"), encoding="utf-8")  # as it once was
    head = outcome("head", replace(MACHINE, cpu="another"))
    write_document([head], page)
    text = page.read_text(encoding="utf-8")
    assert text.count("| reading | 20 (10..30) k rows/s |") == 2
    assert "Measured 2026-01-02 03:04 UTC on a cpu, 2 cores, at commit abc" in text
    assert "Measured 2026-01-02 03:04 UTC on another, 2 cores, at commit abc" in text
    write_document([head], page)
    assert page.read_text(encoding="utf-8") == text


def test_the_document_is_never_made_of_two_machines_of_nothing_or_without_a_part() -> None:
    template = TEMPLATE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="2 machines"):
        document([outcome("read"), outcome("head", replace(MACHINE, cores=64))], template)
    with pytest.raises(ValueError, match="no outcome"):
        document([], template)
    with pytest.raises(ValueError, match="places"):
        document([outcome()], template.replace("{{head}}", ""))


# --- what is run ------------------------------------------------------------------------------------------------------


def test_every_part_has_its_function() -> None:
    for part in PARTS:
        module, _, function = part.call.partition(":")
        tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, part.name


def test_the_command_line_takes_what_the_help_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert parsed(["all", "--peer", "kafka"]).part == [part.name for part in PARTS if part.name != AGAINST]
    assert parsed(["read", "--quick"]).rows < DEFAULT_ROWS
    for words, said in (
        (["nothing"], "unknown part 'nothing'"),
        ([], ""),
        (["read", "--rows", "0"], ""),
        (["read", "--peer", "pulsar"], ""),
        (["read", "--work-dir", str(tmp_path)], "is not empty"),
        ([AGAINST, "--commit", "HEAD"], "against needs --commit COMMIT and --of PART"),
        ([AGAINST, "--commit", "HEAD", "--of", "reading"], "unknown part 'reading'"),
        ([AGAINST, "--commit", "HEAD", "--of", AGAINST], ""),
    ):
        with pytest.raises(SystemExit, match="2"):
            parsed(words)
        assert said in capsys.readouterr().err


def test_the_rows_are_as_described(tmp_path: Path) -> None:
    made = make_messages(20_000)
    values = made["value"].to_pylist()
    assert {len(value) for value in values} == {VALUE_BYTES}
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"N\d{3}[A-Z]{2}", key) for key in made["key"].to_pylist())
    assert make_messages(20_000).equals(made)
    assert not make_messages(20_000, part=1).equals(made)
    rows.write_flights(tmp_path / "rows", 400_003)
    files = sorted((tmp_path / "rows").iterdir())
    assert len(files) == FILES
    written = [each for file in files for each in pq.read_table(file, columns=["flight"])["flight"].to_pylist()]
    assert written == (rows._flights()["flight"].to_pylist() * 2)[:400_003]
    seen = observe(tmp_path)
    assert seen.cores >= 1
    assert "fsync" in seen.disk
    assert "unknown" not in seen.versions


def test_nobody_ships_the_benchmarks() -> None:
    for package in ("partq_spark", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"^\s*(from|import) benchmarks", path.read_text(encoding="utf-8"), re.MULTILINE), path


# --- two commits beside each other ------------------------------------------------------------------------------------


def line(what: str, *samples: float, unit: str = "rows/s", name: str = "partq", beside: str = "") -> Measure:
    reference = series(*samples, name=beside, unit=unit) if beside else None
    return Measure(what=what, subject=series(*samples, name=name, unit=unit), reference=reference)


def test_what_both_commits_measure_is_paired_round_by_round() -> None:
    before = [outcome("read", MACHINE, line("reading", each), line("gone", 1)) for each in (10, 20)]
    here = [outcome("read", MACHINE, line("new", 1), line("reading", each)) for each in (30, 10)]
    (found,) = paired("read", before, here, "abc")
    assert (found.what, found.ratios) == ("read: reading", (3, 0.5))
    assert found.reference is not None
    assert found.reference.name == "abc"
    several = (line("reading", 10, beside="Parquet"), line("reading", 10, beside="Kafka"), line("conflicts", 0))
    before = [outcome("read", MACHINE, *several)]
    assert [each.what for each in paired("read", before, before, "abc")] == ["read: reading"]
    before = [outcome("read", MACHINE, line("reading", 10), line("reading", 30, name="partq, in a group"))]
    assert [each.what for each in paired("read", before, before, "abc")] == [
        "read: reading, partq",
        "read: reading, partq, in a group",
    ]
    before = [outcome("read", MACHINE, line("reading, whole query", 10))]
    here = [outcome("read", MACHINE, line("reading all seven columns, whole query", 20))]
    assert [each.ratios for each in paired("read", before, here, "abc")] == [(2,)], "as it is called now"


@pytest.mark.parametrize(
    ("unit", "now", "lost"),
    [
        ("rows/s", (90, 95), True),
        ("rows/s", (90, 98), False),
        ("ms", (110, 104), True),
        ("ms", (110, 102), False),
        ("ms", (90, 90), False),
        ("ms", (0, 0), False),
    ],
)
def test_lost_has_what_is_slower_in_every_round(unit: str, now: tuple[float, ...], lost: bool) -> None:
    measure = Measure(
        what="it",
        subject=Series(name="partq", unit=unit, samples=now),
        reference=Series(name="abc", unit=unit, samples=(100,) * len(now)),
    )
    assert losers([measure]) == (["it"] if lost else [])
