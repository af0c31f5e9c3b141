"""The local store after power loss and crashes: what is synced before success is reported, and what may be swept. And
disks that are full, or not for us: every kind of write says so and leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from partq_spark.objects.retrying import Retrying
from tests.objects.conftest import write
from tests.objects.local.conftest import files

# ---- power loss: what is synced before success is reported


class Calls:
    """The order of the calls that make something durable or visible, with what they were about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.seen: list[str] = []

        def note(name: str, about: Callable[..., str]) -> None:
            real = getattr(os, name)

            def call(*args: object, **kwargs: object) -> object:
                self.seen.append(f"{name} {about(*args)}")
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, call)

        def path_of(fd: int) -> str:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            if "/.tmp-" in path:
                return "temporary"
            return os.path.relpath(path, root)

        note("fsync", path_of)
        note("link", lambda _source, name: str(name))
        note("rename", lambda _source, name: str(name))
        note("unlink", lambda name: "temporary" if str(name).startswith(".tmp-") else str(name))


def test_everything_is_synced_before_success(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("q/gone", b"x")
    first, second = (store.swap(f"q/{name}", b'{"n":0}', expected=None) for name in ("doc", "left"))
    calls = Calls(monkeypatch, root)
    made: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: store.create("q/o", b"x"), ["fsync temporary", "link o", "unlink temporary", "fsync q"]),
        (
            lambda: store.swap("q/new", b'{"n":1}', expected=None),
            ["fsync temporary", "link new", "unlink temporary", "fsync q"],
        ),
        (lambda: store.swap("q/doc", b'{"n":1}', expected=first), ["fsync temporary", "rename doc", "fsync q"]),
        (lambda: store.remove("q/left", expected=second), ["unlink left", "fsync q"]),
        (lambda: store.delete("q/gone"), ["unlink gone", "fsync q"]),
    ]
    for act, seen in made:
        calls.seen.clear()
        act()
        assert calls.seen == seen


@pytest.mark.parametrize("there", [False, True])
def test_new_folders_are_synced(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    if there:
        (root / "a/b/c").mkdir(parents=True)  # by a process that had no time yet to sync what it made
    calls = Calls(monkeypatch, root)
    store.create("a/b/c/object", b"x")
    assert calls.seen[:4] == ["fsync a/b", "fsync a", "fsync .", "fsync .."]
    assert calls.seen[4:] == ["fsync temporary", "link object", "unlink temporary", "fsync a/b/c"]


def test_a_write_back_that_failed_early_is_not_taken_for_success(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(root), sync_every_bytes=1000)
    failed = threading.Event()

    def fail(_: int) -> None:
        failed.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)  # a disk cannot be made to break on demand

    def write_and_wait() -> None:
        with store.writer("q/object") as writer:
            writer.write(b"x" * 2000)
            assert failed.wait(10)  # from here on the kernel would report success

    with pytest.raises(Unavailable, match=r"q/object.*EIO"):
        write_and_wait()
    assert files(root) == []


# ---- a folder whose sync fails: what was done there counts for nothing until another sync of it succeeds


class FailingFolder:
    """Syncs of the folder `q` fail as long as `failing` says; `synced` counts those that succeeded."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, root: Path, failing: int, error: BaseException | None = None
    ) -> None:
        self.failing = failing
        self.synced = 0
        fsync = os.fsync

        def sync(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink() == root / "q":
                if self.failing > 0:
                    self.failing -= 1
                    raise error or OSError(errno.EIO, os.strerror(errno.EIO))
                self.synced += 1
            fsync(fd)

        monkeypatch.setattr(os, "fsync", sync)


def test_a_creation_meeting_its_link_syncs_it(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("q/first", b"x")
    folder = FailingFolder(monkeypatch, root, failing=3)
    Retrying(store, 60, Effects(sleep=lambda _: None)).create("q/object", b"mine")
    assert (folder.failing, folder.synced) == (0, 1)
    assert bytes(store.read("q/object")) == b"mine"


ACTS: dict[str, tuple[Callable[[LocalStore, str], object], str]] = {
    "swap new": (lambda store, _: store.swap("q/new", b'{"n":2}', expected=None), "q/new"),
    "swap": (lambda store, etag: store.swap("q/doc", b'{"n":2}', expected=etag), "q/doc"),
    "remove": (lambda store, etag: store.remove("q/doc", expected=etag), "q/doc"),
    "delete": (lambda store, _: store.delete("q/first"), "q/first"),
}


@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_found_to_have_come_through_before_its_folder_is_synced(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A caller that lost the answer reads, to settle what became of it, or tries again."""
    store.create("q/first", b"x")
    etag = store.swap("q/doc", b'{"n":1}', expected=None)
    folder, (call, name) = FailingFolder(monkeypatch, root, failing=3), ACTS[act]
    with pytest.raises(Unavailable, match=name):
        call(store, etag)
    with pytest.raises(Unavailable, match=r"q.*EIO"):
        store.load("q/doc")
    with pytest.raises(Unavailable, match=r"q.*EIO"):  # of the folder, before anything else is done there
        store.delete("q/first")
    if act == "delete":
        store.delete(name)
    found = store.load(name)
    assert (folder.failing, folder.synced) == (0, 1)
    assert found is None if act in ("remove", "delete") else getattr(found, "body", b"") == b'{"n":2}'


