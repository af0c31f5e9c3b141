"""What every store promises: it is a map from names to objects that are written once and documents that are swapped on
condition; what is written comes back; names, ranges and contents that are not allowed are refused at the edge.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError
from partq_spark.objects import UNCHANGED, Document, ObjectStore, open_store
from tests.objects.conftest import LARGE, SMALL, write
from tests.support.properties import examples

# --- a map ------------------------------------------------------------------------------------------------------------


NAMES = ["a-b", "a-b.c/x", "a/b", "a/b-c", "a/b_/e", "a0", "a=1", "A", "Z/z", "_x", "b/c/d/e/f"]
CONTENTS: list[bytes | Mapping[str, str]] = [
    b'{"n":"a"}',
    b'{\n "a": 1\n}',
    '{"größe":"∞ \U0001f600"}'.encode(),
    b'{"etag":"00000000000000000000000000000000","x":[{}]}',
    b'{"metadata.etag":"x"}',
    b'{"filler":"' + b"x" * 200_000 + b'"}',
    b"{ }",
    {"n": "b", "etag": "mine", "metadata": "{}"},
    {"quoted": "\"\\',:{}[]", "ends": "~!"},
    {"long": "x" * 4000, "longer": "y" * 4000},
]
LARGER: list[bytes | memoryview] = [SMALL, memoryview(LARGE)[1:]]
PIECES = st.binary(max_size=20) | st.sampled_from(LARGER)
RUNS = itertools.count()


def outcome(act: Callable[[], object]) -> object:
    """What comes of it, or the kind of its refusal."""
    try:
        return act()
    except PartqError as error:
        return type(error)


@examples(20, suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow))
@given(data=st.data())
def test_a_store_is_a_map_whose_documents_are_swapped_on_condition(store: ObjectStore, data: st.DataObject) -> None:
    folder, there, etags = f"run{next(RUNS)}/", dict[str, bytes | Document](), ["none"]
    few = st.sampled_from(NAMES[: data.draw(st.sampled_from([1, 3, len(NAMES)]))])
    for _ in range(data.draw(st.integers(1, 25))):
        name, found = (drawn := data.draw(few)), there.get(drawn)
        place, etag = folder + name, found.etag if isinstance(found, Document) else None
        expected = data.draw(st.sampled_from([None, etag, etag, *etags[-3:]]))
        piece, content = data.draw(PIECES), data.draw(st.sampled_from(CONTENTS))
        match data.draw(st.sampled_from(["create", "write", "swap", "swap", "swap", "remove", "delete"])):
            case "create":
                assert outcome(lambda: store.create(place, piece)) is (None if found is None else Conflict)  # noqa: B023
                there.setdefault(name, bytes(piece))
            case "write":
                assert outcome(lambda: write(store, place, piece)) is (None if found is None else Conflict)  # noqa: B023
                there.setdefault(name, bytes(piece))
            case "swap" if expected == etag and not isinstance(found, bytes):
                made = store.swap(place, content, expected=expected)
                assert made not in etags, "also where an old content is written again"
                etags.append(made)
                is_body = isinstance(content, bytes)
                there[name] = Document(etag=made, body=content) if is_body else Document(etag=made, metadata=content)  # type: ignore[arg-type]
            case "remove" if expected == etag is not None:
                store.remove(place, expected=etag)
                del there[name]
            case "delete":
                store.delete(place)
                there.pop(name, None)
            case refused:
                swap = lambda: store.swap(place, content, expected=expected)  # noqa: B023, E731
                remove = lambda: store.remove(place, expected=expected or "none")  # noqa: B023, E731
                told = outcome(swap if refused == "swap" else remove)
                assert told is Conflict or (told is Corrupt and isinstance(found, bytes))
    look(store, folder, there, known=data.draw(st.sampled_from(etags)))


def look(store: ObjectStore, folder: str, there: Mapping[str, bytes | Document], *, known: str) -> None:
    """At all that can be seen: it is what is `there`."""
    for name in NAMES:
        found = there.get(name)
        if isinstance(found, bytes):
            assert bytes(store.read(folder + name)) == found
            assert outcome(lambda: store.load(folder + name)) is Corrupt  # noqa: B023
        else:
            assert store.load(folder + name) == found
            for etag in {known, *([] if found is None else [found.etag])}:
                same = found is not None and etag == found.etag
                assert store.load(folder + name, known=etag) == (UNCHANGED if same else found)
    for prefix in ("", "a", "a/", "a/b", "a-", "b/c/", "b/c/d/e/f", "nothing", "a/b/c"):
        mine = sorted((name, found) for name, found in there.items() if name.startswith(prefix))
        listed = [(info.name, info.metadata) for info in store.list(folder + prefix, values=True)]
        assert listed == [(folder + name, getattr(found, "metadata", {})) for name, found in mine]
    for prefix in ("", "a/", "b/c/", "nowhere/"):
        below = [name.removeprefix(prefix) for name in there if name.startswith(prefix)]
        # Ordered with the slash that follows them.
        folders = sorted({name.split("/")[0] + "/" for name in below if "/" in name})
        assert [each + "/" for each in store.list_folders(folder + prefix)] == folders


# --- what is written comes back ---------------------------------------------------------------------------------------


def test_a_writer_takes_more_than_it_may_hold_in_memory_and_its_object_appears_at_the_end(store: ObjectStore) -> None:
    pieces: list[bytes | memoryview] = [b"", SMALL, memoryview(LARGE)[5:70_000], *[LARGE * 12] * 15]
    with store.writer("q/piecewise") as writer:  # blocks of 8 MiB end within pieces
        for piece in pieces:
            assert writer.write(piece) == len(piece)
        assert list(store.list("")) == []
    assert store.read("q/piecewise") == b"".join(pieces)


def test_a_writer_leaves_nothing_where_an_exception_ends_it(store: ObjectStore) -> None:
    def fail_half_way() -> None:
        with store.writer("q/half") as writer:
            writer.write(LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert list(store.list("")) == []
    store.create("q/half", b"now")


EDGES = (0, 1, 7, 4097, 100_001, len(LARGE) - 1, len(LARGE), len(LARGE) + 1, 5 * len(LARGE))


def test_a_range_gives_exactly_its_bytes_or_is_refused_with_the_object(store: ObjectStore) -> None:
    store.create("q/o", LARGE)
    for start, length in itertools.product(EDGES, (None, *EDGES)):
        end = len(LARGE) if length is None else start + length
        if start <= end <= len(LARGE):
            view = store.read("q/o", start=start, length=length)
            assert isinstance(view, memoryview)
            assert view == LARGE[start:end]
        else:
            with pytest.raises(Corrupt, match=rf"q/o.*{len(LARGE)} bytes") as caught:
                store.read("q/o", start=start, length=length)
            assert not isinstance(caught.value, ObjectMissing)
    for start, length in ((-1, None), (0, -1), (-5, 3)):
        assert outcome(lambda: store.read("q/o", start=start, length=length)) is Invalid  # noqa: B023


def test_of_many_creators_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(8)

    def race(mine: bytes) -> object:
        barrier.wait(10)
        return outcome(lambda: store.create("contested", mine))

    names = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        told = dict(zip(names, pool.map(race, names), strict=True))
    assert told == {name: None if name == store.read("contested") else Conflict for name in names}


def test_a_listing_goes_over_all_pages_in_order_also_where_objects_go_meanwhile(store: ObjectStore) -> None:
    names = sorted(f"q/_segments/{i:04}" for i in range(23))
    for name in reversed(names):
        store.create(name, name.encode())
    assert [info.name for info in store.list("q/_segments/002")] == names[20:]
    seen = []
    for info in store.list("q/_segments/"):
        assert info.size_bytes == len(info.name)
        assert 0 <= info.age_s < 60
        seen.append(info.name)
        store.delete(info.name)
    assert seen == names
    assert list(store.list("q/")) == []
    assert list(store.list_folders("")) == [], "only while they hold objects"


# --- at the edge ------------------------------------------------------------------------------------------------------


def test_a_store_that_nobody_wrote_to_is_empty(store: ObjectStore) -> None:
    assert store.load("q/_head.json") is None
    assert store.load("q/_head.json", known="x") is None
    assert list(store.list("")) == []
    assert list(store.list_folders("")) == []
    store.delete("q/x")
    assert store.sweep_temporary(0) == 0
    for length in (None, 0, 10):
        with pytest.raises(ObjectMissing, match="q/x"):
            store.read("q/x", length=length)
    with pytest.raises(Conflict, match="q/x"):
        store.remove("q/x", expected="x")
    with pytest.raises(Conflict, match="q/x"):
        store.swap("q/x", b"{}", expected="x")


BAD_NAMES = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", ".hidden", "a/.tmp-1", "a b", "a\\b", "ä", "a\nb", "a\n",
    "a\0b", "a%2e", "a?b", "a:b", "x" * 201, "a/" * 400 + "a", "a" * 200 + "/" + "b" * 201,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:20]))
def test_every_call_refuses_a_bad_name(store: ObjectStore, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.create(name, b"x"),
        lambda: write(store, name),
        lambda: store.read(name),
        lambda: store.load(name),
        lambda: store.swap(name, b"{}", expected=None),
        lambda: store.swap(name, b"{}", expected="x"),
        lambda: store.remove(name, expected="x"),
        lambda: store.delete(name),
    ]
    if name and not name.endswith("/"):
        calls += [lambda: store.list(name), lambda: store.list_folders(name + "/"), lambda: store.list_folders(name)]
    assert [outcome(call) for call in calls] == [Invalid] * len(calls)


BAD_CONTENTS: list[bytes | dict[str, str]] = [
    b"", b"[]", b'"text"', b'{"a":1', b'{"a":1}\n', b' {"a":1}', {}, {"": "x"}, {"A": "x"}, {"a.b": "x"}, {"a1": "x"},
    {"a": ""}, {"a": " x"}, {"a": "x "}, {"a": "ä"}, {"a": "x\ny"}, {"a": "x\n"}, {"a": "\t"}, {"a": "x" * 8192},
]  # fmt: skip


def test_bad_contents_are_refused_before_anything_is_written(store: ObjectStore) -> None:
    for content in BAD_CONTENTS:
        with pytest.raises(Invalid, match="d"):
            store.swap("d", content, expected=None)
    assert store.load("d") is None


def test_the_longest_name_is_taken_and_told_in_a_conflict(store: ObjectStore) -> None:
    name = "/".join(["x" * 199] * 4)
    store.create(name, SMALL)
    assert [info.name for info in store.list("x")] == [name]
    with pytest.raises(Conflict, match=name):
        store.create(name, b"y")
    assert store.url in repr(store)
    assert store.look_interval_s > 0


def test_a_stores_clock_is_near_this_machines_once_it_was_heard(store: ObjectStore) -> None:
    for _ in store.list(""):
        pass
    store.load("nothing")
    told_us = store.time_us()
    assert told_us is not None
    assert abs(told_us - time.time_ns() // 1000) < 5_000_000


def test_handles_that_swap_one_counter_lose_no_update(shared_url: str) -> None:
    def increment(_: int) -> None:
        store = open_store(shared_url)  # as another process: with folders, locks and connections of its own
        for _ in range(25):
            while True:
                found = store.load("q/_head.json")
                value, etag = (json.loads(found.body)["n"], found.etag) if isinstance(found, Document) else (0, None)
                with contextlib.suppress(Conflict):
                    store.swap("q/_head.json", json.dumps({"n": value + 1}).encode(), expected=etag)
                    break
        store.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(4)))
    store = open_store(shared_url)
    found = store.load("q/_head.json")
    assert isinstance(found, Document)
    assert json.loads(found.body) == {"n": 100}
    assert [info.name for info in store.list("")] == ["q/_head.json"]
