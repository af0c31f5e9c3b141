"""Tests that run in several processes: who gets what, who is alone, and that a statement is proven in any process."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.parallel import Scheduling, Turnstile
from tests.support.servers import ROOT
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


HEAD = "import os, pytest, time\nfrom pathlib import Path\nHERE = Path(__file__).parents[2]\n"
CONTENTS = {
    "spark": '@pytest.mark.spark\n@pytest.mark.conformance("DIS-01")\ndef test_long(): time.sleep(0.2)\n',
    "unit": '@pytest.mark.conformance("DIS-01", "DIS-03")\ndef test_short(): assert {number} != 3\n',
    "world": """
@pytest.mark.conformance("DIS-04")
def test_computes():
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw3": return
    assert os.sched_getscheduler(0) == os.SCHED_IDLE
    while not (HERE / "alone").exists(): time.sleep(0.01)
    (HERE / "beside").touch()
""",
}
ALONE = """
@pytest.mark.alone
@pytest.mark.conformance("DIS-02")
def test_alone():
    (HERE / "alone").touch()
    while "PYTEST_XDIST_WORKER" in os.environ and not (HERE / "beside").exists(): time.sleep(0.01)
"""


@pytest.mark.slow
def test_of_four_processes_two_start_jvms_the_last_computes_beside_all_and_statements_are_proven_as_in_one(
    tmp_path: Path,
) -> None:
    def write(path: str, content: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    def told(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--conformance=table", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        return done.stdout + done.stderr

    write("conftest.py", (ROOT / "conftest.py").read_text())
    marks = "".join(f"    {each}: x\n" for each in ("spark", "alone", "slow", "conformance(id)"))
    write("pytest.ini", f"[pytest]\nmarkers =\n{marks}")
    for name, content in CONTENTS.items():
        for number in range(5):
            write(f"tests/{name}/test_{name}{number}.py", HEAD + content.replace("{number}", str(number)))
    write("tests/unit/test_alone.py", HEAD + ALONE)
    shared = told("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    ran = re.findall(r"^\[(gw\d)\].*(?:PASSED|FAILED) tests/(\w+)/", shared, re.MULTILINE)
    assert sorted(folder for _, folder in ran) == ["spark"] * 5 + ["unit"] * 6 + ["world"] * 5
    assert {process for process, folder in ran if folder == "spark"} <= {"gw0", "gw1"}
    assert {folder for process, folder in ran if process == "gw3"} == {"world"}

    def proven(text: str) -> list[str]:
        lines = r"^(?:passed|failed) +DIS-\d+|^ +(?:passed|failed): test\S+|^\d+ passed, .*"
        return re.findall(lines, text, re.MULTILINE)

    assert proven(shared) == proven(told())
    assert [line for line in proven(shared) if "DIS-" in line] == [
        "failed  DIS-01",
        "passed  DIS-02",
        "failed  DIS-03",
        "passed  DIS-04",
    ]

    write("tests/unit/test_spark.py", HEAD + CONTENTS["spark"])
    assert "tests/unit/test_spark.py::test_long starts a JVM: it belongs into one of" in told()
    (tmp_path / "tests/unit/test_spark.py").unlink()
    write("tests/world/test_alone_there.py", HEAD + ALONE)
    assert "test_alone_there.py::test_alone does not only compute (alone): it belongs elsewhere" in told()
