"""The lock of a folder: waited for within bounds, and gone with its holder."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_files import FolderLock, TemporaryFile


@pytest.mark.crash
def test_a_process_frozen_inside_the_lock_is_waited_for_within_bounds(store: LocalStore, root: Path) -> None:
    etag = store.swap("q/doc", b'{"by":"me"}', expected=None)
    child = os.fork()
    if child == 0:
        try:
            swap_and_freeze(root, etag)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
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
    finally:
        os.kill(child, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0
    found = store.load("q/doc")
    assert isinstance(found, Document)
    assert found.body == b'{"by":"frozen"}'
    store.swap("q/doc", b'{"by":"me"}', expected=found.etag)


def swap_and_freeze(root: Path, etag: str) -> None:
    """Stop (SIGSTOP) while holding the folder's lock; when woken, go on as if nothing had been."""
    enter = FolderLock.__enter__

    def enter_and_freeze(lock: FolderLock) -> None:
        enter(lock)
        os.kill(os.getpid(), signal.SIGSTOP)

    FolderLock.__enter__ = enter_and_freeze  # type: ignore[method-assign] # the one instruction to be frozen at
    LocalStore(str(root)).swap("q/doc", b'{"by":"frozen"}', expected=etag)


def test_who_is_overtaken_changes_nothing(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etag = store.swap("q/doc", b'{"by":"nobody"}', expected=None)
    finish = TemporaryFile.finish

    def overtaken(self: TemporaryFile) -> None:
        monkeypatch.undo()
        LocalStore(str(root)).swap("q/doc", b'{"by":"the other"}', expected=etag)
        finish(self)

    monkeypatch.setattr(TemporaryFile, "finish", overtaken)
    with pytest.raises(Conflict):
        store.swap("q/doc", b'{"by":"me"}', expected=etag)
    found = store.load("q/doc")
    assert isinstance(found, Document)
    assert found.body == b'{"by":"the other"}'


def test_who_only_reads_stops_no_writer(store: LocalStore, root: Path) -> None:
    etag = store.swap("q/doc", b'{"by":"me"}', expected=None)
    store.create("q/object", b"x")
    etag = store.swap("q/doc", b'{"by":"me"}', expected=etag)
    held = [os.open(path, os.O_RDONLY) for path in (root, root / "q", root / "q/doc", root / "q/object")]
    try:
        for each in held:
            fcntl.flock(each, fcntl.LOCK_EX)
        etag = store.swap("q/doc", b'{"by":"me again"}', expected=etag)
        store.delete("q/object")
        store.remove("q/doc", expected=etag)
    finally:
        for each in held:
            os.close(each)


@pytest.mark.parametrize(
    ("folder", "lock"), [(0o700, 0o600), (0o755, 0o600), (0o775, 0o660), (0o2770, 0o660), (0o777, 0o666)]
)
@pytest.mark.parametrize("former", [None, 0o600, 0o644, 0o666])
def test_the_lock_is_for_those_alone_who_may_write_to_its_folder(
    store: LocalStore, root: Path, umask: Callable[[int], int], folder: int, lock: int, former: int | None
) -> None:
    umask(0)
    etag = store.swap("q/doc", b'{"n":1}', expected=None)
    (root / "q").chmod(folder)
    if former is None:
        (root / "q/.lock").unlink()  # as in a copy that left out what is hidden
    else:
        (root / "q/.lock").chmod(former)  # as by `chmod -R`
    store.swap("q/doc", b'{"n":2}', expected=etag)
    assert stat.S_IMODE((root / "q/.lock").stat().st_mode) == lock


def test_a_lock_that_may_not_be_opened_is_named(store: LocalStore, root: Path) -> None:
    etag = store.swap("q/doc", b'{"n":1}', expected=None)
    (root / "q/.lock").unlink()
    (root / "q/.lock").symlink_to(root / "elsewhere")  # a planted link is not followed
    with pytest.raises(Unavailable, match=rf"locking {root}/q/\.lock failed"):
        store.swap("q/doc", b'{"n":2}', expected=etag)
    assert not (root / "elsewhere").exists()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_neither_a_child_forked_under_the_lock_keeps_it_nor_an_exception_at_its_end(root: Path) -> None:
    root.mkdir()
    first, second = (os.open(root, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    with FolderLock(first, str(root), 0.1):
        child = os.fork()
        if child == 0:  # has the same open folder, and so the same lock
            signal.pause()
            os._exit(0)
    FolderLock(first, str(root), 0.1).__enter__()  # a signal's, which comes before the first line of `__exit__`
    try:
        os.close(first)
        with FolderLock(second, str(root), 0.1):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(second)
