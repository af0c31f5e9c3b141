"""What only the local store promises: files that survive crashes and power loss, locks that end, full disks told."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.objects import UNCHANGED, Document, local_files
from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_files import FolderLock
from tests.objects import processes
from tests.objects.conftest import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(str(root), lock_wait_s=0.3)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# ---- what is on the disk


def test_documents_are_json_that_a_person_can_read(store: LocalStore, root: Path) -> None:
    body = store.swap("q/_head.json", b'{"format":1}', expected=None)
    assert json.loads((root / "q/_head.json").read_text()) == {"etag": body, "format": 1}
    metadata = store.swap("q/g/checkpoint/0", {"offset": "12", "etag": "mine"}, expected=None)
    seen = json.loads((root / "q/g/checkpoint/0").read_text())
    assert seen == {"metadata.etag": metadata, "offset": "12", "etag": "mine"}
    empty = store.swap("q/empty", b"{}", expected=None)
    assert json.loads((root / "q/empty").read_text()) == {"etag": empty}


def test_an_idle_look_reads_no_more_than_the_etag(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    contents: list[bytes | dict[str, str]] = [b'{"x":"' + b"x" * 500_000 + b'"}', {"x": "y" * 8000}]
    for i, content in enumerate(contents):
        etag = store.swap(f"d{i}", content, expected=None)
        read: list[int] = []

        def noted(fd: int, size_bytes: int, offset: int, read: list[int] = read) -> bytes:
            read.append(size_bytes)
            return pread(fd, size_bytes, offset)

        monkeypatch.setattr(os, "pread", noted)
        assert store.load(f"d{i}", known=etag) is UNCHANGED
        monkeypatch.undo()
        assert read == [64]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"\0" * len(data),
        lambda data: b"{" + data,
        lambda data: data.replace(b"etag", b"gate"),
    ],
)
@pytest.mark.parametrize("content", [b'{"a":[1,2]}', {"a": "b"}], ids=["body", "metadata"])
def test_a_damaged_document_is_corrupt_and_named(
    store: LocalStore, root: Path, content: bytes | dict[str, str], damage: Callable[[bytes], bytes]
) -> None:
    etag = store.swap("q/d", content, expected=None)
    path = root / "q/d"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Corrupt, match=r"store/q/d.*restore"):
        store.load("q/d")
    if len(path.read_bytes()) < 45:
        with pytest.raises(Corrupt, match="store/q/d"):
            store.swap("q/d", b"{}", expected=etag)


def test_metadata_that_is_not_text_is_corrupt(store: LocalStore, root: Path) -> None:
    store.swap("d", {"a": "b"}, expected=None)
    path = root / "d"
    path.write_bytes(path.read_bytes().replace(b'"b"', b"123"))
    with pytest.raises(Corrupt, match="text"):
        store.load("d")


def test_hidden_files_are_nobodys_objects(store: LocalStore, root: Path) -> None:
    store.create("q/a", b"x")
    (root / "q/.tmp-left").write_bytes(b"y")
    (root / ".trash").mkdir()
    (root / ".trash/b").write_bytes(b"z")
    assert [info.name for info in store.list("")] == ["q/a"]
    assert list(store.list_folders("")) == ["q"]


def test_an_object_is_not_also_a_folder(store: LocalStore) -> None:
    store.create("q/a", b"x")
    for name in ("q/a/b", "q/a/b/c"):
        with pytest.raises(Invalid, match="another name"):
            store.create(name, b"y")
        with pytest.raises(Invalid, match="another name"):
            store.swap(name, b"{}", expected=None)
        assert store.load(name) is None
    with pytest.raises(Conflict):
        store.create("q", b"z")
    assert store.load("q") is None


def test_a_store_that_was_removed_is_made_again(store: LocalStore, root: Path) -> None:
    store.create("q/a", b"x")
    shutil.rmtree(root)
    store.create("q/a", b"y")
    assert bytes(store.read("q/a")) == b"y"


def test_ages_are_measured_from_the_last_write(store: LocalStore, root: Path) -> None:
    store.create("a", b"x")
    os.utime(root / "a", (0, time.time() - 1000))
    (info,) = store.list("a")
    assert 999 < info.age_s < 1060


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
    store.create("q/first", b"x")
    etag = store.swap("q/doc", b'{"n":0}', expected=None)
    calls = Calls(monkeypatch, root)
    store.create("q/object", b"x")
    assert calls.seen == ["fsync temporary", "link object", "unlink temporary", "fsync q"]
    calls.seen.clear()
    store.swap("q/new", b'{"n":1}', expected=None)
    assert calls.seen == ["fsync temporary", "link new", "unlink temporary", "fsync q"]
    calls.seen.clear()
    etag = store.swap("q/doc", b'{"n":1}', expected=etag)
    assert calls.seen == ["fsync temporary", "rename doc", "fsync q"]
    calls.seen.clear()
    store.remove("q/doc", expected=etag)
    assert calls.seen == ["unlink doc", "fsync q"]
    calls.seen.clear()
    store.delete("q/object")
    assert calls.seen == ["unlink object", "fsync q"]


def test_new_folders_are_synced_up_to_one_that_was_there(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, root)
    store.create("a/b/c/object", b"x")
    assert calls.seen[:4] == ["fsync a/b", "fsync a", "fsync .", "fsync .."]
    assert calls.seen[4:] == ["fsync temporary", "link object", "unlink temporary", "fsync a/b/c"]


def test_folders_that_another_process_just_made_are_synced_too(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a/b").mkdir(parents=True)  # by a process that had no time yet to sync what it made
    calls = Calls(monkeypatch, root)
    store.swap("a/b/doc", b"{}", expected=None)
    assert calls.seen[:3] == ["fsync a", "fsync .", "fsync .."]


def test_a_write_back_that_failed_early_is_not_taken_for_success(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(_: int) -> None:
        failed.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(local_files, "_SYNC_EVERY_BYTES", 1000)
    monkeypatch.setattr(os, "fdatasync", fail)  # a disk cannot be made to break on demand

    def write_and_wait() -> None:
        with store.writer("q/object") as writer:
            writer.write(b"x" * 2000)
            assert failed.wait(10)  # from here on the kernel would report success

    with pytest.raises(Unavailable, match=r"q/object.*EIO"):
        write_and_wait()
    assert files(root) == []


def test_long_objects_are_written_back_while_they_grow(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fdatasync = os.fdatasync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        fdatasync(fd)

    monkeypatch.setattr(local_files, "_SYNC_EVERY_BYTES", 1_000_000)
    monkeypatch.setattr(os, "fdatasync", noted)
    with store.writer("object") as writer:
        for _ in range(8):
            writer.write(b"x" * 500_000)
            time.sleep(0.01)  # a task that computes
    assert synced
    assert min(synced) < 4_000_000
    assert len(store.read("object")) == 4_000_000


# ---- crashes


@pytest.mark.crash
def test_a_killed_process_leaves_whole_objects_and_what_can_be_swept(store: LocalStore, root: Path) -> None:
    rng = random.Random(7)
    for _ in range(4):
        ready = multiprocessing.get_context("spawn").Event()
        process = processes.start(processes.create_without_end, store.url, ready)
        assert ready.wait(30)
        time.sleep(rng.uniform(0.0, 0.08))
        process.kill()
        process.join(10)
        for info in store.list("crash/"):
            if info.name == "crash/document":
                document = store.load(info.name)
                assert isinstance(document, Document)
                assert json.loads(document.body)["value"] >= 0
                store.remove(info.name, expected=document.etag)
            else:
                assert store.read(info.name) == b"".join(processes.content_of(info.name))
    left = [name for name in files(root) if "/.tmp-" in name]
    assert store.sweep_temporary(3600) == 0
    assert store.sweep_temporary(0) == len(left)
    assert not [name for name in files(root) if "/.tmp-" in name]


def test_a_writer_whose_file_was_swept_publishes_nothing(store: LocalStore, root: Path) -> None:
    def write_and_sweep() -> None:
        with store.writer("q/object") as writer:
            writer.write(b"x")
            assert store.sweep_temporary(0) == 1

    with pytest.raises(Unavailable, match="q/object"):
        write_and_sweep()
    assert files(root) == []


# ---- locks


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


# ---- disks that are full, or not for us


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


def test_a_full_disk_is_named_and_nothing_is_half_done(root: Path, store: LocalStore) -> None:
    with mounted(root, "size=1m"):
        writes_fail(store, root, r"No space left on device.*nothing half done.*free space")

        def fill() -> None:
            for i in range(1000):
                store.create(f"many/{i}", b"x" * 8000)

        with pytest.raises(Unavailable, match="free space"):
            fill()
        assert not [name for name in files(root) if ".tmp-" in name]
        assert store.delete("many/0")
        store.create("many/0", b"there is room again")


def test_a_file_size_limit_is_named_and_nothing_is_half_done(root: Path, store: LocalStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        writes_fail(store, root, r"File too large.*nothing half done.*ulimit -f")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_store_one_may_not_write_to_says_so(root: Path, store: LocalStore) -> None:
    store.create("q/a", b"x")
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # root may write everywhere but on a disk mounted read-only
            stack.enter_context(mounted(root, "size=1m,ro"))
        else:
            root.chmod(0o500)
            stack.callback(root.chmod, 0o700)
        fresh = LocalStore(str(root))
        with pytest.raises(Invalid, match=rf"{root}/other/b.*user id {os.geteuid()}"):
            fresh.create("other/b", b"y")
        with pytest.raises(Invalid, match=f"{root}/other/c"):
            fresh.swap("other/c", b"{}", expected=None)
        assert fresh.load("other/c") is None
