"""The demo's two processes, a coordinator and the Spark driver: started here, and ended here whatever happens."""

from __future__ import annotations

import json
import os
import queue as queues
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from partq_spark.base.errors import Unavailable
from partq_spark.demo.spark_home import make_home

_END_WAIT_S: Final = 10.0


class Coordinator:
    """`python -m coordinator`, its log as JSON lines in a file. A context manager that leaves nothing alive."""

    def __init__(self, log: Path, *, store: str, namespace: str, ownership: str) -> None:
        self._path = log
        log.touch()
        self._lines = log.open(encoding="utf-8")
        # -P: a directory named coordinator where the command is typed is not the package.
        command = [sys.executable, "-P", "-m", "coordinator", "--json"]
        command += ["--store", store, "--namespace", namespace, "--ownership", ownership]
        # Every decision is read from the log, and nobody asks for its health.
        own = {"PARTQ_COORDINATOR_LOG_LEVEL": "info", "PARTQ_COORDINATOR_HEALTH_PORT": "0"}
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


class Driver:
    """`python -m partq_spark.demo.queries`: commands go to its standard input, what it tells is read by `news`."""

    def __init__(self, log: Path, arguments: Mapping[str, str]) -> None:
        self._log = log
        command = [sys.executable, "-m", "partq_spark.demo.queries"]
        command += [word for name, value in arguments.items() for word in (f"--{name}", value)]
        # Spark's workers must be this Python: the first python3 on PATH may have no partq (spark-traps 27).
        own = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        own["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        if "SPARK_HOME" not in os.environ:
            own["SPARK_HOME"] = str(make_home(log.parent / "spark"))
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

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _pipe(self._process.stdin).close()  # which is how it learns that nobody needs it any more
        except BrokenPipeError:
            pass
        _end(self._process)
        self._reader.join(_END_WAIT_S)


@contextmanager
def family(
    folder: Path, *, store: str, namespace: str, ownership: str, arguments: Mapping[str, str]
) -> Iterator[tuple[Coordinator, Driver]]:
    """Both, with their logs in `folder`, until the `with` block ends."""
    where = {"store": store, "namespace": namespace, "ownership": ownership}
    with (
        Coordinator(folder / "coordinator.log", **where) as coordinator,
        Driver(folder / "spark.log", {**where, **arguments}) as driver,
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


def _end(process: subprocess.Popen[str]) -> None:
    """Ask, then insist: SIGTERM, and SIGKILL for the whole process group, with the JVM in it."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(_END_WAIT_S)
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
