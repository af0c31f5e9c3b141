"""The demo's processes and the folder that they work in. A coordinator and a Spark driver are started here and ended
here, also after an error; the readers of Spark that the demo may kill are found here. What they print is understood
elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue as queues
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.base.process import private_folder
from partq_spark.spark.local import make_home

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
        self._process = _start(command, log, own)
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
        _end(self._process)
        self._lines.close()


class DriverProcess:
    """`python -m partq_spark.demo.queries`: commands go to its standard input, what it tells is read by `news`."""

    def __init__(self, log: Path, arguments: Mapping[str, str]) -> None:
        self._log = log
        command = [sys.executable, "-m", "partq_spark.demo.queries"]
        command += [word for name, value in arguments.items() for word in (f"--{name}", value)]
        # Spark's workers must be this Python: the first python3 on PATH may have no partq (spark-traps.md 27).
        own = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        own["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        if "SPARK_HOME" not in os.environ:
            own["SPARK_HOME"] = str(make_home(log.parent / "spark").folder)
        self._process = _start(command, log, own, talks=True)
        self._told: queues.SimpleQueue[dict[str, Any]] = queues.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def say(self, command: str) -> None:
        """Have it do something; it does one thing after the other."""
        stdin = _pipe(self._process.stdin)
        try:
            stdin.write(command + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; `news` says why

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has told since. Raises `Unavailable` when it has failed or ended."""
        ended = self._process.poll() is not None
        if ended:
            self._reader.join(_END_WAIT_S)
        while not self._told.empty():
            event = self._told.get()
            if event["event"] == "failed":
                raise Unavailable(f"the demo's Spark queries failed: {event['error'] or 'no message'}; see {self._log}")
            yield event
        if ended:
            raise Unavailable(f"the demo's Spark process ended by itself: see {self._log}")

    def _listen(self) -> None:
        for line in _pipe(self._process.stdout):
            if line.startswith("{"):  # Spark prints to standard output too
                self._told.put(json.loads(line))

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _pipe(self._process.stdin).close()  # which is how it learns that nobody needs it any more
        except BrokenPipeError:
            pass
        _end(self._process)
        self._reader.join(_END_WAIT_S)


@contextmanager
def started(
    folder: Path, *, store: str, namespace: str, ownership: str, page_port: int, arguments: Mapping[str, str]
) -> Iterator[tuple[Coordinator, DriverProcess]]:
    """Both, with their logs in `folder`, until the `with` block ends. `page_port` 0: no page."""
    where = {"store": store, "namespace": namespace, "ownership": ownership}
    with (
        Coordinator(folder / "coordinator.log", **where, port=page_port) as coordinator,
        DriverProcess(folder / "spark.log", {**where, **arguments}) as driver,
    ):
        yield coordinator, driver


def _start(command: list[str], log: Path, own: Mapping[str, str], *, talks: bool = False) -> subprocess.Popen[str]:
    with log.open("a") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else errors,
            stderr=errors,
            text=True,
            env={**os.environ, **own},
            # Ctrl-C reaches the demo alone, which then ends its processes in order.
            start_new_session=True,
        )


def _end(process: subprocess.Popen[str], wait_s: float = _END_WAIT_S) -> None:
    """Ask, then insist: SIGTERM, and SIGKILL for the whole process group, with the JVM in it."""
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


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process was started without a pipe")
    return stream


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
