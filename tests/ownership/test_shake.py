"""A short storm over real processes; `scripts/shake` is the long one, docs/reliability.md its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.environment import observe
from tests.ownership.checker import judge
from tests.ownership.facts import Seen
from tests.ownership.shake import TEMPLATE, Report, main, shake, told, write_document
from tests.ownership.storm import Course

SLACK_S = 3.0  # a busy machine is no failure; scripts/shake grants none


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.timeout(180)
@pytest.mark.conformance("DIS-05", "REB-01", "LOS-04", "OWN-03")
def test_a_storm_ends_in_balance_and_leaves_no_trace_of_two_owners(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    found = shake(
        tmp_path / "work", duration_s=32, storm_s=12, seed=20, flows=5, partitions=12, redis_restarts=1, slack_s=SLACK_S
    )
    report(told(found))
    assert found.failures == ()
    assert found.course.done["leading coordinators killed"] >= 1
    assert found.course.done["Redis restarted empty"] == 1
    assert found.course.done["Redis flushed"] == 1
    assert found.course.done["flows killed"] >= 1
    assert len(found.course.balance_s) >= 2
    write_document(found, "scripts/shake", observe(tmp_path), tmp_path / "reliability.md")
    text = (tmp_path / "reliability.md").read_text()
    assert "{{" not in text
    assert "- verdict: 0 violations" in text
    assert TEMPLATE.read_text().splitlines()[0] in text


@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.timeout(120)
@pytest.mark.conformance("DIS-05", "LOS-04")
def test_a_storm_over_ownership_that_is_kept_as_objects(tmp_path: Path, report: Callable[[str], None]) -> None:
    found = shake(
        tmp_path / "work",
        duration_s=14,
        storm_s=10,
        seed=21,
        flows=4,
        partitions=8,
        redis_restarts=0,
        on_objects=True,
        slack_s=SLACK_S,
    )
    report("ownership=store: " + told(found))
    assert found.failures == ()
    assert found.course.done["leading coordinators killed"] >= 1


def test_wrong_use_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--flows", "1"], ["--minutes", "0"], ["--objects", "--write-docs"], ["--partitions", "0"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
    assert "--flows from 2" in capsys.readouterr().err


def test_what_must_not_be_is_told() -> None:
    facts = [
        Seen(sent_s=1, done_s=1, partition=0, epoch=2, flow="a", instance="i", offset=0, redelivered_below=0),
        Seen(sent_s=2, done_s=2, partition=0, epoch=1, flow="a", instance="i", offset=0, redelivered_below=0),
    ]
    found = Report(
        flows=1,
        partitions=1,
        seed=1,
        took_s=1,
        course=Course(troubles=["nobody leads"]),
        verdict=judge(facts, {}),
        decisions=Counter(),
        calm_s=7.5,
    )
    assert "verdict: 2 violations" in told(found)
    assert "nobody leads" in told(found)
    assert "the checkpoint's epoch went from 2 back to 1" in told(found)
