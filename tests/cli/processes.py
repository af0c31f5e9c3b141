"""`partq` as a process of its own, for what only a process has: exit codes, pipes, terminals, signals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tools.processes import die_with_parent

WAIT_S = 60.0


def environment(store: Path, **more: str) -> dict[str, str]:
    """Nothing of the caller's but what finds programs."""
    return {"PATH": os.environ["PATH"], "HOME": str(store.parent), "PARTQ_STORE": f"file://{store}", **more}


def command(*arguments: object) -> list[str]:
    """`partq ARGUMENTS`, as the installed script runs it."""
    return [sys.executable, "-m", "partq_spark.cli.main", *map(str, arguments)]


def run(store: Path, *arguments: object, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run `partq` to its end."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        env=environment(store, **more),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def start(
    store: Path,
    *arguments: object,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    more: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `partq`; it dies with the test."""
    return subprocess.Popen(
        command(*arguments),
        env=environment(store, **(more or {})),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a test's main thread
    )
