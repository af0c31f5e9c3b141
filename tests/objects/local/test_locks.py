"""The lock of a folder: waited for within bounds, and gone with its holder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from partq_spark.errors import Unavailable
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_files import FolderLock
from tests.objects import processes


@pytest.mark.crash
def test_a_process_frozen_inside_the_lock_is_waited_for_within_bounds(store: LocalStore, root: Path) -> None:
    etag = store.swap("q/doc", b'{"by":"me"}', expected=None)
    process = processes.start(processes.freeze_inside_the_lock, store.url, "q/doc")
    assert process.pid is not None
    try:
        assert stopped(process.pid)
        begin_s = time.monotonic()
        with pytest.raises(Unavailable, match=rf"{root}/q .*frozen.*kill -CONT"):
            store.swap("q/doc", b'{"by":"me again"}', expected=etag)
        with pytest.raises(Unavailable, match="frozen"):
            store.remove("q/doc", expected=etag)
        with pytest.raises(Unavailable, match="frozen"):
            store.delete("q/doc")
        assert time.monotonic() - begin_s < 5
        assert store.load("q/doc") == Document(etag=etag, body=b'{"by":"me"}')
        store.create("q/object", b"objects need no lock")
        os.kill(process.pid, signal.SIGCONT)
        process.join(10)
        assert process.exitcode == 0
        found = store.load("q/doc")
        assert isinstance(found, Document)
        assert found.body == b'{"by":"frozen"}'
        store.swap("q/doc", b'{"by":"me"}', expected=found.etag)
    finally:
        process.kill()
        process.join(10)


def stopped(pid: int) -> bool:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
        time.sleep(0.01)
    return False


@pytest.mark.crash
def test_a_lock_dies_with_its_holder(store: LocalStore) -> None:
    etag = store.swap("q/doc", b'{"by":"me"}', expected=None)
    process = processes.start(processes.freeze_inside_the_lock, store.url, "q/doc")
    assert process.pid is not None
    assert stopped(process.pid)
    process.kill()
    process.join(10)
    store.swap("q/doc", b'{"by":"me again"}', expected=etag)


def test_a_child_forked_under_the_lock_does_not_keep_it(root: Path) -> None:
    root.mkdir()
    first, second = (os.open(root, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    with FolderLock(first, str(root), 0.1):
        child = os.fork()
        if child == 0:  # has the same open folder, and so the same lock
            signal.pause()
            os._exit(0)
    try:
        os.close(first)
        with FolderLock(second, str(root), 0.1):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(second)
