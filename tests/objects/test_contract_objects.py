"""What every store promises of immutable objects: created once, whole or not at all, read by ranges."""

from __future__ import annotations

import threading

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing
from partq_spark.objects import ObjectStore
from tests.objects.conftest import LARGE, SMALL, write


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
