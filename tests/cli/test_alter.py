"""`partq queue alter --partitions`, its dry run, and how coordinators hear of it."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.client import resizing
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey, Owner
from partq_spark.group.ownership import HEAD, open_ownership
from partq_spark.log.admin import create_group
from partq_spark.log.partitioner import partition_of
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.cli.conftest import Partq, json_lines

KEYS = [f"key{number}" for number in range(40)]


@pytest.fixture
def loaded(partq: Partq) -> Partq:
    """A queue of 4 partitions with one message of every key, and a group that has acknowledged two of partition 1."""
    partq("queue", "create", "orders", "--partitions", 4)
    partq("publish", "orders", stdin=json_lines([{"key": key, "value": key} for key in KEYS]))
    queue = queue_of(partq)
    create_group(queue, "billing", [0, 0, 0, 0])
    checkpoints = lifecycle.checkpoints_of(queue, "billing")
    owner = Owner("flow", "instance")
    made = checkpoints.fence(1, to=owner, epoch=1, start=0, delivered=None)
    checkpoints.update_checkpoint(made, 2)
    return partq


def queue_of(partq: Partq) -> QueueLog:
    return QueueLog(open_store(partq.url), "default", "orders")


def sizes(partq: Partq) -> list[int]:
    """Messages in each partition."""
    return [sum(partition_of(key.encode(), 4) == p for key in KEYS) for p in range(4)]


# --- altering ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-01")
def test_the_number_of_partitions_changes_and_what_waits_is_said(loaded: Partq) -> None:
    left = sum(sizes(loaded)) - 2
    done = loaded("queue", "alter", "orders", "--partitions", 8, "--rebalance-delay", 1).stdout
    assert done.startswith("partitions: 4 → 8\nrebalance-delay: 5.0 → 1.0\n")
    assert f"Group 'billing' has {left} messages from before the change to acknowledge in 4 partitions:" in done
    assert "What comes to partition 4 waits for partition 0." in done
    assert loaded.json("queue", "describe", "orders")["layout"] == {"generation": 1, "partitions": 8}
    again = loaded("queue", "alter", "orders", "--partitions", 8).stdout
    assert again == "partitions: 8, as it was\n"


def test_messages_published_before_and_after_are_all_there(loaded: Partq) -> None:
    loaded("queue", "alter", "orders", "--partitions", 3)
    loaded("publish", "orders", stdin=json_lines([{"key": key, "value": "new"} for key in KEYS]))
    found = loaded.browse("orders")
    assert len(found) == 80
    assert {each["partition"] for each in found if each["value"] == "new"} <= {0, 1, 2}
    assert [each["partition"] for each in found if each["value"] == "key0"] == [partition_of(b"key0", 4)]


def test_without_groups_nothing_waits(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    done = partq("queue", "alter", "orders", "--partitions", 2).stdout
    assert done == "partitions: 4 → 2\nThe queue has no group that could wait for anything.\n"


def test_json_is_the_queue_and_what_comes_first(loaded: Partq) -> None:
    shown = loaded.json("queue", "alter", "orders", "--partitions", 8)
    (group,) = shown.pop("groups_first")
    described = loaded.json("queue", "describe", "orders")
    assert {name: described[name] for name in ("layout", "config", "partitions")} == {
        name: shown[name] for name in ("layout", "config", "partitions")
    }
    assert group["group"] == "billing"
    assert group["messages"] == sum(sizes(loaded)) - 2
    assert {each["partition"]: each["waits_for"] for each in group["waits"]} == {4: [0], 5: [1], 6: [2], 7: [3]}
    assert "groups_first" not in loaded.json("queue", "alter", "orders", "--max-handoff-time", 1)


@pytest.mark.parametrize("count", ["0", "-1", "1001", "many", "2.5", "", "1e3", "99999999999999999999"])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_numbers_that_are_none_are_wrong_use(loaded: Partq, count: str, dry_run: tuple[str, ...]) -> None:
    before = queue_of(loaded).refresh()
    message = loaded.misuse("queue", "alter", "orders", f"--partitions={count}", *dry_run)
    assert "--partitions" in message
    assert "whole number from 1 to 1000" in message
    assert queue_of(loaded).refresh() == before


def test_nothing_to_alter_is_wrong_use_also_for_a_dry_run(loaded: Partq) -> None:
    assert "nothing to alter: give --partitions" in loaded.misuse("queue", "alter", "orders")
    assert "nothing to alter: give --partitions" in loaded.misuse("queue", "alter", "orders", "--dry-run")


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_an_absent_queue_and_too_many_counts_are_refused_with_what_to_do(
    loaded: Partq, dry_run: tuple[str, ...]
) -> None:
    assert "does not exist" in loaded.error("queue", "alter", "other", "--partitions", 2, *dry_run)
    for number in range(31):
        loaded("queue", "alter", "orders", "--partitions", 5 + number % 2)
        loaded("publish", "orders", stdin=json_lines([{"key": "a", "value": "b"}]))
    refused = loaded.error("queue", "alter", "orders", "--partitions", 4, *dry_run)
    assert "partq queue trim orders --before-offsets" in refused
    assert queue_of(loaded).refresh().partitions == 5


def test_a_change_counts_as_done_though_checkpoints_cannot_be_read(
    loaded: Partq, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: CheckpointStore) -> None:
        raise Unavailable("no answer (test)")

    monkeypatch.setattr(CheckpointStore, "list_readable", down)
    done = loaded("queue", "alter", "orders", "--partitions", 8)
    assert done.stdout == "partitions: 4 → 8\n"
    assert "was altered" in done.stderr
    assert loaded.json("queue", "alter", "orders", "--partitions", 2)["groups_first"] is None
    assert "no answer" in loaded.error("queue", "alter", "orders", "--partitions", 4, "--dry-run")
    assert queue_of(loaded).refresh().partitions == 2


# --- the dry run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_comes_moves_and_waits_and_writes_nothing(loaded: Partq) -> None:
    files = {path: path.stat().st_mtime_ns for path in loaded.store.rglob("*")}
    moving = sum(partition_of(key.encode(), 4) != partition_of(key.encode(), 8) for key in KEYS)
    said = loaded("queue", "alter", "orders", "--partitions", 8, "--retention", 60, "--dry-run").stdout
    assert said.startswith("retention: none → 60.0\npartitions: 4 → 8\nNew: partitions 4-7.\nOf 40 keys in a sample ")
    assert f"(the newest of every partition, 40 messages) {moving} would change partition" in said
    assert "What comes to partition 4 would wait for partition 0." in said
    assert said.endswith("Nothing was changed.\n")
    assert {path: path.stat().st_mtime_ns for path in loaded.store.rglob("*")} == files

    shown = loaded.json("queue", "alter", "orders", "--partitions", 3, "--retention", 60, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in loaded.store.rglob("*")} == files
    assert shown["dry_run"] is True
    assert shown["settings"] == [{"setting": "retention_s", "from": None, "to": 60}]
    assert shown["partitions"] == {"from": 4, "to": 3, "new": [], "removed": [3]}
    (group,) = shown["groups"]
    first = {each["partition"]: (each["acknowledged"], each["end"], each["messages"]) for each in group["first"]}
    assert first == {
        p: (done, size, size - done) for p, (done, size) in enumerate(zip([0, 2, 0, 0], sizes(loaded), strict=True))
    }
    assert {each["partition"]: each["waits_for"] for each in group["waits"]} == {
        0: [1, 2, 3],
        1: [0, 2, 3],
        2: [0, 1, 3],
    }, "counts without a common divisor"


def test_a_dry_run_of_settings_alone_and_of_the_present_number(loaded: Partq) -> None:
    said = loaded("queue", "alter", "orders", "--max-handoff-time", 9, "--dry-run").stdout
    assert said == "max-handoff-time: 3.0 → 9.0\nNothing was changed.\n"
    shown = loaded.json("queue", "alter", "orders", "--max-handoff-time", 9, "--dry-run")
    assert (shown["partitions"], shown["sample"], shown["groups"]) == (None, None, [])
    said = loaded("queue", "alter", "orders", "--partitions", 4, "--dry-run").stdout
    assert said == "partitions: 4, as it was\nNothing was changed.\n"


def test_a_second_change_waits_for_what_is_left_of_the_first(loaded: Partq) -> None:
    loaded("queue", "alter", "orders", "--partitions", 8)
    loaded("publish", "orders", stdin=json_lines([{"key": key, "value": "new"} for key in KEYS]))
    (group,) = loaded.json("queue", "alter", "orders", "--partitions", 2, "--dry-run")["groups"]
    waits = {each["partition"]: each["waits_for"] for each in group["waits"]}
    assert waits == {0: [2, 4, 6], 1: [3, 5, 7]}
    assert group["messages"] == 78


def test_messages_without_a_key_and_an_empty_queue_have_no_keys_to_move(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    assert "There are no keys to look at." in partq("queue", "alter", "orders", "--partitions", 4, "--dry-run").stdout
    partq("publish", "orders", stdin=json_lines([{"value": "x"}, {"value": "y"}]))
    sample = partq.json("queue", "alter", "orders", "--partitions", 4, "--dry-run")["sample"]
    assert sample == {"messages": 2, "without_key": 2, "keys": 0, "keys_that_move": 0}


def test_the_sample_is_bounded_and_of_the_newest(loaded: Partq) -> None:
    loaded("publish", "orders", stdin=json_lines([{"key": "hot", "value": "x"} for _ in range(200)]))
    sample = resizing.planned_resize(queue_of(loaded), 8, sample_messages=20).sample
    assert sample.messages == 20
    assert sample.keys < 10
    assert resizing.planned_resize(queue_of(loaded), 8, sample_messages=20, sample_bytes=1).sample.messages < 20


def test_a_checkpoint_that_cannot_be_read_is_counted_from_the_groups_beginning(loaded: Partq) -> None:
    (blob,) = loaded.store.rglob("checkpoint/1")
    blob.write_bytes(blob.read_bytes().replace(b'"epoch"', b'"epok"'))
    (group,) = loaded.json("queue", "alter", "orders", "--partitions", 8, "--dry-run")["groups"]
    assert group["unreadable_checkpoints"] == [1]
    assert group["messages"] == 40
    assert "cannot be read" in loaded("queue", "alter", "orders", "--partitions", 8, "--dry-run").stdout


# --- coordinators -----------------------------------------------------------------------------------------------------


def test_coordinators_are_told_if_ownership_is_given(loaded: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[GroupKey] = []
    kind = type(open_ownership("store", store=open_store(loaded.url)))
    monkeypatch.setattr(kind, "announce", lambda _, key: told.append(key))
    loaded("queue", "alter", "orders", "--partitions", 8, "--dry-run", "--ownership", "store")
    loaded("queue", "alter", "orders", "--partitions", 8)
    assert told == []
    loaded("queue", "alter", "orders", "--partitions", 2, "--ownership", "store")
    assert told == [GroupKey("default", "orders", HEAD)]
