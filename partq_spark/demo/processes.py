"""The demo's processes and the folder that they work in, and what the coordinator's log says of the mapping. The
coordinator is started here; it and Spark's JVM are ended here, also after an error; the readers of Spark that the demo
may kill are found here.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
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


# --- what the coordinator's log says ----------------------------------------------------------------------------------

# Which flows join and which fall silent, which partitions move, and how long each was paused. Pure: log lines in,
# changes out.
#
# What the acts wait for is read from `status`. This is not: `status` tells how a group is, and a handoff of 0.2 s
# begins and ends between two looks at it. Which partitions moved, why, and for how long each was paused is in the log
# alone.


NOBODY: Final = "nobody"


class MoveKind(StrEnum):
    """How a partition came to its flow."""

    FIRST = "first"  # nobody had it
    HANDOFF = "handoff"  # paused, drained, then handed over
    FORCED = "forced"  # the same, but what its flow had in hand took longer than max-handoff-time
    LOST = "lost"  # its flow is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionMove:
    """One partition that has a new owner. `paused_ms`: from the pause to the new owner, None where there was none."""

    partition: int
    before: str | None
    after: str | None
    kind: MoveKind
    paused_ms: int | None
    at_ms: int  # Unix time


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A flow is bound."""

    flow: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowGone:
    """A flow's heartbeat stood still for its session timeout, or it left."""

    flow: str
    left: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What moved at once."""

    moves: tuple[PartitionMove, ...]


Change = Joined | FlowGone | Moved


@dataclass(kw_only=True, slots=True)
class _Way:
    """A partition on its way."""

    before: str | None
    paused_at_ms: int | None = None
    forced: bool = False


@dataclass(kw_only=True)
class Ledger:
    """The mapping as the log has it so far. `heed` each line; a change is returned when it is complete."""

    owners: dict[int, str | None] = field(default_factory=dict)
    bound: list[str] = field(default_factory=list)
    moves: list[PartitionMove] = field(default_factory=list)  # all that there were
    _under_way: dict[int, _Way] = field(default_factory=dict)
    _arrived: list[PartitionMove] = field(default_factory=list)

    @property
    def held(self) -> set[int]:
        """Partitions that nothing is delivered from: on their way, or without a bound flow."""
        alone = {partition for partition, owner in self.owners.items() if owner not in self.bound}
        return alone | set(self._under_way)

    def heed(self, line: Mapping[str, Any]) -> list[Change]:
        """One line of the log, decoded. Lines that say nothing about the mapping change nothing."""
        match line.get("event"):
            case "flow_bound":
                if line["flow"] in self.bound:
                    return []  # a new instance in the place of the former one
                self.bound.append(line["flow"])
                return [Joined(flow=line["flow"])]
            case "flow_expired" | "flow_unbound":
                self.bound = [flow for flow in self.bound if flow != line["flow"]]
                return [FlowGone(flow=line["flow"], left=line["event"] == "flow_unbound")]
            case "pause":
                partition = line["partition"]
                self._under_way[partition] = _Way(before=self.owners.get(partition), paused_at_ms=_ms(line["time"]))
            case "resume":
                self._under_way.pop(line["partition"], None)
            case "fence":
                way = self._under_way.setdefault(line["partition"], _Way(before=self.owners.get(line["partition"])))
                way.forced = way.forced or "max-handoff-time" in line["reason"]
            case "assign":
                self._assign(line)
        return self._complete()

    def _assign(self, line: Mapping[str, Any]) -> None:
        partition, at_ms = line["partition"], _ms(line["time"])
        way = self._under_way.pop(partition, None) or _Way(before=self.owners.get(partition))
        after = None if line["flow"] == NOBODY else line["flow"]
        self.owners[partition] = after
        if after == way.before:
            return  # the same flow once more, as a new instance
        paused_ms = None if way.paused_at_ms is None else at_ms - way.paused_at_ms
        move = PartitionMove(
            partition=partition,
            before=way.before,
            after=after,
            kind=_kind(way, self.bound),
            paused_ms=paused_ms,
            at_ms=at_ms,
        )
        self._arrived.append(move)
        self.moves.append(move)

    def _complete(self) -> list[Change]:
        if self._under_way or not self._arrived:
            return []
        moved = Moved(moves=tuple(sorted(self._arrived, key=lambda move: move.partition)))
        self._arrived = []
        return [moved]


def _kind(way: _Way, bound: list[str]) -> MoveKind:
    if way.before is None:
        return MoveKind.FIRST
    if way.before not in bound:
        return MoveKind.LOST
    return MoveKind.FORCED if way.forced else MoveKind.HANDOFF


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
