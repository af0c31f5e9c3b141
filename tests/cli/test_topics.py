"""`partq queue subscribe`, `unsubscribe`, `subscriptions`, and `partq publish --topic`."""

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


def sorted_values(partq: Partq, queue: str) -> list[str]:
    return sorted(value for _, value in partq.messages(queue))


def test_subscribing_says_what_is_new_and_what_was_there(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 1)
    queue = f"Queue 'orders' (namespace 'default', store {partq.url})"
    assert partq("queue", "subscribe", "Orders", "b/>", "a").stdout == (
        f"{queue} attracts b/> now.\n{queue} attracts a now.\n"
    )
    assert partq("queue", "subscribe", "orders", "a", "c").stdout == (
        f"{queue} attracted a already: nothing to do.\n{queue} attracts c now.\n"
    )
    assert partq.json("queue", "subscribe", "orders", "d") == {
        "queue": "orders",
        "subscribed": ["d"],
        "subscriptions": ["a", "b/>", "c", "d"],
    }
    said = partq("queue", "unsubscribe", "orders", "a", "x").stdout.splitlines()
    assert said[0].endswith("attracts a no more.")
    assert said[1].endswith("had no subscription x: nothing to do.")
    assert partq.json("queue", "unsubscribe", "orders", "a", "d") == {
        "queue": "orders",
        "unsubscribed": ["d"],
        "subscriptions": ["b/>", "c"],
    }


def test_subscriptions_of_a_queue_and_of_all(shop: Partq) -> None:
    assert shop("queue", "subscriptions", "eu").stdout == "bills/eu\norders/*/eu/>\n"
    assert shop("queue", "subscriptions").stdout == "archive  >\neu       bills/eu\neu       orders/*/eu/>\n"
    assert shop.json("queue", "subscriptions", "eu") == {"queue": "eu", "subscriptions": ["bills/eu", "orders/*/eu/>"]}
    assert shop.json("queue", "subscriptions") == [
        {"queue": "archive", "subscriptions": [">"]},
        {"queue": "eu", "subscriptions": ["bills/eu", "orders/*/eu/>"]},
    ]
    assert shop("queue", "subscriptions", "silent").stdout.startswith(
        "Queue 'silent' does not attract anything by its topic."
    )
    assert shop.json("queue", "subscriptions", "silent") == {"queue": "silent", "subscriptions": []}
    assert shop("queue", "subscriptions", "--namespace", "empty").stdout.startswith("No queue of namespace 'empty'")


def test_who_attracts_a_topic(shop: Partq) -> None:
    assert (
        shop("queue", "subscriptions", "--topic", "orders/new/eu/de").stdout == "archive  >\neu       orders/*/eu/>\n"
    )
    assert shop.json("queue", "subscriptions", "--topic", "bills") == [{"queue": "archive", "subscriptions": [">"]}]
    shop("queue", "unsubscribe", "archive", ">")
    assert shop("queue", "subscriptions", "--topic", "bills").stdout == (
        "No queue of namespace 'default' attracts bills. Let one: partq queue subscribe NAME SUBSCRIPTION\n"
    )
    assert "has no wildcards" in shop.misuse("queue", "subscriptions", "--topic", "a/*")


# --- publish --topic --------------------------------------------------------------------------------------------------


def test_publish_goes_to_every_queue_that_attracts_the_topic(shop: Partq) -> None:
    said = shop("publish", "--topic", "orders/new/eu/de", stdin=LINES).stdout.splitlines()
    assert said[0].startswith("Published 3 messages from standard input with topic orders/new/eu/de to 2 queues in ")
    assert said[1:3] == ["  archive  3 messages", "  eu       3 messages"]
    assert said[3] == "1 message without a key went to random partitions."
    assert sorted_values(shop, "eu") == ["1", "2", "3"]
    assert sorted_values(shop, "archive") == ["1", "2", "3"]
    assert shop.messages("silent") == []
    found = shop.json("publish", "--topic", "bills/eu", stdin=LINES)
    assert (found["topic"], found["messages"], found["without_key"], found["unattracted"]) == ("bills/eu", 3, 1, 0)
    assert [(each["queue"], each["published"], each["messages"]) for each in found["queues"]] == [
        ("archive", True, 3),
        ("eu", True, 3),
    ]
    assert sum(each["messages"] for each in found["queues"][1]["partitions"]) == 3


@pytest.mark.conformance("DIS-09")
def test_publish_with_an_id_is_repeated_without_harm_and_completes_what_is_missing(shop: Partq) -> None:
    arguments = ("publish", "--topic", "bills/eu", "--publish-id", "monday")
    shop(*arguments, stdin=LINES)
    again = shop(*arguments, stdin=LINES).stdout
    assert "Already published: 'monday' came to queue 'archive'" in again
    assert sorted_values(shop, "eu") == ["1", "2", "3"]
    shop("queue", "subscribe", "silent", "bills/*")
    found = shop.json(*arguments, stdin=LINES)
    assert [(each["queue"], each["published"], each["already_published"]) for each in found["queues"]] == [
        ("archive", False, True),
        ("eu", False, True),
        ("silent", True, False),
    ]
    for queue in ("archive", "eu", "silent"):
        assert sorted_values(shop, queue) == ["1", "2", "3"]


def test_a_topic_that_nobody_attracts_is_said_or_refused(shop: Partq) -> None:
    shop("queue", "unsubscribe", "archive", ">")
    said = shop("publish", "--topic", "nobody", stdin=LINES).stdout
    assert said == (
        "No queue of namespace 'default' attracts nobody: 3 messages went nowhere. Let one: partq queue subscribe NAME "
        "nobody\n"
    )
    found = shop.json("publish", "--topic", "nobody", stdin=LINES)
    assert (found["queues"], found["messages"], found["unattracted"]) == ([], 0, 3)
    assert "attracts nobody: nothing was published" in shop.error(
        "publish", "--topic", "nobody", "--fail-unattracted", stdin=LINES
    )
