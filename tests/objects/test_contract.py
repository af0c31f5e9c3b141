"""What every object store promises, asked of every one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest

from partq_spark.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError
from partq_spark.objects import UNCHANGED, Document, ObjectStore
from tests.objects.conftest import write

SMALL = bytes(range(256)) * 4
LARGE = bytes(range(251)) * 1000  # far over what the local store copies instead of mapping


def body_of(store: ObjectStore, name: str) -> bytes:
    found = store.load(name)
    assert isinstance(found, Document)
    return found.body


# ---- immutable objects


@pytest.mark.parametrize("data", [SMALL, memoryview(LARGE)[1:], b"", bytearray(b"abc")], ids=len)
def test_what_is_created_is_read_back(store: ObjectStore, data: bytes) -> None:
    store.create("q/_segments/0001.arrow", data)
    assert bytes(store.read("q/_segments/0001.arrow")) == bytes(data)


def test_a_name_is_created_once_and_keeps_its_first_content(store: ObjectStore) -> None:
    store.create("a", b"first")
    with pytest.raises(Conflict, match="a"):
        store.create("a", b"second")
    with pytest.raises(Conflict):
        write(store, "a", b"third")
    assert bytes(store.read("a")) == b"first"


def test_a_writer_takes_pieces_and_its_object_appears_at_the_end(store: ObjectStore) -> None:
    pieces: list[bytes | memoryview] = [b"", SMALL, memoryview(LARGE)[5:70_000], b"end"]
    with store.writer("q/piecewise") as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)
        assert list(store.list("")) == []
    assert bytes(store.read("q/piecewise")) == b"".join(bytes(piece) for piece in pieces)


def test_a_writer_takes_more_than_it_may_hold_in_memory(store: ObjectStore) -> None:
    piece = LARGE * 12  # 3 MB, so that blocks of 8 MiB end within pieces
    write(store, "q/large", *[piece] * 15)
    assert store.read("q/large") == piece * 15


def test_a_writer_that_meets_an_exception_leaves_nothing(store: ObjectStore) -> None:
    def fail_half_way() -> None:
        with store.writer("q/half") as writer:
            writer.write(LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert list(store.list("")) == []
    store.create("q/half", b"now")


def test_a_writer_is_used_inside_its_block(store: ObjectStore) -> None:
    writer = store.writer("a")
    with pytest.raises(Invalid, match="with"):
        writer.write(b"x")


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, None),
        (0, 0),
        (0, 1),
        (7, 11),
        (4097, 100_001),
        (1, None),
        (len(LARGE) - 1, 1),
        (len(LARGE) - 1, None),
        (len(LARGE), 0),
        (len(LARGE), None),
    ],
)
def test_a_range_gives_exactly_its_bytes(store: ObjectStore, start: int, length: int | None) -> None:
    store.create("a", LARGE)
    end = len(LARGE) if length is None else start + length
    view = store.read("a", start=start, length=length)
    assert isinstance(view, memoryview)
    assert bytes(view) == LARGE[start:end]


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1025), (1023, 2), (1024, 1), (1025, 0), (1025, None), (5000, 10), (0, 100_000)]
)
def test_a_range_beyond_the_end_is_corrupt_and_names_the_object(
    store: ObjectStore, start: int, length: int | None
) -> None:
    store.create("q/cut-short", SMALL)
    with pytest.raises(Corrupt, match=r"q/cut-short.*1024 bytes") as caught:
        store.read("q/cut-short", start=start, length=length)
    assert not isinstance(caught.value, ObjectMissing)


def test_an_object_that_is_not_there_is_missing(store: ObjectStore) -> None:
    store.create("q/here", b"x")
    for name in ("q/nowhere", "q", "other/nowhere"):
        for length in (None, 0, 10):
            with pytest.raises(ObjectMissing, match=name):
                store.read(name, length=length)


def test_a_view_outlives_its_object(store: ObjectStore) -> None:
    store.create("a", LARGE)
    view = store.read("a")
    assert store.delete("a")
    store.create("a", b"something else")
    assert view == LARGE


def test_of_many_creators_one_wins(store: ObjectStore) -> None:
    results: list[str] = []
    barrier = threading.Barrier(8)

    def race(mine: int) -> None:
        barrier.wait(10)
        try:
            store.create("contested", str(mine).encode())
            results.append(f"won {mine}")
        except Conflict:
            results.append("lost")

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    won = [result for result in results if result != "lost"]
    assert len(results) == 8
    assert won == [f"won {bytes(store.read('contested')).decode()}"]


# ---- documents

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


# ---- deletion


def test_deleting_is_repeatable(store: ObjectStore) -> None:
    store.create("q/a", b"x")
    store.swap("q/d", b'{"n":1}', expected=None)
    store.swap("q/m", {"n": "1"}, expected=None)
    for name in ("q/a", "q/d", "q/m"):
        assert store.delete(name)
        assert not store.delete(name)
    assert not store.delete("q")
    assert not store.delete("never/was")
    assert list(store.list("")) == []


# ---- listing


def test_a_listing_goes_over_all_pages_in_order(store: ObjectStore) -> None:
    names = sorted(f"q/_segments/{i:04}" for i in range(23))
    for name in reversed(names):
        store.create(name, name.encode())
    found = list(store.list("q/_segments/"))
    assert [info.name for info in found] == names
    assert {info.size_bytes for info in found} == {len("q/_segments/0000")}
    assert all(0 <= info.age_s < 60 for info in found)
    assert [info.name for info in store.list("q/_segments/002")] == names[20:]


def test_names_are_ordered_as_whole_texts(store: ObjectStore) -> None:
    names = ["a-b", "a-b.c", "a/b", "a/b-c", "a/b.d/e", "a/b_/e", "a0", "a=1", "A", "Z/z", "_x", "b/c/d/e/f"]
    for name in names:
        store.create(name, b"")
    assert [info.name for info in store.list("")] == sorted(names)
    for prefix in ("a", "a/", "a/b", "a-", "b/c/", "b/c/d/e/f", "nothing", "a/b/c"):
        expected = sorted(name for name in names if name.startswith(prefix))
        assert [info.name for info in store.list(prefix)] == expected


def test_a_listing_shows_the_metadata_of_metadata_documents_only(store: ObjectStore) -> None:
    for i in range(9):
        store.swap(f"q/g/checkpoint/{i}", {"offset": str(i), "flow": "f"}, expected=None)
    store.create("q/g/checkpoint/object", b"")
    store.swap("q/g/checkpoint/document", b'{"offset":"1"}', expected=None)
    found = {info.name.rpartition("/")[2]: info.metadata for info in store.list("q/g/checkpoint/")}
    assert found == {
        **{str(i): {"offset": str(i), "flow": "f"} for i in range(9)},
        "object": {},
        "document": {},
    }


def test_objects_may_go_while_they_are_listed(store: ObjectStore) -> None:
    names = [f"q/{i:02}" for i in range(20)]
    for name in names:
        store.create(name, b"x")
    seen = []
    for info in store.list("q/"):
        seen.append(info.name)
        store.delete(info.name)
    assert seen == names
    assert list(store.list("q/")) == []


def test_folders_are_listed_once_each_and_only_while_they_hold_objects(store: ObjectStore) -> None:
    for name in ("ns/b/_head.json", "ns/a/x/y", "ns/a/x/z", "ns/a-b/x", "ns/plain", "other/q/x", "top"):
        store.create(name, b"")
    assert list(store.list_folders("")) == ["ns", "other"]
    assert list(store.list_folders("ns/")) == ["a-b", "a", "b"]
    assert list(store.list_folders("ns/a/")) == ["x"]
    assert list(store.list_folders("ns/a/x/")) == []
    assert list(store.list_folders("nowhere/")) == []
    store.delete("other/q/x")
    assert list(store.list_folders("")) == ["ns"]


# ---- before the first write, and at the edge


def test_a_store_that_nobody_wrote_to_is_empty(store: ObjectStore) -> None:
    assert store.load("q/_head.json") is None
    assert store.load("q/_head.json", known="x") is None
    assert list(store.list("")) == []
    assert list(store.list_folders("")) == []
    assert not store.delete("q/x")
    assert store.sweep_temporary(0) == 0
    with pytest.raises(ObjectMissing):
        store.read("q/x")
    with pytest.raises(Conflict):
        store.remove("q/x", expected="x")
    with pytest.raises(Conflict):
        store.swap("q/x", b"{}", expected="x")


BAD_NAMES = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", ".hidden", "a/.tmp-1", "a b", "a\\b", "ä", "a\nb", "a\n",
    "a\0b", "a%2e", "a?b", "a:b", "x" * 201, "a/" * 400 + "a", "a" * 200 + "/" + "b" * 201,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:20]))
def test_every_call_refuses_a_bad_name(store: ObjectStore, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.create(name, b"x"),
        lambda: store.writer(name),
        lambda: store.read(name),
        lambda: store.load(name),
        lambda: store.swap(name, b"{}", expected=None),
        lambda: store.swap(name, b"{}", expected="x"),
        lambda: store.remove(name, expected="x"),
        lambda: store.delete(name),
    ]
    if name and not name.endswith("/"):
        calls.append(lambda: store.list(name))
        calls.append(lambda: store.list_folders(name + "/"))
    for call in calls:
        with pytest.raises(Invalid):
            call()


def test_long_names_are_taken(store: ObjectStore) -> None:
    name = "/".join(["x" * 199] * 4)
    store.create(name, b"x")
    assert [info.name for info in store.list("x")] == [name]


@pytest.mark.parametrize("prefix", ["a", "a/b", "/", "a//"])
def test_folders_are_listed_below_folders_only(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(Invalid):
        store.list_folders(prefix)


@pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1), (-5, 3)])
def test_negative_ranges_are_refused(store: ObjectStore, start: int, length: int | None) -> None:
    store.create("a", SMALL)
    with pytest.raises(Invalid):
        store.read("a", start=start, length=length)


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


def test_a_url_opens_no_secret(store: ObjectStore) -> None:
    assert store.url in repr(store)
    assert store.look_interval_s > 0


def test_messages_name_what_they_are_about(store: ObjectStore) -> None:
    def message(call: Callable[[], object]) -> str:
        with pytest.raises(PartqError) as caught:
            call()
        return str(caught.value)

    store.create("q/taken", b"x")
    assert "q/taken" in message(lambda: store.create("q/taken", b"y"))
    assert "q/gone" in message(lambda: store.read("q/gone"))
    assert "q/gone" in message(lambda: store.remove("q/gone", expected="x"))
    assert "q/taken" in message(lambda: store.swap("q/taken", b"{}", expected=None))
