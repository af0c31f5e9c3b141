"""The main job on real data, as a stranger runs it: `partq demo`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import psutil
import pytest

from tests.support import jvm
from tests.support.waiting import wait_until


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_publishes_and_reads_every_flight_in_order(tmp_path: Path) -> None:
    with _running(tmp_path, "--json", "--page", quick=False) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = _heard_with_its_page(process.stderr)
        told = process.stdout.read()
        assert process.wait(60) == 0, said
    (home,) = tmp_path.glob("partq-demo-*/spark")
    assert (home / "jars").is_symlink(), "Spark was started from a home of the demo's own"
    summary = json.loads(told)
    assert summary["ok"]
    assert summary["published"] == summary["read"] == summary["delivered"] == 336_776
    assert (summary["missing"], summary["twice"], summary["aircraft_out_of_order"]) == (0, 0, 0)
    assert summary["aircraft"] == 4_043
    assert summary["rows"] == 336_776 + summary["again"]
    assert set(summary["per_flow"]) == {"amber", "blue", "coral"}
    assert sum(summary["per_partition"]) == 336_776
    assert min(summary["per_partition"]) > 30_000  # eight partitions, spread about evenly
    # The story: two flows share, a third joins, blue is killed, and its partitions go to the others.
    moves = summary["moves"]
    assert 0 < summary["handed_over"] <= sum(move["kind"] != "first" for move in moves)
    assert [move["partition"] for move in moves if move["kind"] == "first"] == list(range(8))
    assert all(0 < move["paused_ms"] < 10_000 for move in moves if move["kind"] in ("handoff", "forced"))
    assert {move["after"] for move in moves if move["kind"] in ("handoff", "forced")} >= {"coral"}
    lost = [move for move in moves if move["kind"] == "lost"]
    assert {move["before"] for move in lost} == {"blue"}
    assert {move["after"] for move in lost} <= {"amber", "coral"}
    owners = {move["partition"]: move["after"] for move in moves}
    assert sorted(list(owners.values()).count(flow) for flow in ("amber", "coral")) == [4, 4]
    # What a person reads, with --json on standard error: no terminal, so plain lines.
    assert "\x1b" not in said
    assert "Traceback" not in said
    lines = [line[9:] for line in said.splitlines() if line[5:9] == " s  "]
    story = [
        "two queries start",
        "publishes flights from now on",
        "coral has joined",
        "blue is killed",
        "blue was silent",
    ]
    places = [next(number for number, line in enumerate(lines) if words in line) for words in story]
    assert places == sorted(places)
    assert said.count("✓") == 3
    assert max(map(len, said.partition("look for yourself")[0].splitlines())) <= 130
    _nothing_is_left(tmp_path)


def _heard_with_its_page(stderr: IO[str]) -> str:
    """All that the demo says to a person; meanwhile its page was there, and showed what was just said."""
    lines, url = [], ""
    for line in stderr:
        lines.append(line)
        if "To be seen in a browser" in line:
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\S+", line)
        if "coral has joined" in line:
            page = _got(url)
            assert all(flow in page for flow in ("amber", "blue", "coral"))
            assert "No coordinator serves this page" not in page
    assert url, "".join(lines)
    return "".join(lines)


def _got(url: str) -> str:
    with urlopen(url, timeout=30) as answer:  # noqa: S310 - of this machine
        text: str = answer.read().decode()
        return text


@contextmanager
def _running(folder: Path, *arguments: str, quick: bool = True) -> Iterator[subprocess.Popen[str]]:
    """The demo as a process, that does not outlive the test; not `quick`: with nothing of the tests' own for Spark."""
    command = [sys.executable, "-m", "partq_spark", "demo", *arguments]
    pipe = subprocess.PIPE
    spark = jvm.environment() if quick else {}
    inherited = {name: value for name, value in os.environ.items() if name not in jvm.environment()}
    environment = {**inherited, **spark, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()  # in order, so that its own processes end too; without effect where it has ended


def _family(folder: Path) -> list[psutil.Process]:
    """The processes that were started with this folder for temporary files, apart from the demo itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder) and "demo" not in process.cmdline():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _nothing_is_left(folder: Path) -> None:
    """Spark's workers take a moment to see that their JVM is gone."""
    wait_until(lambda: not _family(folder), f"end of {_family(folder)}")


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", [pytest.param("Ctrl-C", marks=pytest.mark.nightly), "the death of its coordinator"])
def test_what_ends_a_demo_leaves_no_process_behind(tmp_path: Path, how: str) -> None:
    """Before that, another one is refused."""
    with _running(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if how == "Ctrl-C":
            assert any("two queries start" in line for line in process.stdout)
            assert len(_family(tmp_path)) >= 2  # coordinator, JVM
            says = "Error: interrupted\n"
        else:
            wait_until(lambda: "coordinator" in _names(tmp_path), "coordinator")
            says = "the demo's coordinator ended by itself: see "
        assert _refused(tmp_path).startswith("Error: another demo of yours runs in ")
        if how == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            _names(tmp_path)["coordinator"].kill()
        assert process.wait(60) == 1
        assert says in process.stderr.read()
    _nothing_is_left(tmp_path)


def _names(folder: Path) -> dict[str, psutil.Process]:
    """The demo's processes by the words that started them."""
    return {word: each for each in _family(folder) for word in each.cmdline()}


def _refused(folder: Path, *arguments: str) -> str:
    with _running(folder, *arguments) as process:
        assert process.wait(60) in (1, 2)
        assert process.stderr is not None
        return process.stderr.read()


def test_the_demo_needs_a_place_for_ownership(tmp_path: Path) -> None:
    assert "--ownership none is not for the demo" in _refused(tmp_path, "--ownership", "none")
