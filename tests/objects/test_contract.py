"""What every store promises of immutable objects, of listings and at the edge: names, ranges and URLs it refuses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing
from partq_spark.objects import Document, ObjectStore
from partq_spark.objects.api import Clocked
from tests.objects import conftest as processes
from tests.objects.conftest import LARGE, SMALL, write

# --- immutable objects ------------------------------------------------------------------------------------------------


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


# --- at the edge ------------------------------------------------------------------------------------------------------


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


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_stores_clock_is_near_this_machines_once_it_was_heard(store: ObjectStore) -> None:
    assert isinstance(store, Clocked)
    for _ in store.list(""):
        pass
    store.load("nothing")
    told_us = store.time_us()
    assert told_us is not None
    assert abs(told_us - time.time_ns() // 1000) < 5_000_000
    write(store, "a", b"x")
    (found,) = store.list("a")
    assert 0 <= found.age_s < 60


def test_the_ends_of_what_may_be_asked_for(store: ObjectStore) -> None:
    name = "/".join(["x" * 199] * 4)
    store.create(name, SMALL)
    assert [info.name for info in store.list("x")] == [name]
    for prefix in ("a", "a/b", "/", "a//"):
        with pytest.raises(Invalid):
            store.list_folders(prefix)
    for start, length in ((-1, None), (0, -1), (-5, 3)):
        with pytest.raises(Invalid):
            store.read(name, start=start, length=length)
    for gone in ("q/nowhere", "x" * 199, "other/nowhere"):
        for wanted in (None, 0, 10):
            with pytest.raises(ObjectMissing, match=gone):
                store.read(gone, length=wanted)
    with pytest.raises(Conflict, match=name):
        store.create(name, b"y")
    assert store.url in repr(store)
    assert store.look_interval_s > 0


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_that_swap_one_counter_lose_no_update(shared_url: str, shared_store: ObjectStore) -> None:
    processes.run_together(processes.increment, [(shared_url, "q/_head.json", 25)] * 4)
    found = shared_store.load("q/_head.json")
    assert isinstance(found, Document)
    assert json.loads(found.body) == {"value": 100}
    assert [info.name for info in shared_store.list("")] == ["q/_head.json"]
