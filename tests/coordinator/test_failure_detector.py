"""Silence is measured by the clock of the process that looks, from when it saw something move."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from coordinator.failure_detector import FailureDetector


def look(detector: FailureDetector[str], values: dict[str, Hashable], at_s: float) -> bool:
    """A look whose answer comes at once."""
    return detector.look(values, asked_s=at_s, heard_s=at_s)


def test_what_moves_is_not_still() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    for second in range(10):
        assert not look(detector, {"a": second, "b": 0}, float(second))
    assert detector.still_s("a") == 0.0
    assert detector.still_s("b") == 9.0
    assert detector.longest_still_s() == 9.0


def test_only_what_was_observed_counts() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    detector.look({"a": 1}, asked_s=0.0, heard_s=0.5)
    assert detector.still_s("a") == 0.0, "one look tells nothing, however long ago it was"
    detector.look({"a": 1}, asked_s=2.0, heard_s=3.4)
    assert detector.still_s("a") == detector.longest_still_s() == 1.5, "it may have moved since the question arrived"
    detector.look({"a": 1}, asked_s=3.5, heard_s=3.6)
    assert detector.still_s("a") == 3.0


def test_a_new_value_begins_anew() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    look(detector, {"a": 5}, 0.0)
    look(detector, {"a": 6}, 2.0)
    assert detector.still_s("a") == 0.0


def test_who_was_never_seen_is_not_still() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    assert detector.still_s("a") == detector.longest_still_s() == 0.0
    look(detector, {}, 100.0)
    assert detector.still_s("a") == detector.longest_still_s() == 0.0


@pytest.mark.parametrize("slept_s", [3.5, 3600.0])
def test_of_the_time_that_a_watcher_did_not_look_a_second_counts(slept_s: float) -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    look(detector, {"a": 1}, 0.0)
    look(detector, {"a": 1}, 0.5)
    assert look(detector, {"a": 1}, 0.5 + slept_s)
    assert detector.still_s("a") == detector.longest_still_s() == 1.5
    assert not look(detector, {"a": 1}, 3.5 + slept_s), "at the bound it is still a look in time"
    assert detector.still_s("a") == detector.longest_still_s() == 4.5


def test_a_late_answer_counts_no_more_than_a_late_look() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    look(detector, {"a": 1}, 0.0)
    assert detector.look({"a": 1}, asked_s=0.1, heard_s=60.0)
    assert detector.still_s("a") == detector.longest_still_s() == 0.0
    look(detector, {"a": 1}, 61.0)
    assert detector.still_s("a") == detector.longest_still_s() == 2.0


def test_looks_that_all_come_late_find_the_silent_in_the_end() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    for number in range(12):
        assert look(detector, {"dead": 0, "living": number}, number * 3.2) == (number > 0)
        assert detector.still_s("living") == 0.0
    assert detector.still_s("dead") == pytest.approx(11.0)


def test_a_short_patience_counts_a_part_of_itself() -> None:
    detector = FailureDetector[str](frozen_after_s=0.3)
    look(detector, {"a": 1}, 0.0)
    look(detector, {"a": 1}, 10.0)
    assert detector.still_s("a") == pytest.approx(0.1)


def test_who_is_missing_is_forgotten() -> None:
    detector = FailureDetector[str](frozen_after_s=3.0)
    look(detector, {"a": 1}, 0.0)
    look(detector, {}, 1.0)
    look(detector, {"a": 1}, 2.0)
    look(detector, {"a": 1}, 2.5)
    assert detector.still_s("a") == 0.5
