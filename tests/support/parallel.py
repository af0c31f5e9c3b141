"""How tests share the machine when they run in several processes: their order, and the mark `alone`.

A pytest plugin (loaded by the root conftest); in a run of one process it only refuses tests with a JVM outside of their
folders. In a run of several the files are given out one by
one (`--dist loadfile --no-loadscope-reorder`), so that the fixtures of a file and of its process's session serve it as
they always do. One process gets none that starts a JVM: where too many start at once on too few cores, Spark does
not wait long enough for its workers. It knows marks and file names, and nothing of what the tests do.

Most tests wait, and seeded ones only compute. So of four processes or more the last one takes what the others leave of
the processor: it has a low priority, runs nothing but tests that compute (`COMPUTING`), one by one, and goes on
beside those that are alone, which do not notice it. What it has not begun when the others are done, they help with.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

JVM = frozenset({"spark", "connect"})
JVM_FOLDERS = ("tests/chaos/", "tests/demo/", "tests/notebooks/", "tests/spark/")
"""Where tests with these marks are, and must be: the process that gives out the files has not seen the marks."""

COMPUTING = (
    "tests/coordinator/core/test_invariants.py",
    "tests/coordinator/modelcheck/",
    "tests/docs/test_site.py",
    "tests/house/test_architecture.py",
    "tests/log/test_meanwhile.py",
    "tests/scenarios/",
    "tests/world/",
)
"""Where tests need the processor and nothing else: no server, no process that lives by time, not Hypothesis, which
takes examples that come late for a fault, nothing that the tests of a file share.
"""

SPARE_FROM = 4
"""So many processes, and the last one is for computing. Fewer are fewer than would use the processor."""

LAST_WORDS = "last-words"  # a file of each process: where it was when it died of a fault

SPARE_LIMIT_S = 1800.0
"""For a test there, instead of its own limit: it may have to wait until the others leave it something."""

PROCESSES = frozenset({"redis", "azurite", "crash", "slow"})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The same order in every process: pytest-xdist insists on it. Raises `UsageError` for a JVM where none may be."""
    for item in items:
        if any(mark.name in JVM for mark in item.iter_markers()) and not item.nodeid.startswith(JVM_FOLDERS):
            raise pytest.UsageError(f"{item.nodeid} starts a JVM: it belongs into one of {', '.join(JVM_FOLDERS)}")
    if not is_worker(config):
        return
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    items[:] = [item for path in sorted(files, key=lambda path: _place(path, files[path])) for item in files[path]]


def is_worker(config: pytest.Config) -> bool:
    """Whether this process was started by pytest-xdist to run a part of the tests."""
    return hasattr(config, "workerinput")


def _is_spare(config: pytest.Config) -> bool:
    """Whether this is the process of several that only computes."""
    if not is_worker(config):
        return False
    given: dict[str, object] = config.workerinput  # type: ignore[attr-defined]
    return _number(str(given["workerid"])) == _spare(int(str(given["workercount"])))


def _spare(processes: int) -> int | None:
    """The number of the one that only computes, if there are enough."""
    return processes - 1 if processes >= SPARE_FROM else None


def _place(path: Path, items: list[pytest.Item]) -> tuple[int, float, Path]:
    """What takes longest begins first, so that the processes end together; a test that wants to be alone comes last.

    A limit of its own says that a test is long. Servers and processes with short times follow when most JVMs are done.
    """
    marks = {mark.name for item in items for mark in item.iter_markers()}
    limits_s = [float(mark.args[0]) for item in items for mark in item.iter_markers("timeout") if mark.args]
    if "alone" in marks:
        rank = 3
    elif marks & JVM:
        rank = 0
    else:
        rank = 1 if marks & PROCESSES else 2
    return rank, -max(limits_s, default=0.0), path


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """What gives out the files, in the process that starts the others."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class Scheduling(LoadFileScheduling):  # type: ignore[misc] # pytest-xdist has no types
    """As they come, but files with a JVM and tests that compute each to processes of their own."""

    def _split_scope(self, nodeid: str) -> str:
        """What is given out at once: a file, but of those that compute a test."""
        scope: str = nodeid if nodeid.startswith(COMPUTING) else super()._split_scope(nodeid)
        return scope

    def _first_for(self, node: WorkerController) -> str | None:
        """What a process gets next. Who gets what stays the same when others have ended, unless nobody else is left."""
        spare = _spare(self.numnodes)
        without_jvm = self.numnodes - 1 if spare is None else spare - 1
        if all(each.shutting_down or _number(each.gateway.id) in (spare, without_jvm) for each in self.nodes):
            return next(iter(self.workqueue), None)
        computing = (scope for scope in self.workqueue if scope.startswith(COMPUTING))
        if _number(node.gateway.id) == spare:
            return next(computing, None)
        others = (scope for scope in self.workqueue if spare is None or not scope.startswith(COMPUTING))
        if _number(node.gateway.id) == without_jvm:
            others = (scope for scope in others if not scope.startswith(JVM_FOLDERS))
        return next(others, None) or next(computing, None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._first_for(node)
        if scope is None:
            node.shutdown()  # after what it has
        else:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._first_for(node) is None and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)


def _number(process: str) -> int:
    """Of a process by its name for pytest-xdist."""
    return int(process.removeprefix("gw"))


class Turnstile:
    """Lets one test run with no other beside it, in any process; two files that are locked, in `folder`.

    Every test comes in by the gate, and one that wants to be alone keeps it shut until it has left: so the others that
    are inside leave one by one, and it need not wait for an instant at which none is there by chance. The kernel opens
    both when a process dies.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate.lock"
        self._room = folder / "room.lock"

    @contextmanager
    def passed(self, *, alone: bool) -> Iterator[None]:
        """Be inside. Waits without a limit of its own: every test inside has one."""
        with self._gate.open("ab") as gate, self._room.open("ab") as room:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            if not alone:
                _unlock(gate)
            yield


def _unlock(file: IO[bytes]) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)


class Waiting:
    """Sends each test through the turnstile, outside of its limit: waiting for others is not its fault."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self._turnstile.passed(alone=item.get_closest_marker("alone") is not None):
            return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    if is_worker(session.config):
        own = _folder(session.config)  # in that of the whole run
        faulthandler.enable((own / LAST_WORDS).open("w"))
        if not _is_spare(session.config):
            session.config.pluginmanager.register(Waiting(Turnstile(own.parent)), "waiting")


def _folder(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def pytest_handlecrashitem(report: pytest.TestReport, sched: LoadFileScheduling) -> None:
    """Else what is on record of a run says that a process died, and not of what."""
    said = (_folder(sched.config) / f"popen-{report.node.gateway.id}" / LAST_WORDS).read_text()
    report.longrepr = f"{report.longrepr}: {' | '.join(said.splitlines()[:100]) or 'killed, or ended by itself'}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: to look for garbage in it, now or later, would take a fifth as long again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The others wait until all have collected, so the spare process makes way only now."""
    if _is_spare(session.config):
        os.nice(10)  # not idle: what else there is on the machine must leave it something
        for item in session.items:
            item.add_marker(pytest.mark.timeout(SPARE_LIMIT_S), append=False)
