"""What every store promises of deletion and of listings: pages, order, metadata, folders."""

from __future__ import annotations

from partq_spark.objects import ObjectStore

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
