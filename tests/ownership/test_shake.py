"""A short storm over real processes; `scripts/shake` is the long one, docs/reliability.md its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ownership.shake import TEMPLATE, shake, told, write_document


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.timeout(180)
@pytest.mark.conformance("DIS-05", "REB-01", "LOS-04", "OWN-03")
def test_a_storm_ends_in_balance_and_leaves_no_trace_of_two_owners(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    found = shake(tmp_path / "work", duration_s=32, storm_s=12, seed=20, flows=5, partitions=12, redis_restarts=1)
    report(told(found))
    assert found.failures == ()
    assert found.course.done["leading coordinators killed"] >= 1
    assert found.course.done["Redis restarted empty"] == 1
    assert found.course.done["flows killed"] >= 1
    assert len(found.course.balance_s) >= 2
    write_document(found, "scripts/shake", tmp_path / "reliability.md")
    text = (tmp_path / "reliability.md").read_text()
    assert "{{" not in text
    assert "- verdict: 0 violations" in text
    assert TEMPLATE.read_text().splitlines()[0] in text


@pytest.mark.crash
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
    )
    report("ownership=store: " + told(found))
    assert found.failures == ()
    assert found.course.done["leading coordinators killed"] >= 1
