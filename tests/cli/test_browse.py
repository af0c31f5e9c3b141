"""`partq browse`: what it shows, in which order, and that it reads no more than that."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from tests.support.command_line import Partq, json_lines


@pytest.fixture
def filled(partq: Partq) -> Partq:
    """Three partitions, four publishes of 30 messages each; the values count up."""
    partq("queue", "create", "orders", "--partitions", 3)
    for first in range(0, 120, 30):
        rows = ({"key": f"k{i}", "value": str(i)} for i in range(first, first + 30))
        partq("publish", "orders", stdin=json_lines(rows))
    return partq


def test_messages_come_merged_by_time_or_of_one_partition_from_an_offset_on(filled: Partq) -> None:
    before = filled.json("queue", "describe", "orders")
    found = filled.browse("orders")
    assert filled.json("queue", "describe", "orders") == {**before, "oldest_age_s": ANY}, "nothing was taken"
    times = [each["timestamp"] for each in found]
    assert times == sorted(times)
    assert (len(found), len(set(times))) == (120, 4)
    assert {each["partition"] for each in found[:30]} == {0, 1, 2}
    # The first N of all are the first N of any larger number, and 20 unless more are asked for.
    assert filled.browse("orders", "--limit", 33) == found[:33]
    assert len(filled("browse", "orders", "--json").stdout.splitlines()) == 20
    assert filled.browse("orders", "--from", 30) == [each for each in found if each["offset"] >= 30]
    some = [each for each in found if each["partition"] == 1]
    assert [each["offset"] for each in some] == list(range(len(some)))
    one = ("orders", "--partition", 1)
    assert filled.browse(*one) == some
    assert filled.browse(*one, "--from", 5, "--limit", 3) == some[5:8]
    assert filled.browse(*one, "--from", len(some)) == filled.browse(*one, "--from", 10**12) == []
    filled("queue", "trim", "orders", "--before-offsets", '{"1": 5}')
    assert filled.browse(*one, "--from", 2, "--limit", 1) == some[5:6]


def test_only_the_slices_that_are_shown_are_read_and_one_that_is_damaged_is_named(filled: Partq) -> None:
    """All segments but the last are damaged, which nobody notices who looks at that one."""
    last = filled.json("queue", "describe", "orders")["partitions"][1]["next"] - 1
    (found,) = filled.browse("orders", "--partition", 1, "--from", last)
    segments = sorted(filled.store.rglob("*.arrow"), key=lambda path: path.name)
    for segment in segments[:-1]:
        segment.chmod(0o600)
        segment.write_bytes(b"\0" * segment.stat().st_size)
    assert filled.browse("orders", "--partition", 1, "--from", last) == [found]
    assert f"{segments[0].name} is damaged" in filled.error("browse", "orders", "--limit", 1)


def test_the_table_shows_one_message_per_line_as_wide_as_there_is_room(orders: Partq) -> None:
    rows = [{"key": "a", "value": "line\nend"}, {"value": "//8=", "value_encoding": "base64"}, {"value": "x" * 300}]
    orders("publish", "orders", stdin=json_lines(rows))
    lines = orders("browse", "orders", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split(maxsplit=5)[-1].strip() for line in lines[2:4]] == [r"line\nend", "0xffff"]
    assert lines[4].rstrip().endswith("x…")
    assert "x" * 300 in orders("browse", "orders", COLUMNS="400").stdout


def test_an_empty_queue_says_so(orders: Partq) -> None:
    where = f"queue 'orders' (namespace 'default', store {orders.url})"
    assert orders("browse", "orders").stdout == f"No messages of {where}.\n"
    orders("publish", "orders", stdin='{"value":"b"}\n')
    assert orders("browse", "orders", "--from", 1).stdout == f"No messages of {where} from there on; 1 before.\n"
    text = orders("browse", "orders", "--partition", 0, "--from", 9).stdout
    assert text == f"No messages in partition 0 of {where} from there on; 1 before.\n"
