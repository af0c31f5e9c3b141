"""`partq` as a process of its own, for what only a process has: exit codes, pipes, terminals, signals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.processes import die_with_parent

WAIT_S = 60.0


def environment(store: Path, **more: str) -> dict[str, str]:
    """Nothing of the caller's but what finds programs."""
    return {"PATH": os.environ["PATH"], "HOME": str(store.parent), "PARTQ_STORE": f"file://{store}", **more}


def command(*arguments: object) -> list[str]:
    """`partq ARGUMENTS`, as the installed script runs it."""
    return [sys.executable, "-m", "partq_spark.cli.main", *map(str, arguments)]


def run(store: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `partq` to its end."""
    return carried_out(store, command(*arguments), **more)


def carried_out(store: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Any words, in the folder where the store is."""
    return subprocess.run(
        words,
        cwd=store.parent,
        env=environment(store, **more),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def start(
    store: Path,
    *arguments: object,
    stdin: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    more: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `partq`; it dies with the test."""
    return subprocess.Popen(
        command(*arguments),
        env=environment(store, **(more or {})),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a test's main thread
    )
