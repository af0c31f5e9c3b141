"""What others put into a store's directory: it is left alone, hides nothing, stops nothing, and nobody waits for it."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.base.errors import Conflict, Corrupt
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore

NOBODY = 65534


FOREIGN = ("Copy of a", "größe", "lost+found", "a~", "#a#", "x" * 201)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights may enter, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="partq-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """As root may read everything: another user for the length of a test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# ---- names that no object has


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_name_that_no_object_can_have_is_not_listed(store: LocalStore, root: Path, foreign: str) -> None:
    store.create("q/a", b"x")
    (root / "q" / foreign).write_bytes(b"somebody else's")
    (root / foreign / "below").mkdir(parents=True)
    (root / foreign / "below" / "b").write_bytes(b"somebody else's")
    assert [info.name for info in store.list("")] == ["q/a"]
    assert list(store.list_folders("")) == ["q"]


def test_what_is_listed_can_be_deleted(store: LocalStore, root: Path) -> None:
    deep = root / "/".join(["d" * 190] * 6)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"a longer name than any object has")
    store.create("q/a", b"x")
    assert [store.delete(info.name) for info in store.list("")] == [True]


def test_a_link_to_itself_hides_nothing(store: LocalStore, root: Path) -> None:
    store.create("q/a", b"x")
    (root / "loop").symlink_to("loop")
    assert [info.name for info in store.list("")] == ["q/a"]
    assert list(store.list_folders("")) == ["q"]


# ---- folders that may not be entered


def test_a_folder_that_may_not_be_entered_stops_no_sweep(
    open_folder: Path, unprivileged: None, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(str(open_folder / "store"))
    for name in ("a/x", "private/x", "z/x"):
        store.create(name, b"x")
    left = [open_folder / "store" / folder / ".tmp-left" for folder in ("a", "lost+found", "private", "z")]
    (open_folder / "store/lost+found").mkdir()
    for path in left:
        path.write_bytes(b"of a writer that died")
    for folder in ("lost+found", "private"):
        (open_folder / "store" / folder).chmod(0)
    try:
        with caplog.at_level(logging.WARNING, logger="partq.objects"):
            assert store.sweep_temporary(0) == 2
        assert [path.exists() for path in (left[0], left[3])] == [False, False]
        assert [record.getMessage().split(" was ")[0] for record in caplog.records] == [
            str(open_folder / "store/private")
        ], "only what could be ours is worth a word"
        assert list(store.list_folders("")) == ["a", "private", "z"]
    finally:
        for folder in ("lost+found", "private"):
            (open_folder / "store" / folder).chmod(0o700)


# ---- what is no regular file


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has about 100 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [_pipe, _socket, _device])
def test_what_is_no_regular_file_is_told_and_not_waited_for(
    store: LocalStore, root: Path, make: Callable[[Path], None]
) -> None:
    etag = store.swap("q/other", b"{}", expected=None)
    path = root / "q/d"
    make(path)
    calls: list[Callable[[], object]] = [
        lambda: store.load("q/d"),
        lambda: store.load("q/d", known=etag),
        lambda: store.read("q/d"),
        lambda: store.read("q/d", start=0, length=10),
        lambda: store.swap("q/d", b"{}", expected=etag),
        lambda: store.remove("q/d", expected=etag),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(Corrupt, match=r"q/d.*(remove|restore)"):
            assert call() is None, number
    with pytest.raises((Conflict, Corrupt), match=r"q/d (exists already|is no regular file)"):
        store.swap("q/d", b"{}", expected=None)
    with pytest.raises(Conflict, match="q/d exists already"):
        store.create("q/d", b"x")
    assert [(info.name, dict(info.metadata)) for info in store.list("q/")] == [("q/d", {}), ("q/other", {})]
    assert store.delete("q/d")
    assert isinstance(store.load("q/other"), Document)


# ---- one that is damaged


def test_one_damaged_document_hides_no_other_in_a_listing(store: LocalStore, root: Path) -> None:
    for number in range(3):
        store.swap(f"q/{number}", {"offset": str(number)}, expected=None)
    path = root / "q/1"
    path.write_bytes(path.read_bytes()[:-2])
    assert [dict(info.metadata) for info in store.list("q/")] == [{"offset": "0"}, {}, {"offset": "2"}]
    with pytest.raises(Corrupt, match="q/1"):
        store.load("q/1")
