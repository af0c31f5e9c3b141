"""Real processes for tests: what they run, and how they are started. Each opens its store by URL, as users do."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from partq_spark.base.errors import Conflict
from partq_spark.objects import Document, open_store
from partq_spark.objects.local_folders import FolderLock
from tests.support.servers import die_with_parent

_SPAWN = multiprocessing.get_context("spawn")
_MAX_TRIES = 10_000


def start(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """A new interpreter that runs `target`; it dies with this one."""
    process = _SPAWN.Process(target=_run, args=(target, *args), daemon=True)
    process.start()
    return process


def run_together(target: Callable[..., None], arguments: list[tuple[Any, ...]], *, wait_s: float = 60) -> None:
    """One process for each tuple of arguments, all released at once; fails if one does."""
    barrier = _SPAWN.Barrier(len(arguments))
    processes = [start(_together, barrier, target, args) for args in arguments]
    deadline_s = time.monotonic() + wait_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join(10)
    assert codes == [0] * len(processes)


def _run(target: Callable[..., None], *args: Any) -> None:
    die_with_parent()
    target(*args)


def _together(barrier: Any, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    barrier.wait(60)
    target(*args)


def increment(url: str, name: str, times: int) -> None:
    """Add one to a counter document, so often, while others do the same."""
    store = open_store(url)
    for _ in range(times):
        for _ in range(_MAX_TRIES):
            found = store.load(name)
            try:
                if isinstance(found, Document):
                    value = json.loads(found.body)["value"]
                    store.swap(name, json.dumps({"value": value + 1}).encode(), expected=found.etag)
                else:
                    store.swap(name, b'{"value": 1}', expected=None)
                break
            except Conflict:
                continue
        else:
            raise AssertionError(f"{name} could not be swapped in {_MAX_TRIES} tries")


def create_without_end(url: str, ready: Any) -> None:
    """Create objects whose content can be told from their name, and swap a document, until killed."""
    store = open_store(url)
    etag = store.swap("crash/document", b'{"value":0}', expected=None)
    ready.set()
    for i in range(1_000_000):
        name = f"crash/{os.getpid()}-{i:06}"
        with store.writer(name) as writer:
            for piece in content_of(name):
                writer.write(piece)
        etag = store.swap("crash/document", json.dumps({"value": i, "filler": "x" * 50_000}).encode(), expected=etag)


def content_of(name: str) -> list[bytes]:
    """Some 600 kB that belong to this name alone."""
    return [hashlib.sha256(f"{name} {i}".encode()).digest() * 2000 for i in range(10)]


def freeze_inside_the_lock(url: str, name: str) -> None:
    """Swap, and stop (SIGSTOP) while holding the folder's lock; when woken, go on as if nothing had been."""
    enter = FolderLock.__enter__

    def enter_and_freeze(lock: FolderLock) -> None:
        enter(lock)
        os.kill(os.getpid(), signal.SIGSTOP)

    FolderLock.__enter__ = enter_and_freeze  # type: ignore[method-assign] # the one instruction to be frozen at
    store = open_store(url, retry_timeout_s=0)
    found = store.load(name)
    assert isinstance(found, Document)
    store.swap(name, b'{"by":"frozen"}', expected=found.etag)
