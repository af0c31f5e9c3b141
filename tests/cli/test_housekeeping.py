"""`partq queue trim`, `compact`, `collect` and `resolve`, and publishing to a queue that is full."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from tests.cli.groups import Group
from tests.support.command_line import Partq, json_lines
from tests.support.data_source import Calls

TRIM = ("queue", "trim", "orders")


@pytest.fixture
def filled(orders: Partq) -> Partq:
    """Three publishes of ten messages."""
    for first in (0, 10, 20):
        orders("publish", "orders", stdin=json_lines({"value": str(i)} for i in range(first, first + 10)))
    return orders


def segments(partq: Partq) -> list[Path]:
    return sorted(partq.store.rglob("*.arrow"))


# --- trim -------------------------------------------------------------------------------------------------------------


def test_trim_by_offset_and_by_time(filled: Partq) -> None:
    done = filled.json(*TRIM, "--before-offsets", '{"0": 8}')
    assert (done["trimmed"], done["messages"], done["held_back"]) == (8, 22, [])
    assert done["partitions"] == [{"partition": 0, "earliest": 8, "next": 30}]
    assert filled.json(*TRIM, "--before-offsets", '{"0": 3}')["trimmed"] == 0
    second = filled.browse("orders", "--from", 10, "--limit", 1)[0]["timestamp"]
    assert filled(*TRIM, "--before", second).stdout.startswith("Trimmed 2 messages")
    assert filled.browse("orders")[0]["timestamp"] == second


def test_what_a_group_needs_is_kept_and_said_and_what_it_acknowledged_is_not(partq: Partq) -> None:
    group = Group(partq, {0: 5}, partitions=1)
    text = partq(*TRIM, "--before-offsets", '{"0": 12}').stdout
    assert text.startswith("Trimmed 5 messages")
    assert "Held back: group billing needs 7 messages in partition 0, from offset 5." in text
    group.take(0, offset="14")
    done = partq.json(*TRIM, "--before-offsets", '{"0": 20}')
    assert done["trimmed"] == 9
    assert done["held_back"] == [{"group": "billing", "partition": 0, "offset": 14, "messages": 6, "for_ever": False}]


# --- compact ----------------------------------------------------------------------------------------------------------


def test_compact_says_what_it_did_and_leaves_the_messages_as_they_were(filled: Partq) -> None:
    before = filled.browse("orders")
    assert "is worth compacting" in filled("queue", "compact", "orders").stdout, "all of them are young"
    for number in range(70):  # the head keeps 64 publishes
        filled("publish", "orders", stdin=json_lines([{"value": str(number)}]))
    text = filled("queue", "compact", "orders", "--min-age", 0).stdout
    assert re.match(r"Compacted \d+ messages of queue 'orders' .*: \d+ slices \(.*\) became 1 \(.*\)\.", text), text
    assert filled.browse("orders", "--limit", 30) == before
    assert filled.json("queue", "compact", "orders", "--min-age", 0)["steps"] == 0


# --- collect ----------------------------------------------------------------------------------------------------------


def test_collect_deletes_what_was_trimmed_in_later_rounds_and_tells_what_comes_next(filled: Partq) -> None:
    filled(*TRIM, "--before-offsets", '{"0": 20}')
    for _ in range(3):
        assert filled.json("queue", "collect", "orders")["deleted"] == 0, "within the grace"
    marked = filled("queue", "collect", "orders", "--grace", 0).stdout
    assert "Marked 2 objects: a round at least 0 s from now deletes" in marked
    rounds = [filled.json("queue", "collect", "orders", "--grace", 0) for _ in range(3)]
    assert (sum(each["deleted"] for each in rounds), rounds[-1]["marked"], len(segments(filled))) == (2, 0, 1)


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


# --- resolve ----------------------------------------------------------------------------------------------------------


def transaction(partq: Partq, queue: str, number: int, value: bytes) -> None:
    """What `df.write` with `txnAppId` and `txnVersion` does in task and driver, without a JVM."""
    schema = StructType().add("value", BinaryType())
    rows = pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], ["value"])
    Calls(url=partq.url).append(queue, schema, [rows], txnAppId="nightly", txnVersion=str(number))


@pytest.mark.conformance("DIS-09")
@pytest.mark.conformance("DIS-10")
def test_resolve_says_what_refused_batches_are_in_every_queue_that_has_them(orders: Partq) -> None:
    orders("queue", "create", "bills", "--partitions", 1)
    orders("queue", "create", "early", "--partitions", 1)
    for name, batch in (("orders", 7), ("bills", 5), ("early", 2)):
        transaction(orders, name, batch, b"1")
    by_hand = json_lines([{"value": "by hand"}])
    done = orders.json("publish", "orders", "--publish-id", "nightly", stdin=by_hand)
    assert done["published"], "a publish id is no repetition of a transaction with its name"
    words = ("queue", "resolve", "orders", "--writer", "nightly", "--batch", 4, "--as", "published")
    refused = orders(*words, code=2).stderr
    assert "batch 4 and later ones of writer 'nightly' are published: their rows are skipped. Add --yes" in refused
    assert orders.json(*words, "--yes") == {
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
    for writer, number, part in (
        ("nobody", 4, "knows no writer 'nobody'"),
        ("nightly", 8, "the last batch of writer 'nightly' in queue 'orders'"),
        ("publish-id:x", 0, "'publish-id:x' is a publish id"),
    ):
        wrong = ("--writer", writer, "--batch", number, "--as", "new", "--yes")
        assert part in orders.error("queue", "resolve", "orders", *wrong)
