"""Silence is measured by the clock of the one who looks, from when he saw something move."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from coordinator.watch import Stillness


def look(watch: Stillness[str], values: dict[str, Hashable], at_s: float) -> bool:
    """A look whose answer comes at once."""
    return watch.look(values, asked_s=at_s, heard_s=at_s)


def test_what_moves_is_not_still() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    for second in range(10):
        assert not look(watch, {"a": second, "b": 0}, float(second))
    assert watch.still_s("a") == 0.0
    assert watch.still_s("b") == 9.0
    assert watch.longest_still_s() == 9.0


def test_only_what_was_observed_counts() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    watch.look({"a": 1}, asked_s=0.0, heard_s=0.5)
    assert watch.still_s("a") == 0.0, "one look tells nothing, however long ago it was"
    watch.look({"a": 1}, asked_s=2.0, heard_s=3.4)
    assert watch.still_s("a") == watch.longest_still_s() == 1.5, "it may have moved since the question arrived"
    watch.look({"a": 1}, asked_s=3.5, heard_s=3.6)
    assert watch.still_s("a") == 3.0


def test_a_new_value_begins_anew() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    look(watch, {"a": 5}, 0.0)
    look(watch, {"a": 6}, 2.0)
    assert watch.still_s("a") == 0.0


def test_who_was_never_seen_is_not_still() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    assert watch.still_s("a") == watch.longest_still_s() == 0.0
    look(watch, {}, 100.0)
    assert watch.still_s("a") == watch.longest_still_s() == 0.0


@pytest.mark.parametrize("slept_s", [3.5, 3600.0])
def test_of_the_time_that_a_watcher_did_not_look_a_second_counts(slept_s: float) -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    look(watch, {"a": 1}, 0.0)
    look(watch, {"a": 1}, 0.5)
    assert look(watch, {"a": 1}, 0.5 + slept_s)
    assert watch.still_s("a") == watch.longest_still_s() == 1.5
    assert not look(watch, {"a": 1}, 3.5 + slept_s), "at the bound it is still a look in time"
    assert watch.still_s("a") == watch.longest_still_s() == 4.5


def test_a_late_answer_counts_no_more_than_a_late_look() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    look(watch, {"a": 1}, 0.0)
    assert watch.look({"a": 1}, asked_s=0.1, heard_s=60.0)
    assert watch.still_s("a") == watch.longest_still_s() == 0.0
    look(watch, {"a": 1}, 61.0)
    assert watch.still_s("a") == watch.longest_still_s() == 2.0


def test_looks_that_all_come_late_find_the_silent_in_the_end() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    for number in range(12):
        assert look(watch, {"dead": 0, "living": number}, number * 3.2) == (number > 0)
        assert watch.still_s("living") == 0.0
    assert watch.still_s("dead") == pytest.approx(11.0)


def test_a_short_patience_counts_a_part_of_itself() -> None:
    watch = Stillness[str](frozen_after_s=0.3)
    look(watch, {"a": 1}, 0.0)
    look(watch, {"a": 1}, 10.0)
    assert watch.still_s("a") == pytest.approx(0.1)


def test_who_is_missing_is_forgotten() -> None:
    watch = Stillness[str](frozen_after_s=3.0)
    look(watch, {"a": 1}, 0.0)
    look(watch, {}, 1.0)
    look(watch, {"a": 1}, 2.0)
    look(watch, {"a": 1}, 2.5)
    assert watch.still_s("a") == 0.5
