"""`partq queue create`, `list`, `describe`, `delete`, `subscribe` and `publish --topic`, for programs, and what is left
where a queue is damaged. What people read of them is in docs/cli.md, which is run.
"""

from __future__ import annotations

import os

import pytest

from tests.cli.groups import Group
from tests.support.command_line import Partq, json_lines

# --- create -----------------------------------------------------------------------------------------------------------


def test_create_makes_a_queue_with_its_settings(partq: Partq) -> None:
    partq(
        *("queue", "create", "Orders", "--partitions", 4, "--rebalance-delay", 0, "--max-handoff-time", 0.5),
        *("--access-type", "Exclusive", "--max-message-bytes", 1000, "--retention", 3600, "--quota-bytes", 500),
    )
    shown = partq.json("queue", "describe", "orders")
    assert list(shown["config"].values()) == [0, 0.5, "exclusive", 1000, 3600, 500]
    layout = {"generation": 0, "partitions": 4, "since_sequence": 1, "begin": [0, 0, 0, 0]}
    assert (shown["quota_used"], shown["layout"]) == (0, layout)
    ddl = ", ".join(f"c{number} INT" for number in range(1000))
    partq("queue", "create", "wide", "--partitions", 1000, "--schema", ddl)
    assert partq("queue", "describe", "wide").stdout.count("… and 936 more ") == 2


# --- describe ---------------------------------------------------------------------------------------------------------


def test_describe_tells_what_is_in_a_queue(partq: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    rows = json_lines({"key": f"k{i}", "value": "x"} for i in range(50))
    published = partq.json("publish", "orders", "--publish-id", "one", stdin=rows)
    partq("queue", "trim", "orders", "--before-offsets", '{"1": 4}')
    shown = partq.json("queue", "describe", "orders", "--bytes")
    per_partition = {each["partition"]: each["messages"] for each in published["partitions"]}
    assert [(p["partition"], p["earliest"], p["next"], p["messages"]) for p in shown["partitions"]] == [
        (0, 0, per_partition[0], per_partition[0]),
        (1, 4, per_partition[1], per_partition[1] - 4),
    ]
    assert (shown["messages"], shown["writers"]) == (46, 1)
    assert shown["last_published"] == shown["oldest"] == published["timestamp"]
    stored = sum(path.stat().st_size for path in partq.store.rglob("*.arrow"))
    assert 0 < shown["bytes"] == sum(p["bytes"] for p in shown["partitions"]) < stored
    assert [shown["log"][name] for name in ("entries", "chunks", "slices", "depth")] == [1, 0, 2, 0]
    monkeypatch.setattr("partq_spark.client.describing.stored_bytes", None)
    again = partq.json("queue", "describe", "orders")
    assert again["bytes"] == shown["bytes"], "known without reading the log"
    assert again["partitions"][0]["bytes"] is None


def test_describe_says_how_full_the_queue_is_and_what_holds_it_back(partq: Partq) -> None:
    group = Group(partq, {0: 12}, partitions=1, messages=30)
    group.create("audit", start=30)
    group.create("silent", start=25, ownership="none")
    group.take(0, group="silent")
    partq("queue", "alter", "orders", "--quota-bytes", 2 * partq.json("queue", "describe", "orders")["bytes"])
    partq("queue", "alter", "orders", "--retention", 86400)
    shown = partq.json("queue", "describe", "orders")
    assert shown["held_back"] == [
        {"group": "billing", "partition": 0, "offset": 12, "messages": 18, "for_ever": False},
        {"group": "silent", "partition": 0, "offset": 25, "messages": 5, "for_ever": True},
    ]
    assert shown["quota_used"] == 0.5
    said = " ".join(partq("queue", "describe", "orders").stdout.split())
    assert ", 50% used" in said
    assert "retention 86400 s" in said
    assert "group silent needs 5 messages in partition 0, from offset 25, for ever: checkpoints=none writes" in said


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.conformance("OBS-06")
def test_a_damaged_queue_hides_no_other_stops_no_topic_and_can_be_deleted(partq: Partq) -> None:
    for name in ("a", "b", "c"):
        partq("queue", "create", name, "--partitions", 1)
        partq("queue", "subscribe", name, "sales/>")
    head = partq.store / "default/b/_head.json"
    head.unlink()
    os.mkfifo(head)  # at which nobody may wait
    assert "default/b/_head.json" in partq.error("queue", "describe", "b")
    head.unlink()
    head.write_bytes(b"{}")
    partq("publish", "--topic", "sales/eu", stdin=json_lines([{"value": "x"}]))
    assert partq.messages("a") == partq.messages("c") == [(None, "x")]

    shown = partq("queue", "list", code=1)
    rows = [line.split()[:2] for line in shown.stdout.splitlines()[2:]]
    assert rows == [["a", "1"], ["b", "damaged"], ["c", "1"]]
    assert "default/b/_head.json" in shown.stderr
    assert "default/b/_head.json" in partq.json("queue", "list", code=1)[1]["error"]
    shown = partq("queue", "subscriptions", code=1)
    assert shown.stdout == "a  sales/>\nc  sales/>\n"
    assert "queue 'b' attracts nothing until it is restored: " in shown.stderr
    assert "default/b/_head.json" in partq.json("queue", "subscriptions", code=1)[2]["error"]

    assert "default/b/_head.json" in partq.misuse("queue", "delete", "b")
    assert partq("queue", "delete", "b", "--yes").stdout.startswith("Deleted queue 'b'")
    assert [each["queue"] for each in partq.json("queue", "list")] == ["a", "c"]
    partq("queue", "create", "b", "--partitions", 1)


# --- delete -----------------------------------------------------------------------------------------------------------


def test_delete_leaves_nothing_also_of_groups_and_of_a_deletion_that_was_cut_off(partq: Partq) -> None:
    group = Group(partq, {0: 5}, partitions=1, ownership="store")
    group.bind()
    assert partq.json("queue", "delete", "orders", "--yes")["deleted"] is True
    assert remains(partq) == []
    partq("queue", "create", "orders", "--partitions", 2)
    partq("publish", "orders", stdin='{"value":"x"}\n')
    (group.folder / "_head.json").unlink()
    assert partq("queue", "delete", "orders", "--yes").stdout.startswith("Removed what was left of queue 'orders'")
    assert remains(partq) == []
    assert "does not exist" in partq.error("queue", "delete", "orders", "--yes")


def remains(partq: Partq) -> list[str]:
    """The files below the queue's folder."""
    return sorted(path.name for path in (partq.store / "default").rglob("*") if path.is_file() and path.name != ".lock")


# --- topics -----------------------------------------------------------------------------------------------------------


LINES = json_lines([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}, {"value": "3"}])


@pytest.fixture
def shop(partq: Partq) -> Partq:
    """Two queues that attract something, one that does not."""
    for name, partitions in (("archive", 1), ("eu", 3), ("silent", 1)):
        partq("queue", "create", name, "--partitions", partitions)
    partq("queue", "subscribe", "archive", ">")
    partq("queue", "subscribe", "eu", "orders/*/eu/>", "bills/eu")
    return partq


@pytest.mark.conformance("DIS-07")
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
    found = shop.json("publish", "--topic", "bills/eu", stdin=LINES)
    assert (found["topic"], found["messages"], found["without_key"], found["unattracted"]) == ("bills/eu", 3, 1, 0)
