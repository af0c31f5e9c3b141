"""Tests that run in several processes: who gets what, and who is alone."""

from __future__ import annotations

import fcntl
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.parallel import Scheduling, Turnstile
from tests.support.waiting import wait_until


def test_who_wants_to_be_alone_waits_for_those_inside_and_nobody_comes_in_before_him(tmp_path: Path) -> None:
    order: list[str] = []
    leave = threading.Event()

    def visit(name: str, *, alone: bool) -> threading.Thread:
        def go() -> None:
            with Turnstile(tmp_path).passed(alone=alone):  # its locks are opened anew, as by a process
                order.append(name)
                assert leave.wait(60)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        return thread

    def is_shut() -> bool:
        with (tmp_path / "gate.lock").open("ab") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    threads = [visit("one", alone=False), visit("two", alone=False)]
    wait_until(lambda: len(order) == 2, "two that mind nobody")
    threads.append(visit("alone", alone=True))
    wait_until(is_shut, "the gate, shut by who waits behind it")
    threads.append(visit("late", alone=False))
    assert len(order) == 2
    leave.set()
    for thread in threads:
        thread.join(60)
    assert order[2:] == ["alone", "late"]


class _Node:
    """A process, as the scheduler knows it."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False


JVM, UNIT, SEEDS = "tests/spark/test_a.py", "tests/unit/test_b.py", "tests/world/test_c.py::test_c"


@pytest.mark.parametrize(
    ("processes", "ended", "scopes", "given"),
    [
        (4, (), (SEEDS, JVM, UNIT), [JVM, JVM, UNIT, SEEDS]),
        (4, (), (JVM, SEEDS), [JVM, JVM, SEEDS, SEEDS]),
        (4, (), (SEEDS,), [SEEDS] * 4),
        (4, (3,), (JVM, SEEDS), [JVM, JVM, SEEDS]),
        (4, (2, 3), (JVM,), [JVM, JVM]),
        (4, (1, 2, 3), (JVM, UNIT), [JVM]),
        (4, (0, 2), (JVM,), [JVM, None]),
        (4, (0, 1, 3), (JVM,), [JVM]),
        (3, (), (JVM,), [JVM, JVM, None]),
        (3, (2,), (JVM,), [JVM, JVM]),
        (1, (), (JVM,), [JVM]),
    ],
)
def test_who_gets_what_does_not_change_when_others_have_ended(
    processes: int, ended: tuple[int, ...], scopes: tuple[str, ...], given: list[str | None]
) -> None:
    scheduling: Any = Scheduling.__new__(Scheduling)
    scheduling.numnodes = processes
    scheduling.workqueue = OrderedDict((scope, {}) for scope in scopes)
    scheduling.assigned_work = {_Node(n): {} for n in range(processes) if n not in ended}
    assert [scheduling._first_for(each) for each in scheduling.nodes] == given
