"""When a group is looked at next: news at once but not without end, pauses that grow, one line per trouble."""

from __future__ import annotations

from typing import Any

from coordinator.schedule import Entry

NOBODY: Any = None


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def entry(now_s: float = 100.0) -> Entry:
    made = Entry(NOBODY, NOBODY, now_s)
    made.stepped(1.0, now_s)
    return made


def test_news_in_quiet_times_are_looked_at_at_once() -> None:
    group = entry()
    group.woken(100.5)
    assert group.due_s == 100.5


def test_a_flood_of_news_is_looked_at_ten_times_a_second() -> None:
    group = entry()
    looks = 0
    for millisecond in range(2000):
        now_s = 100.0 + millisecond / 1000
        group.woken(now_s)
        if group.due_s <= now_s:
            looks += 1
            group.stepped(1.0, now_s)
    assert 18 <= looks <= 27


def test_news_that_come_while_it_is_looked_at_are_not_lost() -> None:
    group = entry()
    group.running = True
    group.woken(100.2)
    group.stepped(1.0, 100.3)
    assert group.due_s == 100.3


def test_news_never_make_it_later() -> None:
    group = entry()
    group.stepped(0.05, 100.0)
    for _ in range(50):
        group.woken(100.0)
    assert group.due_s <= 100.05


def test_pauses_after_failures_grow_and_are_not_cut_short() -> None:
    group = entry()
    pauses = []
    for _ in range(8):
        group.failed("away", 100.0, 5.0, middle)
        group.woken(100.0)
        pauses.append(round(group.due_s - 100.0, 3))
    assert pauses == [0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 3.75, 3.75]
    assert group.stepped(1.0, 200.0) == 8
    assert group.failures == 0


def test_the_same_trouble_is_told_once_a_minute() -> None:
    group = entry()
    told = [group.failed("away", 100.0 + second, 5.0, middle) for second in range(125)]
    assert [second for second, tell in enumerate(told) if tell] == [0, 60, 120]
    assert group.failed("another", 226.0, 5.0, middle)
