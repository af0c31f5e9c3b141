"""Disks that are full, or not for us: every kind of write says so and leaves nothing half done."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_files import explain
from tests.objects.conftest import write
from tests.objects.local.conftest import files


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
        with pytest.raises(Invalid, match=rf"{root}/other/b.*user id {os.geteuid()} write there"):
            fresh.create("other/b", b"y")
        with pytest.raises(Invalid, match=f"{root}/other/c"):
            fresh.swap("other/c", b"{}", expected=None)
        assert fresh.load("other/c") is None


@pytest.mark.parametrize(("doing", "act"), [("reading", "read"), ("listing", "read"), ("replacing", "write")])
def test_a_refusal_asks_for_the_right_that_was_missing(doing: str, act: str) -> None:
    """Not by a store: root, who runs many tests, may read everything."""
    said = str(explain(PermissionError(errno.EACCES, "Permission denied"), doing, "/store/a"))
    assert f"let user id {os.geteuid()} {act} there" in said
