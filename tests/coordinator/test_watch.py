"""Silence is measured by the clock of the one who looks, from when he saw something move."""

from __future__ import annotations

from coordinator.watch import Stillness


def test_what_moves_is_not_still() -> None:
    watch = Stillness(frozen_after_s=3.0)
    for second in range(10):
        assert not watch.look({"a": ("i", second), "b": ("i", 0)}, float(second))
    assert watch.still_s("a", 9.0) == 0.0
    assert watch.still_s("b", 9.0) == 9.0
    assert watch.longest_still_s(9.0) == 9.0


def test_time_counts_between_looks_too() -> None:
    watch = Stillness(frozen_after_s=3.0)
    watch.look({"a": 1}, 0.0)
    watch.look({"a": 1}, 2.0)
    assert watch.still_s("a", 2.9) == 2.9


def test_a_new_instance_begins_anew() -> None:
    watch = Stillness(frozen_after_s=3.0)
    watch.look({"a": ("i", 5)}, 0.0)
    watch.look({"a": ("j", 5)}, 2.0)
    assert watch.still_s("a", 2.0) == 0.0


def test_who_was_never_seen_is_not_still() -> None:
    watch = Stillness(frozen_after_s=3.0)
    assert watch.still_s("a", 100.0) == 0.0
    assert watch.longest_still_s(100.0) <= 0.0
    watch.look({}, 100.0)
    assert watch.longest_still_s(101.0) == 1.0, "nobody: the look itself"


def test_a_watcher_that_did_not_look_grants_everybody_a_full_period() -> None:
    watch = Stillness(frozen_after_s=3.0)
    watch.look({"a": 1}, 0.0)
    assert watch.look({"a": 1}, 3.5)
    assert watch.still_s("a", 3.5) == 0.0
    assert not watch.look({"a": 1}, 6.5), "at the bound it is still a look in time"
    assert watch.still_s("a", 6.5) == 3.0


def test_who_is_missing_is_forgotten() -> None:
    watch = Stillness(frozen_after_s=3.0)
    watch.look({"a": 1}, 0.0)
    watch.look({}, 1.0)
    watch.look({"a": 1}, 2.0)
    assert watch.still_s("a", 2.5) == 0.5
