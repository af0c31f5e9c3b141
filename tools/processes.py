"""Programs that run in processes of their own: starting them, waiting for them, killing them, their logs.

A program is mostly a Spark driver: Python, the JVM that it starts, and the Python workers that the JVM starts, which
leave the driver's process group. So a family is found by parenthood. Every wait ends, and ends at once with the
program's log when the program does. Servers (Azurite, Redis) live in `servers`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self, TypeVar

import psutil

from tools import ROOT

T = TypeVar("T")

DRIVER_WAIT_S: Final = 150.0
"""For a Spark driver to get somewhere: 12 s on an idle machine with 2 cores, several times that on a busy one."""

_END_WAIT_S: Final = 30.0
_LOOK_S: Final = 0.05
_COUNT_S: Final = 1.0  # between two counts of a family, which look at every process of the machine
_LOG_TAIL: Final = 6000
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills this child when the thread that started it ends, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """One program, started in `folder`, its output in `folder/name.log`. A context manager that leaves nothing alive.

    Whatever happens to the test, the program dies with it, and a JVM ends when the program that started it does.
    """

    def __init__(self, command: Sequence[str], *, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self.folder = folder
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[int, psutil.Process] = {}

    @classmethod
    def script(
        cls, path: Path, arguments: object, *, name: str, folder: Path, environment: Mapping[str, str]
    ) -> Program:
        """A Python script of the tests, given `arguments` as JSON in a file, which is its only argument."""
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f"{name}.json"
        written.write_text(json.dumps(arguments))
        command = [sys.executable, str(path), str(written)]
        return cls(command, name=name, folder=folder, environment=environment)

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        if self._process is not None:
            self._process.wait(_END_WAIT_S)  # the former one, which may have ended by itself: else Python warns of it
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a test's main thread
            )
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs or was not started."""
        return self._process.poll() if self._process is not None else None

    def send(self, number: signal.Signals) -> None:
        """A signal for the program itself; nothing where it has ended."""
        assert self._process is not None, f"{self.name} was not started"
        self._process.send_signal(number)

    def family(self) -> list[psutil.Process]:
        """The program and all its descendants that live, also those seen earlier whose parent has ended since."""
        found: list[psutil.Process] = []
        try:
            itself = psutil.Process(self.pid)
            found = [itself, *itself.children(recursive=True)]
        except psutil.NoSuchProcess:
            pass
        self._known.update({process.pid: process for process in found})
        return [process for process in self._known.values() if _alive(process)]

    def kill(self, *, spare: Sequence[int] = ()) -> None:
        """SIGKILL for the whole family at one instant, but for the descendants `spare`; returns when they are gone."""
        if self._process is None:
            return
        # Stopped first: else one that dies early would be noticed by another, which might still act.
        doomed = [process for process in self.family() if process.pid not in spare]
        # Killed from the leaves on: a process group that loses its last tie to a parent while one of it is stopped gets
        # SIGHUP, and so would the spared ones in it.
        for send, processes in ((psutil.Process.suspend, doomed), (psutil.Process.kill, doomed[::-1])):
            for process in processes:
                try:
                    send(process)
                except psutil.NoSuchProcess:
                    continue
        # One whose first thread has ended looks like a zombie while its other threads still run: not among the living.
        self._process.kill()
        self._gone(doomed)

    def kill_driver(self) -> None:
        """SIGKILL for the program and its JVM, as `kill -9` would; returns when also the rest has ended by itself."""
        assert self._process is not None, f"{self.name} was not started"
        family = self.family()
        self._process.kill()
        for process in family:
            if _name(process) == "java":
                process.kill()
        self._gone(family)

    def wait_end(self, wait_s: float = DRIVER_WAIT_S) -> int:
        """The exit code; fails if the program does not end in time."""
        assert self._process is not None, f"{self.name} was not started"
        self.family()
        try:
            return self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {wait_s:g} s\n{self.tail()}") from None

    def _gone(self, processes: Sequence[psutil.Process]) -> None:
        """Wait for the program, which may also have ended by itself, and for `processes`."""
        assert self._process is not None, f"{self.name} was not started"
        self._process.wait(_END_WAIT_S)
        deadline_s = time.monotonic() + _END_WAIT_S
        while left := [process for process in processes if _alive(process)]:
            assert time.monotonic() < deadline_s, f"{self.name}: still alive after {_END_WAIT_S:g} s: {left}"
            time.sleep(_LOOK_S)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_until(self, look: Callable[[], T], what: str, wait_s: float = DRIVER_WAIT_S) -> T:
        """The first true answer of `look`; fails with the log when the program ends before, or the time is over."""
        assert self._process is not None, f"{self.name} was not started"
        deadline_s = time.monotonic() + wait_s
        counted_s = 0.0
        while True:
            ended = self._process.poll()
            if answer := look():  # asked once more after the program's end
                return answer
            if time.monotonic() - counted_s > _COUNT_S:
                counted_s = time.monotonic()
                self.family()
            assert ended is None, f"{self.name} ended with {ended} before {what}\n{self.tail()}"
            assert time.monotonic() < deadline_s, f"{self.name}: no sign of {what} in {wait_s:g} s\n{self.tail()}"
            time.sleep(_LOOK_S)

    def text(self) -> str:
        """The whole log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        """The end of the log, for messages."""
        return f"--- the end of {self.log}\n{self.text()[-_LOG_TAIL:]}"


def coordinator(
    folder: Path, store: str, ownership: str, *, namespace: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Program:
    """`python -m coordinator` with its defaults, but without a health server, and with its log as JSON; `variables` are
    set on top of this process' environment.
    """
    given = {"PARTQ_COORDINATOR_HEALTH_PORT": "0", "PARTQ_COORDINATOR_LOG_FORMAT": "json", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "coordinator", "--store", store, "--namespace", namespace]
    command += ["--ownership", ownership]
    return Program(command, name="coordinator", folder=folder, environment={**os.environ, **variables, **given})


def readers_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those of a Spark driver's descendants in which a stream's Python source lives."""
    found = []
    for process in processes:
        try:
            if any("python_streaming_source_runner" in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that nobody has waited for yet, and one whose number has a new owner, do not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""
