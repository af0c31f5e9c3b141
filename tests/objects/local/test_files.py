"""What the local store has on the disk: files that a person can read, and damage that is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.objects import UNCHANGED
from partq_spark.objects.local import LocalStore
from tests.objects.conftest import LARGE, SMALL


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