def test_what_was_interrupted_is_synced_first(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("q/first", b"x")
    folder = FailingFolder(monkeypatch, root, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.swap("q/doc", b"{}", expected=None)
    assert (store.load("q/doc") is not None, folder.synced) == (True, 1)


def test_a_folder_that_is_gone_is_not_awaited(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("q/first", b"x")
    FailingFolder(monkeypatch, root, failing=1)
    with pytest.raises(Unavailable):
        store.create("q/object", b"x")
    shutil.rmtree(root)
    assert store.load("q/doc") is None
    store.create("q/object", b"y")


# ---- crashes


def test_a_writer_whose_file_was_swept_publishes_nothing(store: LocalStore, root: Path) -> None:
    def write_and_sweep() -> None:
        with store.writer("q/object") as writer:
            writer.write(b"x")
            assert store.sweep_temporary(3600) == 0
            assert store.sweep_temporary(0) == 1

    with pytest.raises(Unavailable, match="q/object"):
        write_and_sweep()
    assert files(root) == []


# --- full disks -------------------------------------------------------------------------------------------------------


def writes_fail(store: LocalStore, root: Path, message: str) -> None:
    """With some room used up, every kind of write says so and leaves nothing half done."""
    before = files(root)
    filler = b"x" * 4_000_000
    etag = store.swap("q/doc", b'{"n":1}', expected=None)
    with pytest.raises(Unavailable, match=rf"q/big.*{message}"):
        store.create("q/big", filler)
    with pytest.raises(Unavailable, match=rf"q/big.*{message}"):
        write(store, "q/big", *[filler[:100_000]] * 40)

    def go_on_after_a_failed_write() -> None:
        with store.writer("q/big") as writer:
            with contextlib.suppress(Unavailable):
                writer.write(filler)
            with contextlib.suppress(Unavailable):
                writer.write(b"the end")

    with pytest.raises(Unavailable, match=rf"q/big.*{message}"):
        go_on_after_a_failed_write()
    with pytest.raises(Unavailable, match=rf"q/doc.*{message}"):
        store.swap("q/doc", b'{"n":"' + filler + b'"}', expected=etag)
    assert store.load("q/doc") == Document(etag=etag, body=b'{"n":1}')
    assert files(root) == sorted([*before, "q/doc"])
    store.remove("q/doc", expected=etag)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("needs the right to mount a small disk; the file size limit covers the same code for others")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_or_a_file_size_limit_is_named_and_nothing_is_half_done(root: Path, store: LocalStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        writes_fail(store, root, r"File too large.*nothing half done.*ulimit -f")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with mounted(root, "size=1m"):
        writes_fail(store, root, r"No space left on device.*nothing half done.*free space")

        def fill() -> None:
            for i in range(1000):
                store.create(f"many/{i}", b"x" * 8000)

        with pytest.raises(Unavailable, match="free space"):
            fill()
        assert not [name for name in files(root) if ".tmp-" in name]
        store.delete("many/0")
        store.create("many/0", b"there is room again")


def test_a_store_one_may_not_write_to_says_so(root: Path, store: LocalStore) -> None:
    store.create("q/a", b"x")
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # root may write everywhere but on a disk mounted read-only
            stack.enter_context(mounted(root, "size=1m,ro"))
        else:
            root.chmod(0o500)
            stack.callback(root.chmod, 0o700)
        fresh = LocalStore(str(root))
        with pytest.raises(Invalid, match=rf"{root}/other/b.*user id {os.geteuid()} write there"):
            fresh.create("other/b", b"y")
        with pytest.raises(Invalid, match=f"{root}/other/c"):
            fresh.swap("other/c", b"{}", expected=None)
        assert fresh.load("other/c") is None
