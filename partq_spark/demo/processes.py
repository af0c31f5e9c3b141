"""The demo's processes and the folder that they work in. The coordinator is started here; it and Spark's JVM are ended
here, also after an error; the readers of Spark that the demo may kill are found here. What the coordinator prints is
understood elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.base.process import private_folder

_END_WAIT_S: Final = 10.0


class Coordinator:
    """`python -m coordinator`, its log as JSON lines in a file. A context manager that leaves nothing alive."""

    def __init__(self, log: Path, *, store: str, namespace: str, ownership: str, port: int = 0) -> None:
        """`port`: where it serves its page; 0: nowhere."""
        self._path = log
        log.touch()
        self._lines = log.open(encoding="utf-8")
        # -P: a directory named coordinator where the command is typed is not the package.
        command = [sys.executable, "-P", "-m", "coordinator", "--json"]
        command += ["--store", store, "--namespace", namespace, "--ownership", ownership]
        # Every decision is read from the log.
        own = {
            "PARTQ_COORDINATOR_LOG_LEVEL": "info",
            "PARTQ_COORDINATOR_HEALTH_HOST": "127.0.0.1",
            "PARTQ_COORDINATOR_HEALTH_PORT": str(port),
        }
        with log.open("a") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **own},
                # Ctrl-C reaches the demo alone, which then ends its processes in order.
                start_new_session=True,
            )
        self._rest = ""

    def news(self) -> list[dict[str, Any]]:
        """The log's new lines. Raises `Unavailable` if the coordinator has ended."""
        text = self._rest + self._lines.read()
        *lines, self._rest = text.split("\n")
        if self._process.poll() is not None:
            raise Unavailable(f"the demo's coordinator ended by itself: see {self._path}")
        return [json.loads(line) for line in lines if line.startswith("{")]

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._lines.close()


def keep_out_of_the_picture(log: Path) -> None:
    """From now on what PySpark tells of itself in this process, warnings too, goes to `log`."""
    logging.captureWarnings(True)
    for name in ("py4j", "pyspark", "py.warnings"):
        logging.getLogger(name).addHandler(logging.FileHandler(log))
        logging.getLogger(name).propagate = False


def end(process: subprocess.Popen[Any], wait_s: float = _END_WAIT_S) -> None:
    """Ask, then insist: SIGTERM, and SIGKILL for the whole process group of what was started in a session of its
    own.
    """
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(wait_s)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after a second Ctrl-C
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nothing is left of it
        process.wait()


_LOCK: Final = ".lock"


def default_place() -> Path:
    """By the user's number: two names may differ in less than a file's name can show."""
    return Path(tempfile.gettempdir()) / f"partq-demo-{os.getuid()}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The folder, private and empty, until the `with` block ends; what was made in it stays. Raises `Invalid` if
    another demo is in it, or others may enter it.
    """
    lock = os.open(private_folder(folder) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Invalid(f"another demo of yours runs in {folder}: wait for it, or set TMPDIR for this one") from None
        for each in folder.iterdir():
            if each.name == _LOCK:
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        yield
    finally:
        os.close(lock)


_RUNNER: Final = b"python_streaming_source_runner"


def streaming_readers(ancestor: int, proc: Path = Path("/proc")) -> set[int]:
    """The process ids of all streaming readers below the process `ancestor`: one per query that reads from partq."""
    parents: dict[int, int] = {}
    runners: set[int] = set()
    for folder in proc.glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        # "pid (name) state parent …": the name may hold anything, also parentheses.
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
        if _RUNNER in command:
            runners.add(int(folder.name))
    return {pid for pid in runners if _is_below(pid, ancestor, parents)}


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False
