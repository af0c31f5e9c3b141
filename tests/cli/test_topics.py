"""Subscriptions and `partq publish --topic`, for programs. What people read of them is in docs/cli.md, which is run."""

from __future__ import annotations

import pytest

from tests.support.command_line import Partq, json_lines

pytestmark = pytest.mark.conformance("DIS-07")

LINES = json_lines([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}, {"value": "3"}])


@pytest.fixture
def shop(partq: Partq) -> Partq:
    """Two queues that attract something, one that does not."""
    for name, partitions in (("archive", 1), ("eu", 3), ("silent", 1)):
        partq("queue", "create", name, "--partitions", partitions)
    partq("queue", "subscribe", "archive", ">")
    partq("queue", "subscribe", "eu", "orders/*/eu/>", "bills/eu")
    return partq


def test_subscriptions_come_and_go_and_are_listed(shop: Partq) -> None:
    both = ["bills/eu", "orders/*/eu/>"]
    done = shop.json("queue", "subscribe", "EU", "a", "bills/eu")
    assert (done["queue"], done["subscribed"], done["subscriptions"]) == ("eu", ["a"], ["a", *both])
    done = shop.json("queue", "unsubscribe", "eu", "a", "x")
    assert (done["unsubscribed"], done["subscriptions"]) == (["a"], both)
    assert shop("queue", "subscriptions", "eu").stdout == "bills/eu\norders/*/eu/>\n"
    assert "does not attract anything by its topic." in shop("queue", "subscriptions", "silent").stdout
    found = shop.json("queue", "subscriptions", "--topic", "orders/new/eu/de")
    assert [each["subscriptions"] for each in found] == [[">"], ["orders/*/eu/>"]]
    shop("queue", "unsubscribe", "archive", ">")
    assert "attracts bills. Let one: partq queue" in shop("queue", "subscriptions", "--topic", "bills").stdout
    found = shop.json("publish", "--topic", "nobody", stdin=LINES)
    assert (found["queues"], found["messages"], found["unattracted"]) == ([], 0, 3)


@pytest.mark.conformance("DIS-09")
def test_every_queue_that_attracts_the_topic_gets_it_once_also_one_that_comes_later(shop: Partq) -> None:
    words = ("publish", "--topic", "bills/eu", "--publish-id", "monday")
    found = shop.json(*words, stdin=LINES)
    assert (found["topic"], found["messages"], found["without_key"], found["unattracted"]) == ("bills/eu", 3, 1, 0)
    assert [(each["queue"], each["messages"]) for each in found["queues"]] == [("archive", 3), ("eu", 3)]
    shop("queue", "subscribe", "silent", "bills/*")
    found = shop.json(*words, stdin=LINES)
    assert [(each["queue"], each["published"]) for each in found["queues"]] == [
        *(("archive", False), ("eu", False), ("silent", True))
    ]
    for queue in ("archive", "eu", "silent"):
        assert sorted(value for _, value in shop.messages(queue)) == ["1", "2", "3"]
