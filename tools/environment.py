"""Where a measurement was made: machine, disk, versions, commit, and how busy the machine was before it began."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tools import ROOT

_FSYNCS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """All texts are ready to be shown."""

    date: str  # UTC
    commit: str  # with "+ changes" where the tree had any
    cpu: str
    cores: int
    memory: str
    disk: str  # file system of the work directory, and the median of 4 KiB write + fsync
    system: str
    versions: str
    load: float  # runnable processes over the last minute, before the part began

    @property
    def machine(self) -> tuple[str, int, str]:
        """What must be equal for two outcomes to stand in one document."""
        return self.cpu, self.cores, self.memory


def observe(work: Path) -> Environment:
    """Look around; takes about a second, most of it the disk's fsyncs."""
    return Environment(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory=f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        disk=f"{_file_system(work)}, write + fsync of 4 KiB: {fsync_latency_s(work) * 1000:.2f} ms",
        system=f"{platform.system()} {platform.release()}",
        versions=", ".join(
            (
                f"Python {platform.python_version()}",
                f"Java {_java()}",
                *(f"{package} {version(package)}" for package in ("pyspark", "pyarrow", "xxhash")),
            )
        ),
        load=os.getloadavg()[0],
    )


def fsync_latency_s(folder: Path) -> float:
    """The median of 200 appends of 4 KiB, each followed by an fsync: what a durable swap costs at the least."""
    samples = []
    path = folder / "fsync-latency"
    with path.open("wb", buffering=0) as file:
        for _ in range(_FSYNCS):
            begun = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            samples.append(time.perf_counter() - begun)
    path.unlink()
    return statistics.median(samples)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""


def _commit() -> str:
    commit = _output("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    return f"{commit} + changes" if _output("git", "status", "--porcelain", "--untracked-files=no") else commit


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _java() -> str:
    java = Path(os.environ["JAVA_HOME"]) / "bin/java" if os.environ.get("JAVA_HOME") else Path("java")
    found = re.search(r'version "([^"]+)"', _output(str(java), "-version"))
    return found[1] if found else "unknown"


def _file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`: a tmpfs would make every comparison with fsync meaningless."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    holding = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else "unknown"
