"""`partq queue alter`: settings, columns, and `--partitions` with its dry run, what waits, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import partq as api
from tests.cli.conftest import written
from tests.cli.groups import Group
from tests.cli.test_queue import DDL
from tests.support.command_line import Partq, json_lines

ALTER = ("queue", "alter", "orders")
TO_8 = (*ALTER, "--partitions", 8)


@pytest.fixture
def group(partq: Partq) -> Group:
    """A queue of 4 partitions with one message of each of 40 keys, two of partition 1 are acknowledged."""
    return Group(partq, {1: 2}, partitions=4)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_alter_changes_what_is_given_and_nothing_else(orders: Partq) -> None:
    done = orders(*ALTER, "--rebalance-delay", 0, "--max-handoff-time", 3)
    assert done.stdout == "rebalance-delay: 5.0 → 0.0\nmax-handoff-time: 3.0, as it was\n"
    shown = orders.json(*ALTER, "--max-message-bytes", 100)
    assert shown["config"] == {
        "rebalance_delay_s": 0,
        "max_handoff_time_s": 3,
        "access_type": "non-exclusive",
        "max_message_bytes": 100,
        "retention_s": None,
        "quota_bytes": None,
    }
    assert "the queue takes 100" in orders.error("publish", "orders", stdin=json_lines([{"value": "x" * 101}]))
    done = orders(*ALTER, "--retention", 60, "--quota-bytes", 1000)
    assert set(done.stdout.splitlines()) == {"retention: none → 60.0", "quota-bytes: none → 1000"}
    assert orders(*ALTER, "--retention", "None").stdout == "retention: 60.0 → none\n"
    config = orders.json(*ALTER, "--quota-bytes", "none")["config"]
    assert (config["retention_s"], config["quota_bytes"]) == (None, None)


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_added_and_widened(partq: Partq) -> None:
    partq("queue", "create", "rows", "--partitions", 2, "--schema", DDL, "--key", "id")
    change = ("--add-column", "coupon STRING -- of today", "--add-column", "`a b` INT", "--widen", "count BIGINT")
    planned = partq("queue", "alter", "rows", *change, "--dry-run").stdout.splitlines()
    assert planned[:3] == [
        "new column: coupon STRING, null in the messages that are there",
        "new column: `a b` INT, null in the messages that are there",
        "column count: INT → BIGINT",
    ]
    assert planned[-1] == "Nothing was changed."
    assert partq.json("queue", "describe", "rows")["schema"]["version"] == 1
    wanted = partq.json("queue", "alter", "rows", *change, "--dry-run")["schema"]
    done = partq("queue", "alter", "rows", *change, "--retention", 60).stdout.splitlines()
    assert done[0] == "retention: none → 60.0"
    assert done[1:4] == planned[:3]
    assert "must pin its columns with .schema() before it is started again, or Spark refuses its checkpoint" in done[4]
    assert "A streaming query that keeps whole rows or a widened column in Spark's state" in done[4]
    assert done[4].endswith("to which _metadata belongs if the query keeps it:")
    assert done[5] == f'  .schema("{DDL}")'
    found = partq.json("queue", "describe", "rows")["schema"]
    assert found["ddl"] == wanted["to"] == f"{DDL.removesuffix('INT')}BIGINT, coupon STRING, `a b` INT"
    assert found["changes"] == wanted["changes"]
    widened = {"column": "count", "from": "INT", "to": "BIGINT"}
    assert found["changes"][1] == {"version": 3, "added": [], "widened": [widened]}
    shown = [line.split() for line in partq("queue", "describe", "rows").stdout.splitlines()]
    for row in (["columns", "5,", "version", "3"], ["count", "BIGINT", "1", "INT"], ["coupon", "STRING", "2"]):
        assert row in shown
    assert partq("queue", "alter", "rows", "--schema", found["ddl"].lower()).stdout == "schema: as it was\n"


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-01")
def test_the_number_of_partitions_changes_and_what_waits_is_said(group: Group) -> None:
    partq = group.partq
    done = partq(*TO_8, "--rebalance-delay", 1).stdout
    assert done.startswith("partitions: 4 → 8\nrebalance-delay: 5.0 → 1.0\n")
    assert "Group 'billing' has 38 messages from before the change to acknowledge in 4 partitions:" in done
    assert "What comes to partition 4 waits for partition 0." in done
    assert partq.json("queue", "describe", "orders")["layout"] == {"generation": 1, "partitions": 8}
    assert partq(*TO_8).stdout == "partitions: 8, as it was\n"
    partq(*ALTER, "--partitions", 3)
    partq("publish", "orders", stdin=json_lines([{"key": f"k{number}", "value": "new"} for number in range(40)]))
    found = partq.browse("orders")
    assert len(found) == 80
    assert {each["partition"] for each in found if each["value"] == "new"} <= {0, 1, 2}
    assert sorted(each["partition"] for each in found if each["value"] == "x") == sorted(
        number for number, end in enumerate(group.ends) for _ in range(end)
    )


def test_json_is_the_queue_and_what_comes_first(group: Group) -> None:
    shown = group.partq.json(*TO_8)
    (first,) = shown.pop("groups_first")
    described = group.partq.json("queue", "describe", "orders")
    assert {name: described[name] for name in ("layout", "config", "partitions")} == {
        name: shown[name] for name in ("layout", "config", "partitions")
    }
    assert (first["group"], first["messages"]) == ("billing", 38)
    assert {each["partition"]: each["waits_for"] for each in first["waits"]} == {4: [0], 5: [1], 6: [2], 7: [3]}
    assert "groups_first" not in group.partq.json(*ALTER, "--max-handoff-time", 1)


def test_too_many_counts_are_refused_with_what_to_do(group: Group) -> None:
    for number in range(31):
        group.partq(*ALTER, "--partitions", 5 + number % 2)
        group.partq("publish", "orders", stdin=json_lines([{"key": "a", "value": "b"}]))
    for dry_run in ((), ("--dry-run",)):
        refused = group.partq.error(*ALTER, "--partitions", 4, *dry_run)
        assert "partq queue trim orders --before-offsets" in refused
    assert group.partq.json("queue", "describe", "orders")["layout"]["partitions"] == 5


def test_a_change_counts_as_done_though_checkpoints_cannot_be_read(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: object) -> None:
        raise api.Unavailable("no answer (test)")

    monkeypatch.setattr("partq_spark.group.checkpoints.CheckpointStore.list_readable", down)
    done = group.partq(*TO_8)
    assert done.stdout == "partitions: 4 → 8\n"
    assert "was altered" in done.stderr
    assert group.partq.json(*ALTER, "--partitions", 2)["groups_first"] is None
    assert "no answer" in group.partq.error(*ALTER, "--partitions", 4, "--dry-run")
    assert group.queue.head.partitions == 2


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
    assert said.startswith("retention: none → 60.0\npartitions: 4 → 8\nNew: partitions 4-7.\nOf 40 keys in a sample ")
    assert f"(the newest of every partition, 40 messages) {moving} would change partition" in said
    assert "What comes to partition 4 would wait for partition 0." in said
    assert said.endswith("Nothing was changed.\n")
    assert shown["dry_run"] is True
    assert shown["settings"] == [{"setting": "retention_s", "from": None, "to": 60}]
    assert shown["partitions"] == {"from": 4, "to": 3, "new": [], "removed": [3]}
    (found,) = shown["groups"]
    first = [(each["partition"], each["acknowledged"], each["end"], each["messages"]) for each in found["first"]]
    done = [0, 2, 0, 0]
    assert first == [(number, done[number], end, end - done[number]) for number, end in enumerate(group.ends)]
    waits = {each["partition"]: each["waits_for"] for each in found["waits"]}
    assert waits == {0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 3]}, "counts without a common divisor"


def test_a_dry_run_where_little_changes(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    assert "There are no keys to look at." in partq(*ALTER, "--partitions", 4, "--dry-run").stdout
    partq("publish", "orders", stdin=json_lines([{"value": "x"}, {"value": "y"}]))
    sample = partq.json(*ALTER, "--partitions", 4, "--dry-run")["sample"]
    assert sample == {"messages": 2, "without_key": 2, "keys": 0, "keys_that_move": 0}
    said = partq(*ALTER, "--max-handoff-time", 9, "--dry-run").stdout
    assert said == "max-handoff-time: 3.0 → 9.0\nNothing was changed.\n"
    shown = partq.json(*ALTER, "--max-handoff-time", 9, "--dry-run")
    assert (shown["partitions"], shown["sample"], shown["groups"]) == (None, None, [])
    assert partq(*ALTER, "--partitions", 2, "--dry-run").stdout == "partitions: 2, as it was\nNothing was changed.\n"
    done = partq(*ALTER, "--partitions", 4).stdout
    assert done == "partitions: 2 → 4\nThe queue has no group that could wait for anything.\n"


def test_a_second_change_waits_for_what_is_left_of_the_first(group: Group) -> None:
    group.partq(*TO_8)
    group.partq("publish", "orders", stdin=json_lines([{"key": f"k{number}", "value": "new"} for number in range(40)]))
    (found,) = group.partq.json(*ALTER, "--partitions", 2, "--dry-run")["groups"]
    waits = {each["partition"]: each["waits_for"] for each in found["waits"]}
    assert waits == {0: [2, 4, 6], 1: [3, 5, 7]}
    assert found["messages"] == 78


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


def test_a_checkpoint_that_cannot_be_read_is_counted_from_the_groups_beginning(group: Group) -> None:
    (blob,) = group.partq.store.rglob("checkpoint/1")
    blob.write_bytes(blob.read_bytes().replace(b'"epoch"', b'"epok"'))
    (found,) = group.partq.json(*TO_8, "--dry-run")["groups"]
    assert (found["unreadable_checkpoints"], found["messages"]) == ([1], 40)
    assert "cannot be read" in group.partq(*TO_8, "--dry-run").stdout


def test_coordinators_are_told_if_ownership_is_given(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("partq_spark.group.ownership.Ownership.announce", lambda _, key: told.append(str(key)))
    group.partq(*TO_8, "--dry-run", "--ownership", "store")
    group.partq(*TO_8)
    assert told == []
    group.partq(*ALTER, "--partitions", 2, "--ownership", "store")
    assert told == ["default/orders/_head"]
