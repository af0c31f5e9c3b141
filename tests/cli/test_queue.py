"""`partq queue create`, `list`, `describe`, `alter`, `delete`."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from partq_spark.base import words
from partq_spark.cli import output
from partq_spark.client import describing
from partq_spark.log.admin import create_group, delete_queue
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.objects.register import Register
from tests.cli.conftest import Partq, json_lines

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


# --- create -----------------------------------------------------------------------------------------------------------


def test_create_makes_a_queue_with_its_settings(partq: Partq) -> None:
    made = partq(
        *("queue", "create", "Orders", "--partitions", 4, "--rebalance-delay", 0, "--max-handoff-time", 0.5),
        *("--access-type", "Exclusive", "--max-message-bytes", 1000, "--retention", 3600, "--quota-bytes", 500),
    )
    assert made.stdout == f"Created queue 'orders' (namespace 'default', store {partq.url}) with 4 partitions.\n"
    shown = partq.json("queue", "describe", "orders")
    assert shown["config"] == {
        "rebalance_delay_s": 0,
        "max_handoff_time_s": 0.5,
        "access_type": "exclusive",
        "max_message_bytes": 1000,
        "retention_s": 3600,
        "quota_bytes": 500,
    }
    assert shown["quota_used"] == 0
    assert shown["layout"] == {"generation": 0, "partitions": 4}


def test_create_prints_the_description_as_json(partq: Partq) -> None:
    made = partq.json("queue", "create", "orders", "--partitions", 2)
    assert made["config"]["rebalance_delay_s"] == 5
    assert made["config"]["max_handoff_time_s"] == 3
    assert made["config"]["access_type"] == "non-exclusive"
    assert [each["partition"] for each in made["partitions"]] == [0, 1]


@pytest.mark.parametrize("count", ["0", "1001", "-1", "two", "1.5", "", "٣"])
def test_a_bad_partition_count_is_wrong_use_and_creates_nothing(partq: Partq, count: str) -> None:
    message = partq.misuse("queue", "create", "orders", f"--partitions={count}")
    assert f"partitions={count!r} is not allowed: give a whole number from 1 to 1000" in message
    assert partq.json("queue", "list") == []


def test_the_largest_partition_count_is_allowed(partq: Partq) -> None:
    assert len(partq.json("queue", "create", "wide", "--partitions", 1000)["partitions"]) == 1000
    shown = partq("queue", "describe", "wide").stdout
    assert "… and 936 more partitions: --json shows all" in shown
    assert shown.count("\n") < 100


@pytest.mark.parametrize(
    "setting",
    [
        "--rebalance-delay=-1",
        "--rebalance-delay=nan",
        "--max-handoff-time=soon",
        "--max-handoff-time=1e9",
        "--access-type=shared",
        "--max-message-bytes=0",
        "--max-message-bytes=2000000000",
    ],
)
def test_bad_settings_are_wrong_use(partq: Partq, setting: str) -> None:
    partq.misuse("queue", "create", "orders", "--partitions", 1, setting)
    assert partq.json("queue", "list") == []


def test_a_queue_that_exists_is_left_alone(orders: Partq) -> None:
    before = orders.json("queue", "describe", "orders")
    message = orders.error("queue", "create", "orders", "--partitions", 7)
    assert "exists already with 1 partitions" in message
    assert orders.json("queue", "describe", "orders") == before


# --- list and describe ------------------------------------------------------------------------------------------------


def test_list_shows_all_queues(partq: Partq) -> None:
    assert partq("queue", "list").stdout.startswith(f"No queues in namespace 'default' of {partq.url}. Create one:")
    partq("queue", "create", "b", "--partitions", 3)
    partq("queue", "create", "a", "--partitions", 1)
    partq("publish", "b", stdin='{"value":"x"}\n')
    first, second = partq.json("queue", "list")
    assert (first["queue"], first["partitions"], first["messages"], first["last_published"]) == ("a", 1, 0, None)
    assert (second["queue"], second["partitions"], second["messages"]) == ("b", 3, 1)
    assert TIME.fullmatch(second["last_published"])
    assert TIME.fullmatch(second["created"])
    heading, _, one, two = partq("queue", "list").stdout.splitlines()
    assert heading.split()[:3] == ["queue", "partitions", "messages"]
    assert one.split() == ["a", "1", "0", "never"]
    assert two.split()[:3] == ["b", "3", "1"]


def test_describe_tells_what_is_in_a_queue(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    published = partq.json(
        "publish", "orders", "--publish-id", "one", stdin=json_lines({"key": f"k{i}", "value": "x"} for i in range(50))
    )
    partq("queue", "trim", "orders", "--before-offsets", '{"1": 4}')
    shown = partq.json("queue", "describe", "orders", "--bytes")
    per_partition = {each["partition"]: each["messages"] for each in published["partitions"]}
    assert [(p["partition"], p["earliest"], p["next"], p["messages"]) for p in shown["partitions"]] == [
        (0, 0, per_partition[0], per_partition[0]),
        (1, 4, per_partition[1], per_partition[1] - 4),
    ]
    assert shown["messages"] == 46
    assert shown["writers"] == 1
    assert shown["groups"] == []
    assert shown["last_published"] == published["timestamp"]
    assert TIME.fullmatch(shown["created"])
    stored = sum(path.stat().st_size for path in partq.store.rglob("*.arrow"))
    assert 0 < shown["bytes"] == sum(p["bytes"] for p in shown["partitions"]) < stored
    # The head document is the body as stored; a store on disk wraps it in a few bytes of its own.
    assert 0 <= (partq.store / "default/orders/_head.json").stat().st_size - shown["head"]["bytes"] < 200
    assert shown["log"] == {"entries": 1, "chunks": 0, "slices": 2, "depth": 0}
    assert shown["oldest"] == published["timestamp"]
    assert 0 <= shown["oldest_age_s"] < 600
    assert shown["layouts"] == [{"generation": 0, "partitions": 2, "begin": [0, 0]}]
    assert shown["quota_used"] is None
    assert shown["held_back"] == shown["subscriptions"] == []


def test_describe_is_readable(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines({"value": "x"} for _ in range(1234)))
    text = orders("queue", "describe", "orders").stdout
    for line in (
        r"queue +orders",
        rf"store +{re.escape(orders.url)}",
        r"messages +1,234 in 1 partition",
        r"rebalance delay +5 s",
        r"max handoff time +3 s",
        r"max message +10,000,000 bytes",
        r"groups +none",
        r"held back +nothing",
        r"oldest message +.* UTC, \d+ s ago",
        r"quota +none",
        r"retention +none",
        r"log +1 publish in the head, 0 chunks below it, 1 slice",
        r" +0 +0 +1,234 +1,234 .* █+ *",
    ):
        assert re.search(rf"^{line}$", text, re.MULTILINE), f"{line}\n{text}"


def test_stored_bytes_are_known_without_reading_the_log(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(66):  # the head keeps 64 entries
        orders("publish", "orders", stdin=json_lines([{"value": str(number)}]))
    counted = orders.json("queue", "describe", "orders", "--bytes")
    assert counted["bytes"] == sum(each["bytes"] for each in counted["partitions"]) > 0
    monkeypatch.setattr(describing, "stored_bytes", None)
    shown = orders.json("queue", "describe", "orders")
    assert (shown["log"]["depth"], shown["log"]["chunks"], shown["log"]["slices"]) == (1, 1, 66)
    assert shown["bytes"] == counted["bytes"]
    assert shown["partitions"][0]["bytes"] is None


def test_describe_says_how_full_the_queue_is_and_what_holds_it_back(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines({"value": "x"} for _ in range(30)))
    create_group(QueueLog(open_store(orders.url), "default", "orders"), "billing", [12])
    create_group(QueueLog(open_store(orders.url), "default", "orders"), "audit", [30])
    stored = orders.json("queue", "describe", "orders")["bytes"]
    orders("queue", "alter", "orders", "--quota-bytes", 2 * stored, "--retention", 86400)
    shown = orders.json("queue", "describe", "orders")
    assert shown["held_back"] == [{"group": "billing", "partition": 0, "offset": 12, "messages": 18, "for_ever": False}]
    assert shown["quota_used"] == 0.5
    text = orders("queue", "describe", "orders").stdout
    assert re.search(r"^quota +.*, 50% used$", text, re.MULTILINE)
    assert re.search(r"^retention +86400 s$", text, re.MULTILINE)
    assert "group billing needs 18 messages in partition 0, from offset 12\n" in text


def test_a_damaged_head_is_named(orders: Partq) -> None:
    head = orders.store / "default/orders/_head.json"
    head.write_bytes(head.read_bytes().replace(b'"partitions"', b'"partitionz"').replace(b"orders", b"borders", 1))
    assert "default/orders/_head.json" in orders.error("queue", "describe", "orders")
    assert "default/orders/_head.json" in orders.error("queue", "list")


def test_a_damaged_head_hides_no_other_queue(partq: Partq) -> None:
    for name in ("a", "b", "c"):
        partq("queue", "create", name, "--partitions", 1)
    (partq.store / "default/b/_head.json").write_bytes(b"{}")
    shown = partq("queue", "list", code=1)
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == ["a", "b", "c"]
    assert [line.split()[1] for line in shown.stdout.splitlines()[2:]] == ["1", "damaged", "1"]
    assert "default/b/_head.json" in shown.stderr
    listed = json.loads(partq("queue", "list", "--json", code=1).stdout)
    assert [(each["queue"], each.get("partitions")) for each in listed] == [("a", 1), ("b", None), ("c", 1)]
    assert "default/b/_head.json" in listed[1]["error"]


@pytest.mark.conformance("OBS-06")
def test_a_damaged_queue_stops_no_topic_and_can_be_deleted(partq: Partq) -> None:
    for name in ("a", "b", "c"):
        partq("queue", "create", name, "--partitions", 1)
        partq("queue", "subscribe", name, "sales/>")
    (partq.store / "default/b/_head.json").write_bytes(b"{}")
    partq("publish", "--topic", "sales/eu", stdin=json_lines([{"value": "x"}]))
    assert partq.messages("a") == partq.messages("c") == [(None, "x")]

    shown = partq("queue", "subscriptions", code=1)
    assert shown.stdout == "a  sales/>\nc  sales/>\n"
    assert "queue 'b' attracts nothing until it is restored: " in shown.stderr
    listed = json.loads(partq("queue", "subscriptions", "--json", code=1).stdout)
    assert [each["queue"] for each in listed] == ["a", "c", "b"]
    assert "default/b/_head.json" in listed[2]["error"]

    asked = partq.misuse("queue", "delete", "b")
    assert "default/b/_head.json" in asked
    assert "--yes" in asked
    assert partq("queue", "delete", "b", "--yes").stdout.startswith("Deleted queue 'b'")
    assert [each["queue"] for each in partq.json("queue", "list")] == ["a", "c"]
    partq("queue", "create", "b", "--partitions", 1)


def test_folders_of_others_are_no_queues(orders: Partq) -> None:
    for foreign in ("Copy of orders", "ORDERS"):
        shutil.copytree(orders.store / "default/orders", orders.store / "default" / foreign)
    assert [each["queue"] for each in orders.json("queue", "list")] == ["orders"]
    assert orders.json("queue", "subscriptions") == []


@pytest.mark.timeout(20)
def test_a_head_that_is_a_pipe_is_not_waited_for(orders: Partq) -> None:
    head = orders.store / "default/orders/_head.json"
    head.unlink()
    os.mkfifo(head)
    assert "default/orders/_head.json" in orders.error("queue", "describe", "orders")
    assert "default/orders/_head.json" in orders.error("queue", "list")


# --- alter ------------------------------------------------------------------------------------------------------------


def test_alter_changes_what_is_given_and_nothing_else(orders: Partq) -> None:
    done = orders("queue", "alter", "orders", "--rebalance-delay", 0, "--max-handoff-time", 3)
    assert done.stdout == "rebalance-delay: 5.0 → 0.0\nmax-handoff-time: 3.0, as it was\n"
    shown = orders.json("queue", "alter", "orders", "--max-message-bytes", 100)
    assert shown["config"] == {
        "rebalance_delay_s": 0,
        "max_handoff_time_s": 3,
        "access_type": "non-exclusive",
        "max_message_bytes": 100,
        "retention_s": None,
        "quota_bytes": None,
    }
    assert "the queue takes 100" in orders.error("publish", "orders", stdin=json_lines([{"value": "x" * 101}]))


def test_alter_refuses_what_it_cannot_do(orders: Partq) -> None:
    assert "nothing to alter" in orders.misuse("queue", "alter", "orders")
    orders.misuse("queue", "alter", "orders", "--max-message-bytes", 0)


def test_retention_and_quota_are_set_and_taken_away(orders: Partq) -> None:
    done = orders("queue", "alter", "orders", "--retention", 60, "--quota-bytes", 1000)
    assert set(done.stdout.splitlines()) == {"retention: none → 60.0", "quota-bytes: none → 1000"}
    assert orders("queue", "alter", "orders", "--retention", "None").stdout == "retention: 60.0 → none\n"
    config = orders.json("queue", "alter", "orders", "--quota-bytes", "none")["config"]
    assert (config["retention_s"], config["quota_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--retention", "0", "retention=0.0 is not allowed: give seconds from 1 to"),
        ("--retention", "nan", "retention=nan is not allowed"),
        ("--retention", "a day", "retention='a day' is not allowed: give seconds, as in 86400, or none"),
        ("--quota-bytes", "0", "quota-bytes=0 is not allowed: give bytes from 1 to"),
        ("--quota-bytes", "1.5", "quota-bytes='1.5' is not allowed: give a whole number of bytes, or none"),
        ("--quota-bytes", "9" * 30, "is not allowed: give bytes from 1 to"),
    ],
)
def test_a_bad_retention_or_quota_is_wrong_use(orders: Partq, option: str, value: str, said: str) -> None:
    assert said in " ".join(orders.misuse("queue", "alter", "orders", option, value).split())
    assert said in " ".join(orders.misuse("queue", "create", "other", "--partitions", 1, option, value).split())


def test_two_who_alter_different_settings_both_succeed(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second alters between the first's read and swap."""
    swap = Register.swap
    calls: list[object] = []

    def disturbed(register: Register[object], head: object) -> None:
        if not calls:
            calls.append(head)
            orders("queue", "alter", "orders", "--rebalance-delay", 1)
        swap(register, head)

    monkeypatch.setattr(Register, "swap", disturbed)
    orders("queue", "alter", "orders", "--max-handoff-time", 9)
    assert calls
    config = orders.json("queue", "describe", "orders")["config"]
    assert (config["rebalance_delay_s"], config["max_handoff_time_s"]) == (1, 9)


