"""Finds the processes in which Spark runs a Python source's reader, so that the demo can kill one. Linux: /proc."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
