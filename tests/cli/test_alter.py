"""What changes a queue. `partq queue alter`: settings, columns, and `--partitions` with its dry run, what waits, and
who is told; what people read where no group has to wait is in docs/cli.md, which is run. `trim`, `compact`, `collect`
and `resolve`.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

import partq as api
from tests.cli.conftest import written
from tests.cli.groups import Group
from tests.support.command_line import Partq, json_lines
from tests.support.data_source import Calls

ALTER = ("queue", "alter", "orders")
TO_8 = (*ALTER, "--partitions", 8)


@pytest.fixture
def group(partq: Partq) -> Group:
    """A queue of 4 partitions with one message of each of 40 keys, two of partition 1 are acknowledged."""
    return Group(partq, {1: 2}, partitions=4)


def test_settings_and_columns_change_as_they_are_given(partq: Partq) -> None:
    ddl = "id BIGINT NOT NULL, name STRING, count INT"
    partq("queue", "create", "orders", "--partitions", 2, "--schema", ddl, "--key", "id")
    shown = partq.json(*ALTER, "--max-message-bytes", 100, "--retention", 60, "--quota-bytes", 1000)["description"]
    assert list(shown["config"].values())[3:] == [100, 60, 1000]
    assert partq(*ALTER, "--retention", "None").stdout == "retention: 60 s → none\n"
    shown = partq.json(*ALTER, "--quota-bytes", "none", "--max-handoff-time", 3)["description"]
    assert shown["config"]["quota_bytes"] is None
    change = ("--add-column", "coupon STRING -- of today", "--add-column", "`a b` INT", "--widen", "count BIGINT")
    planned = partq.json(*ALTER, *change, "--dry-run")["schema"]
    partq(*ALTER, *change)
    found = partq.json("queue", "describe", "orders")["schema"]
    assert found["ddl"] == planned["to"] == f"{ddl.removesuffix('INT')}BIGINT, coupon STRING, `a b` INT"
    assert found["columns"][2]["former"] == [{"type": "INT", "until": 2}]
    assert planned["added"] == ["coupon STRING", "`a b` INT"]
    assert planned["widened"] == [{"name": "count", "from": "INT", "to": "BIGINT"}]
    assert partq(*ALTER, "--schema", found["ddl"].lower()).stdout == "schema: as it was\n"


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-01")
def test_the_number_of_partitions_changes_and_what_waits_is_said(group: Group) -> None:
    partq = group.partq
    (first,) = partq.json(*TO_8, "--rebalance-delay", 1)["groups"]
    assert (first["group"], first["messages"]) == ("billing", 38)
    assert first["waits"] == {"4": [0], "5": [1], "6": [2], "7": [3]}
    assert partq.json("queue", "describe", "orders")["layout"] == {
        "generation": 1,
        "partitions": 8,
        "since_sequence": 4,
        "begin": [*group.ends, 0, 0, 0, 0],
    }
    assert partq(*TO_8).stdout == "partitions: 8, as it was\n"
    assert partq.json(*ALTER, "--max-handoff-time", 1)["groups"] == []
    partq("publish", "orders", stdin=json_lines([{"key": f"k{number}", "value": "new"} for number in range(40)]))
    (found,) = partq.json(*ALTER, "--partitions", 2, "--dry-run")["groups"]
    assert (found["waits"], found["messages"]) == ({"0": [2, 4, 6], "1": [3, 5, 7]}, 78), (
        "for what is left of the first change"
    )
    done = partq(*ALTER, "--partitions", 2).stdout
    assert "Group 'billing' has 78 messages from before the change to acknowledge in 8 partitions:" in done
    assert "What comes to partition 1 waits for partitions 3, 5, 7." in done
    listed = partq.json("checkpoints", "orders", "--group", "billing")["partitions"]
    assert sum(each["lag"] for each in listed) == 78, "also of removed partitions that nobody has had yet"


def test_a_change_is_done_though_checkpoints_cannot_be_read(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [api.Unavailable("no answer (test)"), KeyboardInterrupt()]

    def down(_: object) -> None:
        raise errors.pop() if errors[1:] else errors[0]

    group.edit(1, epoch="many")
    (found,) = group.partq.json(*TO_8, "--dry-run")["groups"]
    assert (found["unreadable_checkpoints"], found["messages"]) == ([1], 40), "from the group's beginning on"
    assert "cannot be read" in group.partq(*TO_8, "--dry-run").stdout
    monkeypatch.setattr("partq_spark.group.checkpoints.CheckpointStore.list_readable", down)
    done = group.partq(*TO_8)
    assert done.stdout == "partitions: 4 → 8\n"
    assert "was altered" in done.stderr
    assert group.partq.json(*ALTER, "--partitions", 2)["groups"] is None
    assert "no answer" in group.partq.error(*ALTER, "--partitions", 4, "--dry-run")
    assert group.head["layouts"][-1][1] == 2


# --- the dry run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_comes_moves_and_waits_and_writes_nothing(group: Group) -> None:
    partq = group.partq
    files = {path: path.stat().st_mtime_ns for path in partq.store.rglob("*")}
    said = partq(*TO_8, "--retention", 60, "--dry-run").stdout
    shown = partq.json(*ALTER, "--partitions", 3, "--retention", 60, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in partq.store.rglob("*")} == files

    partq("queue", "create", "wider", "--partitions", 8)
    partq("publish", "wider", stdin=partq("browse", "orders", "--json", "--limit", 40).stdout)
    places = [{each["key"]: each["partition"] for each in partq.browse(name)} for name in ("orders", "wider")]
    moving = sum(places[0][key] != places[1][key] for key in places[0])
    assert f"(the newest of every partition, 40 messages) {moving} would change partition" in said
    assert "What comes to partition 4 would wait for partition 0." in said
    assert said.endswith("Nothing was changed.\n")
    assert shown["settings"] == [{"name": "retention_s", "from": None, "to": 60}]
    assert shown["partitions"] == {"name": "partitions", "from": 4, "to": 3}
    (found,) = shown["groups"]
    first = [(each["partition"], each["acknowledged"], each["end"], each["messages"]) for each in found["first"]]
    done = [0, 2, 0, 0]
    assert first == [(number, done[number], end, end - done[number]) for number, end in enumerate(group.ends)]
    assert found["waits"] == {"0": [1, 2, 3], "1": [0, 2, 3], "2": [0, 1, 3]}, "counts without a common divisor"


def test_a_dry_run_where_little_changes(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    assert "There are no keys to look at." in partq(*ALTER, "--partitions", 4, "--dry-run").stdout
    partq("publish", "orders", stdin=json_lines([{"value": "x"}, {"value": "y"}]))
    sample = partq.json(*ALTER, "--partitions", 4, "--dry-run")["sample"]
    assert sample == {"messages": 2, "without_key": 2, "keys": 0, "keys_that_move": 0}


def test_the_sample_is_bounded_and_of_the_newest(group: Group, tmp_path: Path) -> None:
    hot = json_lines({"key": "hot", "value": "x"} for _ in range(50_000))
    group.partq("publish", "orders", "--file", written(tmp_path / "hot.jsonl", hot))
    sample = group.partq.json(*TO_8, "--dry-run")["sample"]
    assert sample["messages"] == 10_000
    assert sample["keys"] < 40
    group.partq("queue", "create", "large", "--partitions", 1)
    large = written(tmp_path / "large.jsonl", json_lines({"key": "a", "value": "x" * 5_000_000} for _ in range(2)))
    for _ in range(8):
        group.partq("publish", "large", "--file", large)
    shown = group.partq.json("queue", "alter", "large", "--partitions", 2, "--dry-run")
    assert 12 < shown["sample"]["messages"] < 16, "64 MiB of them"


def test_coordinators_are_told_if_ownership_is_given(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("partq_spark.group.ownership.Ownership.announce", lambda _, key: told.append(str(key)))
    group.partq(*TO_8, "--dry-run", "--ownership", "store")
    group.partq(*TO_8)
    assert told == []
    group.partq(*ALTER, "--partitions", 2, "--ownership", "store")
    assert told == ["default/orders/_head"]


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
    assert done["partitions"] == [{"partition": 0, "earliest": 8, "next": 30, "messages": 22, "bytes": None}]
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


@pytest.mark.conformance("DIS-09", "DIS-10")
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
