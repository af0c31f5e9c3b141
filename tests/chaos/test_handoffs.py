"""Handoffs as coordinators' logs tell of them, and those that these do not see ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.handoffs import Ending, handoffs


def line(at_s: float, event: str, partition: int = 0, **facts: str) -> dict[str, Any]:
    return {"time": f"2026-11-21T10:00:{at_s:06.3f}Z", "event": event, "partition": partition, **facts}


PAUSE = line(1.0, "pause", to="two")
AFTER_THE_DEADLINE = line(4.0, "fence", reason="max-handoff-time is over")


@pytest.mark.parametrize(
    ("lines", "ending", "pause_s"),
    [
        ([PAUSE, line(1.4, "partition_drained"), line(1.4, "fence"), line(1.5, "assign")], Ending.DRAINED, 0.5),
        ([PAUSE, AFTER_THE_DEADLINE, line(4.25, "assign")], Ending.FORCED, 3.25),
        ([PAUSE, line(3.0, "resume")], Ending.KEPT, 2.0),
        ([PAUSE, line(2.0, "fence", reason="its owner is lost"), line(2.5, "assign")], Ending.CUT_SHORT, 1.5),
    ],
)
def test_a_handoff_ends(lines: list[dict[str, Any]], ending: Ending, pause_s: float) -> None:
    for ordered in (lines, lines[::-1]):  # logs of several coordinators come in any order
        found = handoffs(ordered)
        assert found.unended == ()
        assert [(each.partition, each.ending) for each in found.ended] == [(0, ending)]
        assert found.ended[0].pause_s == pytest.approx(pause_s)


def test_a_leader_that_died_before_it_told_of_the_end() -> None:
    found = handoffs([PAUSE, line(9.0, "pause", to="three"), line(9.5, "resume")])
    assert [each.ending for each in found.ended] == [Ending.CUT_SHORT, Ending.KEPT]
    assert found.unended == ()


def test_a_handoff_that_never_ends() -> None:
    found = handoffs([PAUSE, line(1.2, "partition_drained"), line(1.2, "fence"), line(2.0, "assign", partition=1)])
    assert found.unended == ("partition 0, paused for two",)


def test_lines_of_other_things_and_of_partitions_that_nobody_paused() -> None:
    found = handoffs([line(1.0, "assign"), line(2.0, "fence"), {"event": "stopped"}, {"event": "library"}])
    assert found.ended == ()
