"""`partq browse`: what it shows, in which order, and that it reads no more than that."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import ANY

import pytest

from partq_spark.log.model import Slice
from partq_spark.log.segment import read_slice
from tests.cli.conftest import Partq, json_lines


@pytest.fixture
def filled(partq: Partq) -> Partq:
    """Three partitions, four publishes of 30 messages each; the values count up."""
    partq("queue", "create", "orders", "--partitions", 3)
    for first in range(0, 120, 30):
        partq(
            "publish", "orders", stdin=json_lines({"key": f"k{i}", "value": str(i)} for i in range(first, first + 30))
        )
    return partq


def lines(partq: Partq, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in partq("browse", "orders", "--json", *arguments).stdout.splitlines()]


def test_twenty_messages_are_shown_unless_more_are_asked_for(filled: Partq) -> None:
    assert len(lines(filled)) == 20
    assert len(lines(filled, "--limit", 7)) == 7
    assert len(lines(filled, "--limit", 1000)) == 120


def test_a_json_line_is_a_whole_message(orders: Partq) -> None:
    orders("publish", "orders", stdin='{"key":"航班","value":"text","headers":{"h":"1"}}\n{"value":{"a":1}}\n')
    first, second = lines(orders)
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": second["timestamp"],
        "key": "航班",
        "value": "text",
        "headers": [{"key": "h", "value": "1"}],
    }
    assert second == {**first, "offset": 1, "key": None, "value": '{"a":1}', "headers": None}


def test_all_partitions_come_merged_by_time(filled: Partq) -> None:
    found = lines(filled, "--limit", 120)
    times = [each["timestamp"] for each in found]
    assert times == sorted(times)
    assert len(set(times)) == 4
    assert {each["partition"] for each in found[:30]} == {0, 1, 2}
    for partition in range(3):
        offsets = [each["offset"] for each in found if each["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    # The first N of all are the first N of any larger number.
    assert lines(filled, "--limit", 33) == found[:33]


def test_one_partition_from_an_offset(filled: Partq) -> None:
    everything = [each for each in lines(filled, "--limit", 120) if each["partition"] == 1]
    assert lines(filled, "--partition", 1, "--limit", 120) == everything
    assert lines(filled, "--partition", 1, "--from", 5, "--limit", 3) == everything[5:8]
    assert lines(filled, "--partition", 1, "--from", len(everything)) == []
    assert lines(filled, "--partition", 1, "--from", 10**12) == []


def test_an_offset_without_a_partition_holds_for_each(filled: Partq) -> None:
    found = lines(filled, "--from", 30, "--limit", 120)
    assert found == [each for each in lines(filled, "--limit", 120) if each["offset"] >= 30]


def test_what_was_trimmed_is_not_shown(filled: Partq) -> None:
    filled("queue", "trim", "orders", "--before-offsets", '{"1": 5}')
    assert lines(filled, "--partition", 1, "--from", 2, "--limit", 1)[0]["offset"] == 5


def test_browsing_takes_nothing(filled: Partq) -> None:
    before = filled.json("queue", "describe", "orders")
    assert lines(filled) == lines(filled)
    assert filled.json("queue", "describe", "orders") == {**before, "oldest_age_s": ANY}


@pytest.mark.parametrize(
    "arguments", [["--partition", "3"], ["--partition", "-1"], ["--from", "-1"], ["--limit", "0"], ["--limit", "x"]]
)
def test_places_that_do_not_exist(filled: Partq, arguments: list[str]) -> None:
    if arguments == ["--partition", "3"]:
        assert "has partitions 0 to 2, there is no 3" in filled.error("browse", "orders", *arguments)
    else:
        filled.misuse("browse", "orders", *arguments)


def test_only_the_slices_that_are_shown_are_read(filled: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Slice] = []

    def counted(store: Any, name: str, piece: Slice, *how: Any, **more: Any) -> Any:
        read.append(piece)
        return read_slice(store, name, piece, *how, **more)

    monkeypatch.setattr("partq_spark.log.reading.read_slice", counted)
    last = filled.json("queue", "describe", "orders")["partitions"][1]["next"] - 1
    assert lines(filled, "--partition", 1, "--from", last)[0]["offset"] == last
    assert [(piece.partition, piece.end) for piece in read] == [(1, last + 1)]
    read.clear()
    lines(filled, "--limit", 1)
    assert len(read) == 1


def test_a_damaged_segment_is_named(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines([{"value": "x" * 100}]))
    (segment,) = orders.store.rglob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    message = orders.error("browse", "orders")
    assert segment.name in message
    assert "is damaged" in message


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_shows_one_message_per_line(orders: Partq) -> None:
    rows = [
        {"key": "a", "value": "line\nend \u001b[31m"},
        {"value": "//8=", "value_encoding": "base64"},
        {"key": "", "value": ""},
        {"key": "long", "value": "x" * 1000},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    heading, rule, *shown = orders("browse", "orders", COLUMNS="80").stdout.splitlines()
    assert heading.split() == ["partition", "offset", "published", "(UTC)", "key", "value"]
    assert set(rule) == {"─"}
    cells = [line.rstrip().split(maxsplit=4) for line in shown]
    assert [cell[:2] for cell in cells] == [["0", str(i)] for i in range(4)]
    assert cells[0][4].split(maxsplit=1) == ["a", r"line\nend \x1b[31m"]
    assert cells[1][4].split() == ["null", "0xffff"]
    assert cells[2][4].split() == ['""', '""']
    assert shown[3].rstrip().endswith("x…")
    assert max(map(len, [heading, rule, *shown])) <= 80


def test_a_wide_terminal_shows_more(orders: Partq) -> None:
    orders("publish", "orders", stdin=json_lines([{"key": "k", "value": "x" * 300}]))
    narrow = orders("browse", "orders", COLUMNS="80").stdout
    wide = orders("browse", "orders", COLUMNS="160").stdout
    assert narrow.count("x") < 40
    assert 100 < wide.count("x") < 160
    assert "x" * 300 in orders("browse", "orders", COLUMNS="400").stdout


def test_headers_have_a_column_only_where_there_are_any(orders: Partq) -> None:
    orders("publish", "orders", stdin='{"value":"a"}\n')
    assert "headers" not in orders("browse", "orders").stdout
    orders("publish", "orders", stdin='{"value":"b","headers":{"trace":"1","none":null}}\n')
    text = orders("browse", "orders").stdout
    assert text.splitlines()[0].rstrip().endswith("headers")
    assert "trace=1, none=null" in text


def test_an_empty_queue_says_so(orders: Partq) -> None:
    where = f"queue 'orders' (namespace 'default', store {orders.url})"
    assert orders("browse", "orders").stdout == f"No messages of {where}.\n"
    assert orders("browse", "orders", "--json").stdout == ""
    orders("publish", "orders", stdin='{"value":"b"}\n')
    assert orders("browse", "orders", "--from", 1).stdout == f"No messages of {where} from there on; 1 before.\n"
    text = orders("browse", "orders", "--partition", 0, "--from", 9).stdout
    assert text == f"No messages in partition 0 of {where} from there on; 1 before.\n"
