"""Tests that run in several processes: a test that wants to be alone is, and a statement is proven in any process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.parallel import Scheduling, Turnstile
from tests.support.servers import ROOT
from tests.support.waiting import wait_until


class Visitor:
    """Goes in, in a thread of its own, and stays until told to leave. It opens the locks anew, as a process does."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.inside = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._visit, args=(Turnstile(folder), alone), daemon=True)
        self._thread.start()

    def _visit(self, turnstile: Turnstile, alone: bool) -> None:
        with turnstile.passed(alone=alone):
            self.inside.set()
            assert self._leave.wait(60)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(60)


def test_who_wants_to_be_alone_waits_for_those_inside_and_nobody_comes_in_before_him(tmp_path: Path) -> None:
    first, second = Visitor(tmp_path, alone=False), Visitor(tmp_path, alone=False)
    for each in (first, second):
        wait_until(each.inside.is_set, "two that mind nobody")
    alone = Visitor(tmp_path, alone=True)
    wait_until(lambda: _is_shut(tmp_path), "the gate, shut by who waits behind it")
    late = Visitor(tmp_path, alone=False)
    first.leave()
    assert not alone.inside.wait(0.05)
    assert not late.inside.is_set()
    second.leave()
    wait_until(alone.inside.is_set, "who wants to be alone")
    assert not late.inside.wait(0.05)
    alone.leave()
    wait_until(late.inside.is_set, "who came last")
    late.leave()


def _is_shut(folder: Path) -> bool:
    import fcntl

    with (folder / "gate.lock").open("ab") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


PASSES = """
import pytest
@pytest.mark.conformance("DIS-01")
def test_a(): pass
@pytest.mark.alone
@pytest.mark.conformance("DIS-02")
def test_b(): pass
"""
FAILS = """
import pytest
@pytest.mark.conformance("DIS-01", "DIS-03")
def test_c(): assert 0
def test_d(): pass
"""


@pytest.mark.slow
def test_several_processes_prove_the_same_as_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_passes.py").write_text(PASSES)
    (tmp_path / "test_fails.py").write_text(FAILS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    conformance(id): proves\n    alone: alone\n")

    def told(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--conformance=table", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        lines = re.findall(
            r"^(?:passed|failed) +DIS-.*|^ +(?:passed|failed): test_.*|^\d+ passed, \d+ failed, \d+ missing.*",
            done.stdout,
            re.MULTILINE,
        )
        return done.returncode, lines

    alone = told()
    assert told("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder") == alone
    code, lines = alone
    assert code == 1
    assert [line.split()[:2] for line in lines if "DIS-" in line] == [
        ["failed", "DIS-01"],
        ["passed", "DIS-02"],
        ["failed", "DIS-03"],
    ]
    assert lines[-1].startswith("1 passed, 2 failed")


def gives(ended: tuple[int, ...], *scopes: str, processes: int = 4) -> list[str | None]:
    """What each process would get next, when some have ended; given out by the scheduler of a whole run."""
    scheduling = Scheduling.__new__(Scheduling)
    scheduling.numnodes = processes
    scheduling.workqueue = OrderedDict((scope, {}) for scope in scopes)
    scheduling.assigned_work = {_Node(n): {} for n in range(processes) if n not in ended}
    return [scheduling._first_for(each) for each in scheduling.nodes]


class _Node:
    """A process, as the scheduler knows it."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False


def test_who_gets_what_does_not_change_when_others_have_ended() -> None:
    jvm, unit, seeds = "tests/spark/test_a.py", "tests/unit/test_b.py", "tests/simulation/test_c.py::test_c"
    assert gives((), seeds, jvm, unit) == [jvm, jvm, unit, seeds]
    assert gives((), jvm, seeds) == [jvm, jvm, seeds, seeds]
    assert gives((), seeds) == [seeds] * 4
    assert gives((3,), jvm, seeds) == [jvm, jvm, seeds]
    assert gives((2, 3), jvm) == [jvm, jvm]
    assert gives((1, 2, 3), jvm, unit) == [jvm]
    assert gives((0, 2), jvm) == [jvm, None]
    assert gives((0, 1, 3), jvm) == [jvm], "nobody else is left"
    assert gives((), jvm, processes=3) == [jvm, jvm, None]
    assert gives((2,), jvm, processes=3) == [jvm, jvm]
    assert gives((), jvm, processes=1) == [jvm]


WITH_JVM = "import pytest, time\n@pytest.mark.spark\ndef test_long(): time.sleep(0.2)\n"
WITHOUT = "import time\ndef test_short(): time.sleep(0.1)\n"


def tree(folder: Path, **contents: str) -> None:
    """Five files for each folder of tests, with this content."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    spark: starts a Spark driver (JVM)\n    alone: alone\n    slow: slow\n"
    )
    for name, content in contents.items():
        (folder / "tests" / name).mkdir(parents=True)
        for number in range(5):
            (folder / "tests" / name / f"test_{name}{number}.py").write_text(content)


def told(folder: Path, *arguments: str, processes: int = 0) -> str:
    """What a run of a tree says."""
    shared = ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder") if processes else ()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *shared, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr


def ran(text: str) -> list[tuple[str, str]]:
    """(process, folder) of the tests that passed."""
    return re.findall(r"^\[(gw\d)\].*PASSED tests/(\w+)/", text, re.MULTILINE)


@pytest.mark.slow
def test_the_last_process_gets_no_file_that_starts_a_jvm(tmp_path: Path) -> None:
    tree(tmp_path, spark=WITH_JVM, unit=WITHOUT)
    everything = ran(told(tmp_path, processes=3))
    assert sorted(folder for _, folder in everything) == ["spark"] * 5 + ["unit"] * 5
    assert ("gw2", "spark") not in everything
    only_jvm = ran(told(tmp_path, "tests/spark", processes=3))
    assert len(only_jvm) == 5
    assert ("gw2", "spark") not in only_jvm

    (tmp_path / "tests/unit/test_spark.py").write_text(WITH_JVM)
    assert "tests/unit/test_spark.py::test_long starts a JVM: it belongs into one of" in told(tmp_path)


COMPUTES = """
import os, time
from pathlib import Path
HERE = Path(__file__).parents[2]
def test_computes():
    if os.environ["PYTEST_XDIST_WORKER"] != "gw3": return
    assert os.sched_getscheduler(0) == os.SCHED_IDLE
    while not (HERE / "alone").exists(): time.sleep(0.01)
    (HERE / "beside").touch()
"""
ALONE = """
import pytest, time
from pathlib import Path
HERE = Path(__file__).parents[2]
@pytest.mark.alone
def test_alone():
    (HERE / "alone").touch()
    while not (HERE / "beside").exists(): time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_fourth_process_only_computes_with_what_others_leave_also_beside_a_test_that_is_alone(
    tmp_path: Path,
) -> None:
    tree(tmp_path, spark=WITH_JVM, unit=WITHOUT, simulation=COMPUTES)
    (tmp_path / "tests/unit/test_alone.py").write_text(ALONE)
    passed = ran(told(tmp_path, processes=4))
    assert sorted(folder for _, folder in passed) == ["simulation"] * 5 + ["spark"] * 5 + ["unit"] * 6
    assert {folder for process, folder in passed if process == "gw3"} == {"simulation"}
    assert ("gw2", "spark") not in passed

    (tmp_path / "tests/simulation/test_alone.py").write_text(ALONE)
    said = "tests/simulation/test_alone.py::test_alone does not only compute (alone): it belongs elsewhere"
    assert said in told(tmp_path)
