"""Two commits beside each other: which lines are paired, what has lost, and that the earlier files are checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import checked_out, commit_of, losers, paired
from benchmarks.environment import ROOT, Environment
from benchmarks.report import Measure, Outcome, Series
from benchmarks.settings import Settings

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


def line(what: str, *samples: float, unit: str = "rows/s", name: str = "partq", beside: str = "") -> Measure:
    reference = Series(name=beside, unit=unit, samples=samples) if beside else None
    return Measure(what=what, subject=Series(name=name, unit=unit, samples=samples), reference=reference)


def outcome(*measures: Measure) -> Outcome:
    return Outcome(part="read", environment=MACHINE, rows=1, rounds=1, took_s=1, measures=measures)


def test_what_both_commits_measure_is_paired_round_by_round() -> None:
    before = [outcome(line("reading", 10), line("gone", 1)), outcome(line("reading", 20), line("gone", 1))]
    here = [outcome(line("new", 1), line("reading", 30)), outcome(line("new", 1), line("reading", 10))]
    (found,) = paired("read", before, here, "abc")
    assert (found.what, found.ratios) == ("read: reading", (3, 0.5))
    assert found.reference is not None
    assert found.reference.name == "abc"


def test_what_is_compared_with_several_others_counts_once_and_what_was_0_has_no_ratio() -> None:
    before = [outcome(line("reading", 10, beside="Parquet"), line("reading", 10, beside="Kafka"), line("conflicts", 0))]
    found = paired("read", before, before, "abc")
    assert [each.what for each in found] == ["read: reading"]


def test_subjects_of_one_line_are_told_apart() -> None:
    before = [outcome(line("reading", 10, name="partq"), line("reading", 30, name="partq, in a group"))]
    found = paired("read", before, before, "abc")
    assert [each.what for each in found] == ["read: reading, partq", "read: reading, partq, in a group"]


def test_what_was_called_otherwise_is_paired_too() -> None:
    before = [outcome(line("reading, whole query", 10))]
    here = [outcome(line("reading all seven columns, whole query", 20), line("reading `key`, whole query", 30))]
    (found,) = paired("read", before, here, "abc")
    assert (found.what, found.ratios) == ("read: reading all seven columns, whole query", (2,))


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


def test_a_commit_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'no-such-branch' names no commit of this repository: look at git log"):
        commit_of("no-such-branch")


def test_the_earlier_files_are_beside_these_until_the_end(tmp_path: Path) -> None:
    commit, folder = commit_of("HEAD"), tmp_path / "former"
    with checked_out(commit, folder):
        assert (folder / "benchmarks").is_dir()
        assert (folder / ".venv").resolve() == (ROOT / ".venv").resolve()
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
        assert head.stdout.startswith(commit)
    assert not folder.exists()


def test_a_part_that_fails_is_named_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_round(part: str, root: Path, _settings: Settings) -> Outcome:
        if part == "flows" and root != ROOT:
            raise subprocess.CalledProcessError(1, "flows")
        return outcome(line("reading", 10))

    monkeypatch.setattr(against, "_round", one_round)

    def settings(*parts: str) -> Settings:
        return Settings(work=tmp_path, rows=1, rounds=2, quick=True, peer=None, commit="HEAD", of=parts)

    measures, notes = against.measure(settings("flows", "read"))
    assert [each.what for each in measures] == ["read: reading"]
    assert notes[-1] == "Not compared, because a round failed: flows."
    assert len(against.measure(settings("read"))[1]) == 2
    with pytest.raises(subprocess.CalledProcessError):
        against.measure(settings("flows"))