# --- delete -----------------------------------------------------------------------------------------------------------


def test_delete_without_yes_explains_and_deletes_nothing(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines({"value": "x"} for _ in range(3)))
    message = orders.misuse("queue", "delete", "orders")
    assert "this would delete queue 'orders'" in message
    assert "3 messages in 1 partition" in message
    assert message.endswith("Add --yes to do so.")
    assert orders.json("queue", "list")[0]["messages"] == 3


def test_delete_leaves_nothing(orders: Partq) -> None:
    orders("publish", "orders", stdin='{"value":"x"}\n')
    assert orders.json("queue", "delete", "orders", "--yes") == {"queue": "orders", "deleted": True, "objects": 2}
    assert [path for path in orders.store.rglob("*") if path.is_file() and not path.name.startswith(".")] == []
    assert "does not exist" in orders.error("queue", "delete", "orders", "--yes")
    assert "does not exist" in orders.error("queue", "delete", "orders")
    orders("queue", "create", "orders", "--partitions", 2)
    assert orders.browse("orders") == []


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(orders: Partq, tmp_path: Path) -> None:
    orders("publish", "orders", stdin='{"value":"x"}\n')
    (orders.store / "default/orders/_head.json").unlink()
    assert orders("queue", "delete", "orders", "--yes").stdout.startswith("Removed what was left of queue 'orders'")
    assert list(orders.store.rglob("*.arrow")) == []


