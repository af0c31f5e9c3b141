"""Consumers in plain Python among a run's flows: the judge sees what it is there for, a run without Spark is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import command, told
from tests.chaos.checker import judge
from tests.chaos.consumers import CONSUMERS
from tests.chaos.evidence import read_consumed
from tests.chaos.outcome import outcome_of
from tests.chaos.run import run

PUBLISHED = dict.fromkeys(range(6), "k")


def given(batch: int, first: int, to: int, *, epoch: int = 1, below: int = 0) -> dict[str, Any]:
    """Messages of partition 0, whose number is their offset."""
    rows = [[0, offset, "k", offset, offset < below] for offset in range(first, to)]
    return {"what": "given", "at_s": batch, "batch": batch, "ends": {"0": [epoch, to, below]}, "rows": rows}


def handled(batch: int) -> dict[str, Any]:
    return {"what": "handled", "at_s": batch + 0.5, "batch": batch}


def judged(folder: Path, *lines: dict[str, Any]) -> list[str]:
    """The kinds of what must not be."""
    journal = folder / "consumed.jsonl"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"what": "handled", "ba')
    found = read_consumed("python-next", journal)
    verdict = judge(found.rows, found.planned, (), PUBLISHED, unfinished=found.unfinished)
    return [each.partition(":")[0] for each in verdict.violations]


def test_what_is_handled_once_in_order_is_well(tmp_path: Path) -> None:
    assert judged(tmp_path, given(1, 0, 3), handled(1), given(2, 3, 6), handled(2)) == []


def test_what_comes_again_marked_after_a_failure_is_well(tmp_path: Path) -> None:
    again = [given(3, 1, 4, below=6), handled(3), given(4, 4, 6, below=6), handled(4)]
    assert judged(tmp_path, given(1, 0, 1), handled(1), given(2, 1, 6), *again) == []


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        # The batch that failed does not come again: A.1 of the list of losses, as the application sees it.
        ([given(1, 0, 3), given(2, 3, 6), handled(2)], ["missing"] * 3),
        ([given(1, 0, 2), handled(1), given(2, 3, 6), handled(2)], ["missing", "plans with gaps"]),
        (
            [given(1, 0, 6), given(2, 0, 6), handled(2)],
            ["repeated without a mark"] * 6 + ["out of order across owners"],
        ),
        (
            [given(1, 0, 6), given(2, 0, 6, epoch=2, below=3), handled(2)],
            ["repeated without a mark"] * 3 + ["out of order across owners"],
        ),
    ],
)
def test_what_must_not_be_is_seen(tmp_path: Path, lines: list[dict[str, Any]], kinds: list[str]) -> None:
    assert judged(tmp_path, *lines) == kinds


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_some_faults_over_python_consumers_alone(tmp_path: Path) -> None:
    run(tmp_path, minutes=0.35, seed=3, drivers=0, python=True)
    found = outcome_of(tmp_path)
    assert found.failures == ()
    assert found.consumers is not None
    assert found.consumers.rows == found.verdict.rows > found.verdict.messages > 1000
    assert found.consumers.unfinished > 0
    assert found.course.done["Python consumers killed"] >= 1
    assert all((tmp_path / name / "events.jsonl").exists() for name in CONSUMERS)
    assert any(line.startswith("consumers in plain Python: ") for line in told(found))
    assert command(found.course) == "scripts/chaos --minutes 0.35 --seed 3 --drivers 0 --store file --python"
