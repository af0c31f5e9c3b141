"""What the local store has on the disk: files that a person can read, and damage that is told. What others put there is
left alone, hides nothing, stops nothing, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.objects import UNCHANGED, Document
from partq_spark.objects.local import LocalStore
from tests.objects.conftest import LARGE, SMALL
from tests.objects.local.conftest import unprivileged


def test_documents_are_json_that_a_person_can_read(store: LocalStore, root: Path) -> None:
    body = store.swap("q/_head.json", b'{"format":1}', expected=None)
    assert json.loads((root / "q/_head.json").read_text()) == {"etag": body, "format": 1}
    metadata = store.swap("q/g/checkpoint/0", {"offset": "12", "etag": "mine"}, expected=None)
    seen = json.loads((root / "q/g/checkpoint/0").read_text())
    assert seen == {"metadata.etag": metadata, "offset": "12", "etag": "mine"}
    empty = store.swap("q/empty", b"{}", expected=None)
    assert json.loads((root / "q/empty").read_text()) == {"etag": empty}


def test_an_idle_look_reads_only_the_etag(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, read = os.pread, list[int]()
    contents: list[bytes | dict[str, str]] = [b'{"x":"' + b"x" * 500_000 + b'"}', {"x": "y" * 8000}]
    etags = [store.swap(f"d{i}", content, expected=None) for i, content in enumerate(contents)]

    def noted(fd: int, size_bytes: int, offset: int) -> bytes:
        read.append(size_bytes)
        return pread(fd, size_bytes, offset)

    monkeypatch.setattr(os, "pread", noted)
    assert [store.load(f"d{i}", known=etag) for i, etag in enumerate(etags)] == [UNCHANGED] * 2
    assert read == [64] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"\0" * len(data),
        lambda data: b"{" + data,
        lambda data: data.replace(b"etag", b"gate"),
        lambda data: data.replace(b'"b"}', b"123}" if b"metadata" in data else b""),  # no text; no end
    ],
)
@pytest.mark.parametrize("content", [b'{"a":"b"}', {"a": "b"}], ids=["body", "metadata"])
def test_a_damaged_document_is_corrupt_and_named_and_hides_no_other_in_a_listing(
    store: LocalStore, root: Path, content: bytes | dict[str, str], damage: Callable[[bytes], bytes]
) -> None:
    for name in ("a", "z"):
        store.swap(f"q/{name}", {"offset": name}, expected=None)
    etag = store.swap("q/d", content, expected=None)
    path = root / "q/d"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Corrupt, match=r"store/q/d.*restore"):
        store.load("q/d")
    if len(path.read_bytes()) < 45:
        with pytest.raises(Corrupt, match="store/q/d"):
            store.swap("q/d", b"{}", expected=etag)
    assert [dict(info.metadata) for info in store.list("q/", values=True)] == [{"offset": "a"}, {}, {"offset": "z"}]


@pytest.mark.crash
def test_an_object_that_is_cut_while_somebody_has_it_ends_no_process(store: LocalStore, root: Path) -> None:
    store.create("o", LARGE)
    child = os.fork()
    if child == 0:  # a mapped page that is gone ends the process by SIGBUS
        held = store.read("o", start=4096)
        os.truncate(root / "o", 10)
        os._exit(0 if bytes(held) == LARGE[4096:] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_an_object_that_is_cut_after_the_look_at_its_length_is_corrupt(
    store: LocalStore, root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("q/o", content)
    fstat = os.fstat

    def cut_after(fd: int) -> os.stat_result:
        status = fstat(fd)
        os.truncate(root / "q/o", len(content) - 1)
        return status

    monkeypatch.setattr(os, "fstat", cut_after)
    with pytest.raises(Corrupt, match=r"store/q/o is cut short.*restore"):
        store.read("q/o")


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


# --- what others put there --------------------------------------------------------------------------------------------


# ---- names that no object has


def test_a_name_that_no_object_can_have_is_not_listed(store: LocalStore, root: Path) -> None:
    store.create("q/a", b"x")
    deep = "/".join(["d" * 190] * 6)  # a longer name than any object has
    for foreign in ("Copy of a", "größe", "lost+found", "a~", "#a#", "x" * 201, ".tmp-left", ".trash", deep):
        for folder in (root / "q", root / foreign / "below"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / foreign.replace("/", "-")[:202]).write_bytes(b"somebody else's")
    (root / "loop").symlink_to("loop")
    assert list(store.list_folders("")) == ["q"]
    assert [info.name for info in store.list("")] == ["q/a"]
    store.delete("q/a")
    assert list(store.list("")) == []


# ---- folders that may not be entered


def test_what_may_not_be_entered_or_removed_stops_no_sweep(
    open_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    root = open_folder / "store"
    with unprivileged(), caplog.at_level(logging.WARNING, logger="partq.objects"):
        store = LocalStore(str(root))
        (root / "lost+found").mkdir(parents=True)
        for name in ("a", "private", "z"):
            store.create(f"{name}/x", b"x")
        for folder in root.iterdir():
            (folder / ".tmp-left").write_bytes(b"of a writer that died")
        for name in ("lost+found", "private"):
            (root / name).chmod(0)
        assert store.sweep_temporary(0) == 2
        assert not [*root.glob("[az]/.tmp-left")]
        assert [record.getMessage().split(" was ")[0] for record in caplog.records] == [str(root / "private")], (
            "only what could be ours is worth a word"
        )
        assert list(store.list_folders("")) == ["a", "private", "z"]
        (root / "private").chmod(0o600)
        with pytest.raises(Invalid, match=r"private/x failed: Permission denied"):
            list(store.list(""))
        monkeypatch.setattr(os, "unlink", read_only)
        assert store.sweep_temporary(0) == 0
        for name in ("lost+found", "private"):
            (root / name).chmod(0o700)


# ---- what is no regular file


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # its path has about 100 bytes
        made.bind(path.name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, _socket, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_told_unread(store: LocalStore, root: Path, make: Callable[[Path], None]) -> None:
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
    listed = [(info.name, dict(info.metadata)) for info in store.list("q/", values=True)]
    assert listed == [("q/d", {}), ("q/other", {})]
    store.delete("q/d")
    assert isinstance(store.load("q/other"), Document)
