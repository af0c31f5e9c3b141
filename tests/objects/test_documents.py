"""What every store promises of documents: content comes back, swaps are on condition, bad contents are refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.objects import UNCHANGED, Document, ObjectStore
from tests.objects.conftest import LARGE


def body_of(store: ObjectStore, name: str) -> bytes:
    found = store.load(name)
    assert isinstance(found, Document)
    return found.body


BODIES = [
    b"{}",
    b"{ }",
    b'{"a":1}',
    b'{\n "a": 1\n}',
    '{"größe":"∞ \U0001f600"}'.encode(),
    b'{"etag":"00000000000000000000000000000000","x":[{}]}',
    b'{"metadata.etag":"x"}',
    b'{"filler":"' + b"x" * 200_000 + b'"}',
]


METADATA: list[dict[str, str]] = [
    {"offset": "12"},
    {"offset": "0", "epoch": "3", "flow": "a b/c", "redelivered_below": "7", "etag": "no", "metadata": "{}"},
    {"quoted": "\"\\',:{}[]", "ends": "~!"},
    {"long": "x" * 4000, "longer": "y" * 4000},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body[:24]))
def test_a_body_comes_back_byte_for_byte(store: ObjectStore, body: bytes) -> None:
    etag = store.swap("q/_head.json", body, expected=None)
    assert store.load("q/_head.json") == Document(etag=etag, body=body)
    assert store.load("q/_head.json", known=etag) is UNCHANGED
    again = store.swap("q/_head.json", body, expected=etag)
    assert store.load("q/_head.json", known=etag) == Document(etag=again, body=body)


@pytest.mark.parametrize("metadata", METADATA, ids=str)
def test_metadata_comes_back(store: ObjectStore, metadata: Mapping[str, str]) -> None:
    etag = store.swap("q/g/checkpoint/0", metadata, expected=None)
    assert store.load("q/g/checkpoint/0") == Document(etag=etag, metadata=metadata)
    assert store.load("q/g/checkpoint/0", known=etag) is UNCHANGED
    again = store.swap("q/g/checkpoint/0", {"offset": "13"}, expected=etag)
    assert store.load("q/g/checkpoint/0", known=etag) == Document(etag=again, metadata={"offset": "13"})


def test_a_document_may_change_its_kind(store: ObjectStore) -> None:
    first = store.swap("d", b'{"a":1}', expected=None)
    second = store.swap("d", {"a": "2"}, expected=first)
    assert store.load("d") == Document(etag=second, metadata={"a": "2"})
    third = store.swap("d", b'{"a":3}', expected=second)
    assert store.load("d") == Document(etag=third, body=b'{"a":3}')


def test_a_swap_on_a_stale_etag_changes_nothing(store: ObjectStore) -> None:
    first = store.swap("d", b'{"n":1}', expected=None)
    second = store.swap("d", b'{"n":2}', expected=first)
    with pytest.raises(Conflict, match="d"):
        store.swap("d", b'{"n":3}', expected=first)
    with pytest.raises(Conflict):
        store.remove("d", expected=first)
    assert store.load("d") == Document(etag=second, body=b'{"n":2}')


def test_an_old_content_written_again_does_not_look_unchanged(store: ObjectStore) -> None:
    a = store.swap("d", b'{"n":"a"}', expected=None)
    b = store.swap("d", b'{"n":"b"}', expected=a)
    a_again = store.swap("d", b'{"n":"a"}', expected=b)
    assert len({a, b, a_again}) == 3
    assert isinstance(store.load("d", known=a), Document)
    with pytest.raises(Conflict):
        store.swap("d", b'{"n":"c"}', expected=a)
    store.remove("d", expected=a_again)
    assert store.swap("d", b'{"n":"a"}', expected=None) not in {a, b, a_again}


def test_a_document_is_created_once(store: ObjectStore) -> None:
    store.swap("d", b'{"n":1}', expected=None)
    with pytest.raises(Conflict, match="d"):
        store.swap("d", b'{"n":2}', expected=None)
    assert body_of(store, "d") == b'{"n":1}'


def test_a_document_that_is_gone_cannot_be_swapped_or_removed(store: ObjectStore) -> None:
    etag = store.swap("q/d", b'{"n":1}', expected=None)
    store.remove("q/d", expected=etag)
    assert store.load("q/d") is None
    assert store.load("q/d", known=etag) is None
    for name in ("q/d", "q/never", "elsewhere/never"):
        with pytest.raises(Conflict, match=name):
            store.swap(name, b'{"n":2}', expected=etag)
        with pytest.raises(Conflict, match=name):
            store.remove(name, expected=etag)
    assert list(store.list("")) == []


@pytest.mark.parametrize("data", [b"", b"ARROW1\0\0", b'{"json":"but no document"}', LARGE], ids=len)
def test_an_immutable_object_is_no_document(store: ObjectStore, data: bytes) -> None:
    store.create("q/thing", data)
    with pytest.raises(Corrupt, match=r"q/thing.*restore|q/thing.*remove"):
        store.load("q/thing")


def test_immutable_objects_and_documents_share_their_names(store: ObjectStore) -> None:
    etag = store.swap("d", b'{"n":1}', expected=None)
    with pytest.raises(Conflict):
        store.create("d", b"x")
    store.create("o", b"x")
    with pytest.raises(Conflict):
        store.swap("o", b'{"n":1}', expected=None)
    assert store.load("d", known=etag) is UNCHANGED
    assert bytes(store.read("o")) == b"x"


BAD_CONTENTS: list[bytes | dict[str, str]] = [
    b"", b"[]", b'"text"', b'{"a":1', b'{"a":1}\n', b' {"a":1}', {}, {"": "x"}, {"A": "x"}, {"a.b": "x"}, {"a1": "x"},
    {"a": ""}, {"a": " x"}, {"a": "x "}, {"a": "ä"}, {"a": "x\ny"}, {"a": "x\n"}, {"a": "\t"}, {"a": "x" * 8192},
]  # fmt: skip


@pytest.mark.parametrize("content", BAD_CONTENTS, ids=lambda content: ascii(content)[:24])
def test_bad_contents_are_refused_before_anything_is_written(
    store: ObjectStore, content: bytes | dict[str, str]
) -> None:
    with pytest.raises(Invalid, match="d"):
        store.swap("d", content, expected=None)
    assert store.load("d") is None
