"""Looking back at messages: newest first, page by page, by key and by time; nothing is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import partq
from partq_spark.client import messages
from tests.client.conftest import Make


def filled(make: Make, *, partitions: int = 3, publishes: int = 30) -> partq.Queue:
    """Publishes of five messages each, with keys that come again."""
    queue = make(partitions=partitions)
    for number in range(publishes):
        with queue.publisher() as publisher:
            for each in range(5):
                publisher.send(f"{number}.{each}".encode(), key=f"k{(number + each) % 7}")
    return queue


def pages(queue: partq.Queue, *, limit: int, **more: object) -> list[list[partq.Message]]:
    """All pages of a search."""
    made: list[list[partq.Message]] = []
    before: Mapping[int, int] | None = None
    while True:
        found = partq.search_messages(queue, limit=limit, **({"before": before} if before else {}), **more)  # type: ignore[arg-type]
        made.append(list(found.messages))
        assert len(found.messages) <= limit
        before = found.before
        if before is None:
            return made


@pytest.mark.parametrize("limit", [1, 7, 200])
@pytest.mark.parametrize("wanted", [{}, {"partition": 1}, {"key": "k3"}, {"key": "nobody"}])
@pytest.mark.parametrize("compacted", [False, True])
def test_pages_newest_first_hold_every_message_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, limit: int, wanted: dict[str, Any], compacted: bool
) -> None:
    """A key is found where it lies, also after the queue was resized."""
    monkeypatch.setattr(messages, "_AT_ONCE", 8)  # less than a page: some hits of a look are for the next one
    queue = filled(make, publishes=10)
    queue.alter(partitions=5)
    with queue.publisher() as publisher:
        publisher.send(b"new", key="k3")
    if compacted:
        assert queue.compact(min_age_s=0).steps
    there = [each for each in queue.browse() if all(getattr(each, name) == value for name, value in wanted.items())]
    assert [each for page in pages(queue, limit=limit, **wanted) for each in page] == there[::-1]


def test_a_search_for_a_key_ends_and_says_where_to_go_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_AT_ONCE", 5)
    monkeypatch.setattr(messages, "MOST_SEARCHED", 10)
    queue = filled(make, partitions=1)
    found = partq.search_messages(queue, key="nobody")
    assert (found.messages, found.before, found.looked_at) == ((), {0: 140}, 10)


def test_what_was_published_before_a_time(make: Make) -> None:
    queue = filled(make, publishes=4)
    there = list(queue.browse())
    moment = there[10].timestamp  # of the third publish
    found = partq.search_messages(queue, before=moment, limit=100)
    assert list(found.messages) == [each for each in there if each.timestamp < moment][::-1]
    for wrong, said in (({"before": "noon"}, "'noon'"), ({"partition": 9}, "there is no 9")):
        with pytest.raises(partq.Invalid, match=said):
            partq.search_messages(queue, **wrong)


def test_typed_messages_are_found_too(make: Make) -> None:
    queue = make(schema="id INT, name STRING", key="id")
    with queue.publisher() as publisher:
        for number in range(10):
            publisher.send({"id": number % 3, "name": str(number)})
    assert [each.value["name"] for each in partq.search_messages(queue, key="1").messages] == ["7", "4", "1"]
