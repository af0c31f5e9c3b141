"""Sides that take turns, and the jars that some of them need: no JVM, nothing is measured or fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import jars
from benchmarks.jars import Jars, had
from benchmarks.report import Goal
from benchmarks.spark import Run
from benchmarks.turns import Side, measures, take_turns


def side(name: str, order: list[str], *, rows: int = 10, **goals: Goal) -> Side:
    def run() -> Run:
        order.append(name)
        return Run(wall_s=2.0, batches_s=1.0, rows=rows)

    return Side(name=name, run=run, **goals)


def test_every_side_runs_once_to_warm_up_and_then_in_turns() -> None:
    order: list[str] = []
    runs = take_turns([side("a", order), side("b", order)], 2, 10)
    assert order == ["a", "b"] * 3
    assert [len(each) for each in runs] == [2, 2]


def test_who_handled_another_number_of_rows_is_no_result() -> None:
    with pytest.raises(RuntimeError, match="b handled 9 rows, 10 were expected: the measurement is void"):
        take_turns([side("a", []), side("b", [], rows=9)], 1, 10)


def test_the_first_side_is_compared_with_every_other_by_whole_queries_and_by_micro_batches() -> None:
    whole, alone = Goal(sign=">=", limit=0.9), Goal(sign=">=", limit=0.5)
    sides = [side("partq", []), side("b", [], goal=whole), side("c", [], batches_goal=alone)]
    run = Run(wall_s=2.0, batches_s=1.0, rows=10_000)
    lines = measures("reading", sides, [[run], [run], [run]])
    assert [(line.what, line.reference and line.reference.name, line.goal) for line in lines] == [
        ("reading, whole query", "b", whole),
        ("reading, whole query", "c", None),
        ("reading, micro-batches alone", "b", None),
        ("reading, micro-batches alone", "c", alone),
    ]
    assert [line.subject.samples for line in lines] == [(5.0,), (5.0,), (10.0,), (10.0,)]


# --- jars -------------------------------------------------------------------------------------------------------------

NEW, OLD = (Jars(name=f"kafka/{number}", artifacts=(f"some.group:thing:{number}",)) for number in ("2", "1"))


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `mvn` that has version 1 alone, and writes down every call."""
    monkeypatch.setattr(jars, "KEPT", tmp_path / "kept")
    calls = tmp_path / "calls"
    program = tmp_path / "bin/mvn"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n'
        'grep -q "<version>1</version><exclusions>" "$4" || { echo "[ERROR] no such version"; exit 1; }\n'
        'for each; do case $each in -DoutputDirectory=*) touch "${each#*=}/thing.jar";; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return calls


def test_the_first_jars_that_there_are_are_fetched_once(maven: Path) -> None:
    assert had([NEW, OLD]) == OLD
    assert [path.name for path in OLD.paths] == ["thing.jar"]
    calls = maven.read_text()
    assert calls.count("dependency-plugin") == 2
    assert had([NEW, OLD]) == OLD
    assert maven.read_text() == calls
    assert not NEW.folder.exists()
    assert [path.name for path in OLD.folder.parent.iterdir()] == ["1"], "what could not be had leaves nothing"


def test_what_cannot_be_had_says_so_of_each(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"could not fetch some.group:thing:2 \(\[ERROR\] no such version\)$"):
        had([NEW])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match=r"mvn is not on PATH.*install maven, or run without --peer kafka; mvn is"):
        had([NEW, OLD])
