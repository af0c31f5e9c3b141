"""The demo's processes: a real coordinator is started and ended, and nothing outlives the one who started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.demo import processes
from partq_spark.log.admin import create_group, create_queue
from partq_spark.objects import open_store
from tests.support.waiting import wait_until


def _coordinator(folder: Path) -> processes.Coordinator:
    url = f"file://{folder}/store"
    create_group(create_queue(open_store(url), "default", "flights", 2), "board", (0, 0))
    return processes.Coordinator(folder / "coordinator.log", store=url, namespace="default", ownership="store")


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_the_coordinators_log_is_read_line_by_line_and_it_ends_with_its_block(tmp_path: Path) -> None:
    before, told = _children(), list[str]()
    with _coordinator(tmp_path) as coordinator:
        assert len(_children() - before) == 1
        wait_until(lambda: "lease_taken" in told, "leader", also=lambda: told.extend(_events(coordinator)))
    assert told[0] == "started"
    assert _children() == before


def _events(coordinator: processes.Coordinator) -> list[str]:
    return [line["event"] for line in coordinator.news()]


def test_a_coordinator_that_ended_by_itself_is_an_error(tmp_path: Path) -> None:
    before = _children()
    with _coordinator(tmp_path) as coordinator:
        (process,) = _children() - before
        process.kill()
        process.wait(10)
        with pytest.raises(Unavailable, match=r"ended by itself: see .*coordinator\.log"):
            coordinator.news()


def test_who_does_not_listen_is_killed_with_all_that_he_started(tmp_path: Path) -> None:
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('up', flush=True); "
    process = processes._start([sys.executable, "-c", deaf + "time.sleep(60)"], tmp_path / "log", {}, talks=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (child,) = psutil.Process(process.pid).children()
    processes._end(process, wait_s=0.3)
    assert process.returncode == -9
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "end of the child")
    _close(process)


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
