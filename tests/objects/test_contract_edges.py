"""What every store promises before the first write and at the edge: names, ranges, contents and URLs it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from partq_spark.base.errors import Conflict, Invalid, ObjectMissing, PartqError
from partq_spark.objects import ObjectStore
from partq_spark.objects.api import Clocked
from tests.objects.conftest import SMALL, write


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