def test_delete_tells_people_what_is_gone(orders: Partq) -> None:
    text = orders("queue", "delete", "orders", "--yes").stdout
    assert text == (
        f"Deleted queue 'orders' (namespace 'default', store {orders.url}): 0 messages in 1 partition, 1 object.\n"
    )


def test_an_alteration_of_a_queue_deleted_meanwhile_is_refused(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = Register.swap
    calls: list[object] = []

    def disturbed(register: Register[object], head: object) -> None:
        if not calls:
            calls.append(head)
            delete_queue(QueueLog(open_store(orders.url), "default", "orders"))
        swap(register, head)

    monkeypatch.setattr(Register, "swap", disturbed)
    assert "has been deleted" in orders.error("queue", "alter", "orders", "--rebalance-delay", 1)


# --- words and numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234, "1.2 kB"),
        (999_600, "1.0 MB"),
        (138_000_000, "138 MB"),
        (5 * 10**12, "5.0 TB"),
    ],
)
def test_sizes_are_short(count: int, shown: str) -> None:
    assert words.size(count) == shown


def test_text_gives_way_where_a_table_is_too_wide_the_longest_first() -> None:
    assert output.fitted([5, 100, 30], 80) == [5, 45, 30]
    assert output.fitted([5, 100, 90], 60) == [5, 27, 28]
    assert output.fitted([100, 100], 10) == [12, 12]
    assert output.fitted([5, 7], 80) == [5, 7]
    assert output.fitted([], 80) == []


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", "plain"),
        ("航班".encode(), "航班"),
        (b"a\nb\tc", r"a\nb\tc"),
        (b"\x1b[31mred", r"\x1b[31mred"),
        ("a\u202eb".encode(), r"a\u202eb"),
        (b"\xff\x00", "0xff00"),
        (b"x" * 500, "x" * 400 + "…"),
        (b"x" * 399 + "é".encode() * 9, "x" * 399 + "…"),
    ],
)
def test_what_is_browsed_cannot_steer_a_terminal(data: bytes, shown: str) -> None:
    assert words.readable(data) == shown


def test_json_documents_are_one_line_each(orders: Partq) -> None:
    for command in (["queue", "list"], ["queue", "describe", "orders"], ["queue", "collect", "orders"]):
        text = orders(*command, "--json").stdout
        assert text.endswith("\n")
        assert text.count("\n") == 1
        json.loads(text)


def test_files_of_others_do_not_stop_a_deletion(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines([{"value": "x"}]))
    (segments,) = (orders.store / "default/orders/_segments").iterdir()
    (segments / "! notes.txt").write_text("somebody else's")
    (segments.parent / "Copy of all").mkdir()
    (segments.parent / "Copy of all/x.arrow").write_text("somebody else's")
    assert orders.json("queue", "delete", "orders", "--yes")["objects"] == 2
    left = [path.name for path in (orders.store / "default/orders").rglob("*") if path.is_file()]
    assert sorted(set(left) - {".lock"}) == ["! notes.txt", "x.arrow"]
    assert "does not exist" in orders.error("queue", "delete", "orders", "--yes"), "nothing of ours is left"
