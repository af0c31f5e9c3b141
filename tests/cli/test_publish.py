"""`partq publish` from standard input: what its lines become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Partq, json_lines, nothing_is_published


def test_standard_input_is_json_lines(orders: Partq) -> None:
    rows = [{"key": "a", "value": "text"}, {"key": None, "value": ""}, {"value": "x"}, {"key": "", "value": "y"}]
    done = orders("publish", "orders", stdin=json_lines(rows))
    assert done.stdout.startswith("Published 4 messages from standard input to queue 'orders'")
    assert "2 messages without a key went to random partitions." in done.stdout
    assert orders.messages("orders") == [("a", "text"), (None, ""), (None, "x"), ("", "y")]


@pytest.mark.parametrize(
    ("value", "published"),
    [
        ({"b": 1, "a": [1.5, None, "é"]}, '{"b":1,"a":[1.5,null,"é"]}'),
        ([1, 2], "[1,2]"),
        (17, "17"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
        ({}, "{}"),
        ("naïve \u2028\u2029\x85 \U0001f6e9", "naïve \u2028\u2029\x85 \U0001f6e9"),
    ],
)
def test_a_value_that_is_no_string_becomes_compact_json(orders: Partq, value: object, published: str) -> None:
    orders("publish", "orders", stdin=json_lines([{"value": value}]))
    assert orders.messages("orders") == [(None, published)]


@pytest.mark.parametrize(
    ("key", "text"), [(17, "17"), (-2.5, "-2.5"), (10**20, "1" + "0" * 20), (True, "true"), ("é", "é")]
)
def test_a_number_as_key_becomes_its_text(orders: Partq, key: object, text: str) -> None:
    orders("publish", "orders", stdin=json_lines([{"key": key, "value": "x"}]))
    assert orders.messages("orders") == [(text, "x")]


@pytest.mark.parametrize(
    "number",
    ["123456789012345678901234567890.123", "1.50", "1e5", "0.1000000000000000055511151231257827", "-0.0", "1.5"],
)
def test_a_number_keeps_its_text(orders: Partq, number: str) -> None:
    line = (
        f'{{"key": {number}, "value": {{"n": [{number}, {{"é": {number}}}], "s": "x"}}, "headers": {{"h": {number}}}}}'
    )
    orders("publish", "orders", stdin=line)
    (found,) = orders.browse("orders")
    assert (found["key"], found["value"]) == (number, f'{{"n":[{number},{{"é":{number}}}],"s":"x"}}')
    assert [each["value"] for each in found["headers"]] == [number]


def test_headers_are_an_object_or_a_list(orders: Partq) -> None:
    rows = [
        {"value": "a", "headers": {"trace": "1", "empty": None}},
        {
            "value": "b",
            "headers": [{"key": "raw", "value": "//8=", "value_encoding": "base64"}, {"key": "t", "value": "x"}],
        },
        {"value": "c", "headers": []},
        {"value": "d"},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    assert [each["headers"] for each in orders.browse("orders")] == [
        [{"key": "trace", "value": "1"}, {"key": "empty", "value": None}],
        [{"key": "raw", "value": "//8=", "value_encoding": "base64"}, {"key": "t", "value": "x"}],
        [],
        None,
    ]


def test_what_browse_prints_can_be_published_again(orders: Partq) -> None:
    rows = [
        {"key": "a", "value": "text\n\u0000", "headers": {"h": "1"}},
        {"value": "/wA=", "value_encoding": "base64"},
        {"key": "b", "value": "text", "value_encoding": "text"},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    orders("queue", "create", "copy", "--partitions", 1)
    orders("publish", "copy", stdin=orders("browse", "orders", "--json").stdout)

    def contents(queue: str) -> list[dict[str, Any]]:
        return [{name: each[name] for name in each if name != "timestamp"} for each in orders.browse(queue)]

    assert contents("copy") == contents("orders")
    assert contents("copy")[1]["value_encoding"] == "base64"


def test_blank_lines_a_missing_last_line_end_and_a_byte_order_mark_do_no_harm(orders: Partq) -> None:
    orders("publish", "orders", stdin=b'\xef\xbb\xbf{"value":"a"}\r\n\n  \n{"value":"b"}')
    assert orders.messages("orders") == [(None, "a"), (None, "b")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "is no JSON (Expecting value: line 1 column 1 (char 0)): write one object per line"),
        ('{"value": NaN}', "is no JSON (NaN is no JSON number)"),
        ('{"value": "a"} {"value": "b"}', "is no JSON (Extra data"),
        ('{"value": "a", "value": "b"}', "is no JSON (the name 'value' is there twice in one object: keep one)"),
        ('{"value": {"a": 1, "a": 2}}', "is no JSON (the name 'a' is there twice in one object: keep one)"),
        ('{"value": "a", "headers": {"h": "1", "h": "2"}}', "is no JSON (the name 'h' is there twice"),
        ('[{"value": "a"}]', "is a JSON array: write one object per line, for example with `jq -c '.[]'`"),
        ('"a"', "is no JSON object"),
        ('{"key": "a"}', "has no value: every message needs one"),
        ('{"key": "a", "value": null}', "has no value: every message needs one"),
        ('{"valu": "a"}', "has no value"),
        ('{"value": "a", "topic": "t"}', "has 'topic', which is no part of a message"),
        ('{"key": {"a": 1}, "value": "a"}', "has an object for its key 'key'"),
        ('{"key": [1], "value": "a"}', "has a list for its key 'key'"),
        ('{"value": "!", "value_encoding": "base64"}', "has a value that is no base64"),
        (
            '{"value": 1, "value_encoding": "base64"}',
            "has a number or boolean for its value, and value_encoding=base64",
        ),
        ('{"value": "a", "value_encoding": "hex"}', "has value_encoding='hex': give base64"),
        ('{"value": "a", "headers": "h"}', "has a string for its headers"),
        ('{"value": "a", "headers": [1]}', "has a header that is none"),
        ('{"value": "a", "headers": [{"key": "h", "val": "x"}]}', "has a header with 'val'"),
        (r'{"value": "\ud800"}', "has half of a surrogate pair in its value"),
        (r'{"key": "\ud800", "value": "a"}', "has half of a surrogate pair in its key"),
        ('{"value": {"a": 1e999}}', "has a value that cannot be written as JSON"),
        ("[" * 100_000, "is no JSON (maximum recursion depth"),
        ('{"value": ' + "9" * 5000 + "}", "is no JSON (Exceeds the limit"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_line_is_named_and_nothing_is_published(orders: Partq, line: str, reason: str) -> None:
    message = orders.error("publish", "orders", stdin='{"value":"good"}\n\n' + line + '\n{"value":"good"}\n')
    assert message.startswith(f"standard input line 3 {reason}")
    assert nothing_is_published(orders)


@pytest.mark.parametrize("line", ['{"key": "a"}', '{"key": "a", "valu": "b"}', "{}"])
def test_a_slip_of_the_pen_on_standard_input_is_not_taken_for_a_row(orders: Partq, line: str) -> None:
    """In a file, lines without a value are rows; here that must be asked for."""
    message = orders.error("publish", "orders", stdin=line + "\n")
    assert message.startswith("standard input line 1 has no value")
    assert nothing_is_published(orders)
    orders("publish", "orders", "--whole-rows", stdin=line + "\n")
    assert [value for _, value in orders.messages("orders")] == [line]


def test_bytes_that_are_not_utf8_are_named_by_their_line(orders: Partq) -> None:
    message = orders.error("publish", "orders", stdin=b'{"value":"a"}\n{"value":"\xff"}\n')
    assert message.startswith("standard input line 2 is not UTF-8 (byte 0xff at 10)")
    assert nothing_is_published(orders)


@pytest.mark.conformance("DIS-04")
def test_a_key_of_256_bytes_is_refused_in_bytes_not_characters(orders: Partq) -> None:
    rows = [{"key": "é" * 127 + "a", "value": "x"}, {"key": "é" * 128, "value": "x"}]
    message = orders.error("publish", "orders", stdin=json_lines(rows))
    assert message.startswith("the key of standard input line 2 has 256 bytes in UTF-8, at most 255 are allowed")
    assert nothing_is_published(orders)
    orders("publish", "orders", stdin=json_lines(rows[:1]))


def test_a_message_beyond_the_limit_is_refused_with_its_line(orders: Partq) -> None:
    orders("queue", "alter", "orders", "--max-message-bytes", 100)
    exact = {"key": "k" * 10, "value": "v" * 60, "headers": {"h" * 10: "w" * 20}}
    rows = [{"value": "a"}] * 3 + [exact]
    orders("publish", "orders", stdin=json_lines(rows))
    message = orders.error("publish", "orders", stdin=json_lines([*rows, {**exact, "key": "k" * 11}]))
    assert message.startswith("the message of standard input line 5 has 101 bytes, the queue takes 100")
    assert "--max-message-bytes" in message
    assert len(orders.browse("orders")) == 4


def test_a_line_without_an_end_is_refused_in_bounded_memory(orders: Partq) -> None:
    orders("queue", "alter", "orders", "--max-message-bytes", 10)
    message = orders.error("publish", "orders", stdin='{"value":"' + "x" * 1_100_000)
    assert message.startswith("standard input line 1 has more than 1,048,636 bytes")


def test_no_messages_is_no_error_and_no_publish(orders: Partq) -> None:
    assert orders("publish", "orders").stdout == "No messages in standard input: nothing was published.\n"
    assert orders.json("publish", "orders") == {
        "published": False,
        "already_published": False,
        "messages": 0,
        "without_key": 0,
        "partitions": [],
        "sequence": None,
        "timestamp": None,
    }
    assert nothing_is_published(orders)
