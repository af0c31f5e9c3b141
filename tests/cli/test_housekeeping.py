"""`partq queue trim`, `compact` and `collect`, and publishing to a queue that is full."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from partq_spark.group import lifecycle
from partq_spark.group.model import Owner
from partq_spark.log.admin import create_group
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.cli.conftest import Partq, json_lines
from tests.log.queues import send


@pytest.fixture
def filled(orders: Partq) -> Partq:
    """Three publishes of ten messages."""
    for first in (0, 10, 20):
        orders("publish", "orders", stdin=json_lines({"value": str(i)} for i in range(first, first + 10)))
    return orders


def segments(partq: Partq) -> list[Path]:
    return sorted(partq.store.rglob("*.arrow"))


# --- trim -------------------------------------------------------------------------------------------------------------


def test_trim_by_offset(filled: Partq) -> None:
    done = filled.json("queue", "trim", "orders", "--before-offsets", '{"0": 12}')
    assert done == {
        "queue": "orders",
        "trimmed": 12,
        "messages": 18,
        "held_back": [],
        "partitions": [{"partition": 0, "earliest": 12, "next": 30}],
    }
    assert [value for _, value in filled.messages("orders")] == [str(i) for i in range(12, 30)]
    assert filled.json("queue", "trim", "orders", "--before-offsets", '{"0": 3}')["trimmed"] == 0


def test_trim_by_time(filled: Partq) -> None:
    second = filled.browse("orders", "--from", 10, "--limit", 1)[0]["timestamp"]
    text = filled("queue", "trim", "orders", "--before", second).stdout
    assert text.startswith(f"Trimmed 10 messages of queue 'orders' (namespace 'default', store {filled.url}); 20 can")
    assert "partq queue collect orders" in text
    assert filled.browse("orders")[0]["timestamp"] == second


def test_partitions_that_are_not_named_keep_all(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 3)
    partq("publish", "orders", stdin=json_lines({"value": str(i)} for i in range(100)))
    done = partq.json("queue", "trim", "orders", "--before-offsets", '{"1": 1000000}')
    assert [p["earliest"] for p in done["partitions"]] == [0, done["partitions"][1]["next"], 0]


def test_what_a_group_needs_is_kept_and_said(filled: Partq) -> None:
    create_group(QueueLog(open_store(filled.url), "default", "orders"), "billing", [5])
    text = filled("queue", "trim", "orders", "--before-offsets", '{"0": 12}').stdout
    assert text.startswith("Trimmed 5 messages")
    assert "Held back: group billing needs 7 messages in partition 0, from offset 5." in text
    assert filled.json("queue", "trim", "orders", "--before-offsets", '{"0": 12}')["held_back"] == [
        {"group": "billing", "partition": 0, "offset": 5, "messages": 7, "for_ever": False}
    ]
    assert "1 group (billing)" in filled.misuse("queue", "delete", "orders")
    assert filled.json("queue", "describe", "orders")["groups"] == [{"group": "billing", "start": [5]}]


@pytest.mark.parametrize(
    "offsets",
    ["12", "[12]", "{}", "nonsense", '{"a": 1}', '{"0": -1}', '{"0": 1.0}', '{"0": true}', '{"0": "1"}', '{"٣": 1}'],
)
def test_bad_offsets_are_wrong_use(filled: Partq, offsets: str) -> None:
    message = filled.misuse("queue", "trim", "orders", "--before-offsets", offsets)
    assert 'such as {"0": 12, "1": 7}' in message


def test_a_bad_time_is_wrong_use_with_an_example(filled: Partq) -> None:
    assert "such as 2026-11-20T08:30:00Z" in filled.misuse("queue", "trim", "orders", "--before", "yesterday")


def test_trim_wants_to_know_until_where(filled: Partq) -> None:
    assert "give either --before or --before-offsets" in filled.misuse("queue", "trim", "orders")
    both = ["--before", "2026-01-01T00:00:00Z", "--before-offsets", '{"0": 1}']
    assert "give either --before or --before-offsets" in filled.misuse("queue", "trim", "orders", *both)
    assert "has partitions 0 to 0" in filled.error("queue", "trim", "orders", "--before-offsets", '{"7": 1}')


def test_what_was_acknowledged_may_be_trimmed(filled: Partq) -> None:
    queue = QueueLog(open_store(filled.url), "default", "orders")
    create_group(queue, "billing", [0])
    checkpoints = lifecycle.checkpoints_of(queue, "billing")
    held = checkpoints.fence(0, to=Owner("flow", "instance"), epoch=1, start=0, delivered=None)
    checkpoints.update_checkpoint(held, 14)
    done = filled.json("queue", "trim", "orders", "--before-offsets", '{"0": 20}')
    assert done["trimmed"] == 14
    assert done["held_back"] == [{"group": "billing", "partition": 0, "offset": 14, "messages": 6, "for_ever": False}]


# --- compact ----------------------------------------------------------------------------------------------------------


def test_compact_says_what_it_did_and_leaves_the_messages_as_they_were(orders: Partq) -> None:
    for number in range(70):  # the head keeps 64 publishes
        orders("publish", "orders", stdin=json_lines([{"key": "k", "value": str(number)}]))
    before = orders.browse("orders", "--limit", 100)
    assert "is worth compacting" in orders("queue", "compact", "orders").stdout, "all of them are young"
    text = orders("queue", "compact", "orders", "--min-age", 0).stdout
    assert re.match(r"Compacted (\d+) messages of queue 'orders' .*: \1 slices \(.*\) became 1 \(.*\)\.", text)
    assert "given back by: partq queue collect orders" in text
    assert orders.browse("orders", "--limit", 100) == before
    nothing = orders.json("queue", "compact", "orders", "--min-age", 0)
    assert nothing == {
        "queue": "orders",
        "steps": 0,
        "messages": 0,
        "slices_before": 0,
        "slices": 0,
        "bytes_before": 0,
        "bytes": 0,
        "segments": 0,
        "finished": True,
    }


def test_what_was_compacted_can_be_trimmed_by_time(orders: Partq) -> None:
    for number in range(70):
        orders("publish", "orders", stdin=json_lines([{"value": str(number)}]))
    third = orders.browse("orders", "--limit", 3)[2]["timestamp"]
    assert orders.json("queue", "compact", "orders", "--min-age", 0)["steps"] == 1
    assert orders.json("queue", "trim", "orders", "--before", third)["trimmed"] == 2
    assert orders.browse("orders", "--limit", 1)[0]["timestamp"] == third
    assert orders.json("queue", "describe", "orders")["oldest"] == third


def test_a_bad_age_is_wrong_use(orders: Partq) -> None:
    orders.misuse("queue", "compact", "orders", "--min-age", "-1")
    assert "does not exist" in orders.error("queue", "compact", "nowhere")


# --- quota ------------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_to_publish_and_says_what_to_do(orders: Partq) -> None:
    line = json_lines([{"value": "x"}])
    orders("queue", "alter", "orders", "--quota-bytes", 1)
    orders("publish", "orders", "--publish-id", "one", stdin=line)
    message = orders.error("publish", "orders", stdin=line)
    assert "its quota is 1" in message
    assert "partq queue alter orders --quota-bytes N" in message
    assert orders("publish", "orders", "--publish-id", "one", stdin=line).stdout.startswith("Already published")
    assert len(orders.browse("orders")) == 1
    orders("queue", "alter", "orders", "--quota-bytes", "none")
    orders("publish", "orders", stdin=line)
    assert len(orders.browse("orders")) == 2


# --- collect ----------------------------------------------------------------------------------------------------------


def test_collect_deletes_what_was_trimmed_in_later_rounds(filled: Partq) -> None:
    filled("queue", "trim", "orders", "--before-offsets", '{"0": 20}')
    assert len(segments(filled)) == 3
    rounds = [filled.json("queue", "collect", "orders", "--grace", 0) for _ in range(4)]
    assert sum(each["deleted"] for each in rounds) == 2
    assert sum(each["deleted_bytes"] for each in rounds) > 0
    assert [each["marked"] for each in rounds][-1] == 0
    assert len(segments(filled)) == 1
    assert [value for _, value in filled.messages("orders")] == [str(i) for i in range(20, 30)]


def test_collect_deletes_nothing_within_the_grace(filled: Partq) -> None:
    filled("queue", "trim", "orders", "--before-offsets", '{"0": 30}')
    for _ in range(3):
        assert filled.json("queue", "collect", "orders")["deleted"] == 0
    assert len(segments(filled)) == 3


def test_collect_tells_people_what_comes_next(filled: Partq) -> None:
    filled("queue", "trim", "orders", "--before-offsets", '{"0": 20}')
    texts = [filled("queue", "collect", "orders", "--grace", 0).stdout for _ in range(4)]
    assert any("Marked 2 objects: a round at least 0 s from now deletes them." in text for text in texts)
    assert any(text.startswith("Deleted 2 objects (") for text in texts)


def test_collect_removes_temporary_files_only_when_they_are_a_day_old(filled: Partq) -> None:
    """Also with a grace of 0: the sweep concerns every writer of the store."""
    folder = segments(filled)[0].parent
    young, old = folder / ".tmp-young", folder / ".tmp-old"
    filled("queue", "collect", "orders")
    for path in (young, old):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    text = filled("queue", "collect", "orders", "--grace", 0).stdout
    assert "Removed 1 temporary file of writers that died" in text
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "1e9", "a day", ""])
def test_a_bad_grace_is_wrong_use(filled: Partq, grace: str) -> None:
    assert "give seconds from 0 to 31622400" in filled.misuse("queue", "collect", "orders", f"--grace={grace}")


# --- resolve ----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-10")
def test_resolve_says_what_refused_batches_are_in_every_queue_that_has_them(orders: Partq) -> None:
    writers = (("orders", 7), ("bills", 5), ("early", 2))
    for name, batch in writers:
        if name != "orders":
            orders("queue", "create", name, "--partitions", 1)
        queue = QueueLog(open_store(orders.url), "default", name)
        send(queue, [("k", b"1")], PublishIdentity.of_transaction("nightly", batch, None))
    words = ("queue", "resolve", "orders", "--writer", "nightly", "--batch", 4, "--as", "published")
    refused = orders(*words, code=2).stderr
    assert "batch 4 and later ones of writer 'nightly' are published: their rows are skipped. Add --yes" in refused
    done = orders.json(*words, "--yes")
    assert done == {
        "writer": "nightly",
        "batch": 4,
        "published": True,
        "queues": ["bills", "orders"],
        "unreadable": [],
    }
    (said,) = orders.json("queue", "describe", "bills")["resolutions"]
    assert (said["writer"], said["batch"], said["published"]) == ("nightly", 4, True)
    shown = orders("queue", "describe", "orders").stdout
    assert re.search(r"resolved +writer nightly: batch 4 and later are published already; \S+@\S+, 20", shown)
    assert orders.json("queue", "describe", "early")["resolutions"] == []
    assert "are published once more in 2 queues (bills, orders)" in orders(*words[:-1], "new", "--yes").stdout

    for wrong, part in (
        (("--writer", "nobody", "--batch", 4), "knows no writer 'nobody'"),
        (("--writer", "nightly", "--batch", 8), "the last batch of writer 'nightly' in queue 'orders'"),
        (("--writer", "publish-id:x", "--batch", 0), "'publish-id:x' is a publish id"),
    ):
        assert part in orders("queue", "resolve", "orders", *wrong, "--as", "new", "--yes", code=1).stderr
    orders("queue", "resolve", "orders", "--writer", "nightly", "--batch", -1, "--as", "new", "--yes", code=2)
