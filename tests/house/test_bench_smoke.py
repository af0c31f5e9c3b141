"""The benchmark's own arithmetic, tables and document: no JVM, no measuring."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.__main__ import parsed
from benchmarks.document import TEMPLATE, document, write_document
from benchmarks.environment import ROOT, Environment, observe
from benchmarks.messages import VALUE_BYTES, make_messages
from benchmarks.parts import AGAINST, PARTS
from benchmarks.report import FLOOR, Goal, Measure, Outcome, Series, load, markdown_table, number, save, text_table
from benchmarks.settings import DEFAULT_ROUNDS, DEFAULT_ROWS, Settings

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


def series(*samples: float) -> Series:
    return Series(name="other", unit="k rows/s", samples=samples)


def outcome(part: str = "read", environment: Environment = MACHINE) -> Outcome:
    measures = (
        Measure(
            what="reading",
            subject=series(30, 10, 20),
            reference=series(10, 10, 10),
            goal=Goal(sign=">=", limit=1.0),
        ),
        Measure(what="alone", subject=series(2.5), goal=Goal(sign="<=", limit=2.0, unit="s")),
    )
    return Outcome(
        part=part, environment=environment, rows=8, rounds=3, took_s=61, measures=measures, notes=("A note.",)
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.8, "1,234,568"),
        (123.4, "123"),
        (45.67, "45.7"),
        (3.0, "3"),
        (1.234, "1.23"),
        (0.3, "0.300"),
        (0.0123, "0.012"),
        (0.0, "0"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


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
    partq, floor = series(2, 2, 2), Series(name=f"{FLOOR} sink", unit="k rows/s", samples=(3, 3, 3))
    others = {"slow": 1.0, "quick": 2.0, "quickest": 6.0}
    measures = [
        Measure(
            what="publishing",
            subject=partq,
            reference=Series(name=name, unit="k rows/s", samples=(rate,) * 3),
            goal=Goal(sign=">=", limit=1.5),
        )
        for name, rate in others.items()
    ]
    bare = Measure(what="publishing", subject=partq, reference=floor, goal=Goal(sign=">=", limit=0.75))
    elsewhere = replace(measures[2], what="reading")
    lines = markdown_table([*measures, bare, elsewhere]).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == [
        "met",
        "missed by 33%",
        "missed by 78%; the floor, too (0.500)",
        "missed by 11%",
        "missed by 78%",
    ]


def test_an_outcome_survives_the_file_it_is_kept_in(tmp_path: Path) -> None:
    assert load(save(outcome(), tmp_path / "new")) == outcome()


def test_the_document_has_every_part_or_says_how_to_measure_it(tmp_path: Path) -> None:
    write_document([outcome()], tmp_path / "benchmarks.md")
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "{{" not in text
    assert "| reading | 20 (10..30) k rows/s |" in text
    assert "Measured 2026-01-02 03:04 UTC on a cpu, 2 cores, at commit abc with 8 rows, 3 rounds, in 1 min" in text
    assert "A note." in text
    assert (
        text.count("Not measured yet: run `scripts/bench ")
        == len([part for part in PARTS if not part.has_own_document]) - 1
    )
    assert "a cpu, 2 cores" in text


def test_a_part_that_was_not_measured_again_keeps_its_text_and_names_its_machine(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write_document([outcome()], page)
    old = page.read_text(encoding="utf-8")
    page.write_text(old.replace(" UTC on a cpu, 2 cores, at", " UTC at"), encoding="utf-8")  # as it once was
    write_document([outcome("head", replace(MACHINE, cpu="another"))], page)
    text = page.read_text(encoding="utf-8")
    assert text.count("| reading | 20 (10..30) k rows/s |") == 2
    assert "Measured 2026-01-02 03:04 UTC on a cpu, 2 cores, at commit abc" in text
    assert "Measured 2026-01-02 03:04 UTC on another, 2 cores, at commit abc" in text
    write_document([outcome("head", replace(MACHINE, cpu="another"))], page)
    assert page.read_text(encoding="utf-8") == text


def test_the_document_is_never_made_of_two_machines_or_of_nothing() -> None:
    template = TEMPLATE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="2 machines"):
        document([outcome("read"), outcome("head", replace(MACHINE, cores=64))], template)
    with pytest.raises(ValueError, match="no outcome"):
        document([], template)


def test_a_template_without_a_place_for_a_part_is_refused() -> None:
    template = TEMPLATE.read_text(encoding="utf-8").replace("{{head}}", "")
    with pytest.raises(ValueError, match="places"):
        document([outcome()], template)


def test_every_part_has_its_function() -> None:
    for part in PARTS:
        module, _, function = part.call.partition(":")
        tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, part.name


def test_the_command_line_takes_what_the_help_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert parsed(["all", "--peer", "kafka"]).part == [part.name for part in PARTS if part.name != AGAINST]
    assert parsed(["head", "read"]).part == ["head", "read"]
    assert parsed(["read", "--quick"]).rows < DEFAULT_ROWS
    for wrong in (
        ["nothing"],
        [],
        ["read", "--rows", "0"],
        ["read", "--peer", "pulsar"],
        ["read", "--work-dir", str(tmp_path)],
        [AGAINST],
        [AGAINST, "--commit", "HEAD"],
        [AGAINST, "--commit", "HEAD", "--of", "reading"],
        [AGAINST, "--commit", "HEAD", "--of", AGAINST],
    ):
        with pytest.raises(SystemExit) as ended:
            parsed(wrong)
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "unknown part 'nothing'" in said
    assert "is not empty" in said
    assert "against needs --commit COMMIT and --of PART" in said
    assert "unknown part 'reading'" in said


def test_only_a_full_run_goes_into_the_document(tmp_path: Path) -> None:
    full = Settings(work=tmp_path, rows=DEFAULT_ROWS, rounds=DEFAULT_ROUNDS, quick=False, peer="kafka")
    parts = {part.name: part for part in PARTS}
    assert all(part.is_full(full) for part in PARTS)
    for less in (replace(full, rounds=1), replace(full, quick=True)):
        assert not any(part.is_full(less) for part in PARTS)
    fewer = replace(full, rows=DEFAULT_ROWS - 1)
    assert [name for name, part in parts.items() if part.is_full(fewer)] == [AGAINST]
    assert parts["head"].is_full(replace(full, peer=None))


def test_the_rows_are_as_described() -> None:
    rows = make_messages(20_000)
    values = rows["value"].to_pylist()
    assert {len(value) for value in values} == {VALUE_BYTES}
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"N\d{3}[A-Z]{2}", key) for key in rows["key"].to_pylist())
    assert make_messages(20_000).equals(rows)
    assert not make_messages(20_000, part=1).equals(rows)
    text = b"".join(values)
    assert 0.7 < len(pa.compress(text, codec="lz4", asbytes=True)) / len(text) < 0.95


def test_the_environment_can_be_seen(tmp_path: Path) -> None:
    seen = observe(tmp_path)
    assert seen.cores >= 1
    assert "fsync" in seen.disk
    assert "unknown" not in seen.versions


def test_nobody_ships_the_benchmarks() -> None:
    for package in ("partq_spark", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"^\s*(from|import) benchmarks", path.read_text(encoding="utf-8"), re.MULTILINE), path
