"""Programs of tests leave nothing behind, and no exit code that nobody took: Python warns of one in a later test."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Program

FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("kill", [Program.kill, Program.kill_driver])
def test_a_program_whose_first_thread_has_ended_is_killed_and_noted(
    tmp_path: Path, kill: Callable[[Program], None]
) -> None:
    environment = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with Program(command, name="first", folder=tmp_path, environment=environment) as program:
        seen = psutil.Process(program.pid)
        program.wait_until(lambda: seen.status() == psutil.STATUS_ZOMBIE, "the end of its first thread")
        assert program.code is None, "its other thread runs"
        kill(program)
        assert program.code == -signal.SIGKILL
