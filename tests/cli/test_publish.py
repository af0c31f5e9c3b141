"""`partq publish`: what lines of standard input and rows of files become, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.conftest import parquet, written
from tests.support.command_line import Partq, json_lines
from tests.support.texts import BAD, headers_of, texts

# --- standard input ---------------------------------------------------------------------------------------------------


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
def test_what_is_no_string_becomes_compact_json(orders: Partq, value: object, published: str) -> None:
    orders("publish", "orders", stdin=json_lines([{"value": value}]))
    if not isinstance(value, dict | list):
        orders("publish", "orders", stdin=json_lines([{"key": value, "value": value}]))
        assert orders.messages("orders").pop() == (published, published)
    assert orders.messages("orders")[0] == (None, published)


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


def test_headers_are_an_object_or_a_list_and_what_browse_prints_can_be_published_again(orders: Partq) -> None:
    raw = {"key": "raw", "value": "//8=", "value_encoding": "base64"}
    rows = [
        {"key": "a", "value": "text\n\u0000", "headers": {"trace": "1", "empty": None}},
        {"value": "/wA=", "value_encoding": "base64", "headers": [raw, {"key": "t", "value": "x"}]},
        {"key": "b", "value": "text", "value_encoding": "text", "headers": []},
        {"value": "d"},
    ]
    orders("publish", "orders", stdin=json_lines(rows))
    found = orders.browse("orders")
    assert [each["headers"] for each in found] == [
        [{"key": "trace", "value": "1"}, {"key": "empty", "value": None}],
        [raw, {"key": "t", "value": "x"}],
        [],
        None,
    ]
    assert (found[1]["value"], found[1]["value_encoding"]) == ("/wA=", "base64")
    orders("queue", "create", "copy", "--partitions", 1)
    orders("publish", "copy", stdin=orders("browse", "orders", "--json").stdout)
    assert [{**each, "timestamp": 0} for each in orders.browse("copy")] == [{**each, "timestamp": 0} for each in found]


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
    assert orders.is_untouched()


@pytest.mark.parametrize("line", ['{"key": "a"}', '{"key": "a", "valu": "b"}', "{}"])
def test_a_slip_of_the_pen_on_standard_input_is_not_taken_for_a_row(orders: Partq, line: str) -> None:
    """In a file, lines without a value are rows; here that must be asked for."""
    message = orders.error("publish", "orders", stdin=line + "\n")
    assert message.startswith("standard input line 1 has no value")
    assert orders.is_untouched()
    orders("publish", "orders", "--whole-rows", stdin=line + "\n")
    assert [value for _, value in orders.messages("orders")] == [line]


@pytest.mark.conformance("DIS-04")
def test_what_is_too_long_or_not_utf_8_is_named_by_its_line(orders: Partq) -> None:
    """A key's bytes are counted, not characters; a line without an end is refused in bounded memory."""
    rows = [{"key": "é" * 127 + "a", "value": "x"}, {"key": "é" * 128, "value": "x"}]
    message = orders.error("publish", "orders", stdin=json_lines(rows))
    assert message.startswith("the key of standard input line 2 has 256 bytes in UTF-8, at most 255 are allowed")
    message = orders.error("publish", "orders", stdin=b'{"value":"a"}\n{"value":"\xff"}\n')
    assert message.startswith("standard input line 2 is not UTF-8 (byte 0xff at 10)")
    orders("queue", "alter", "orders", "--max-message-bytes", 100)
    exact = {"key": "k" * 10, "value": "v" * 60, "headers": {"h" * 10: "w" * 20}}
    message = orders.error("publish", "orders", stdin=json_lines([exact, {**exact, "key": "k" * 11}]))
    assert message.startswith("the message of standard input line 2 has 101 bytes, the queue takes 100")
    assert "--max-message-bytes" in message
    message = orders.error("publish", "orders", stdin='{"value":"' + "x" * 1_100_000)
    assert message.startswith("standard input line 1 has more than 1,049,176 bytes")
    assert orders.browse("orders") == []
    orders("publish", "orders", stdin=json_lines([exact]))
    orders("queue", "alter", "orders", "--max-message-bytes", 1000)
    orders("publish", "orders", stdin=json_lines(rows[:1]))


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
    assert orders.is_untouched()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "A.JSON", "a.b.jsonl.gz", "a.json.gz"])
def test_json_lines_files(orders: Partq, tmp_path: Path, name: str) -> None:
    orders("publish", "orders", "--file", written(tmp_path / name, '{"key":"a","value":"1"}\n{"value":"2"}\n'))
    assert orders.messages("orders") == [("a", "1"), (None, "2")]


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz"])
def test_csv_files_with_a_value_hold_messages(orders: Partq, tmp_path: Path, name: str) -> None:
    content = 'value,key\r\nplain,a\r\n"two\nlines, ""quoted""",\r\n\r\n007,1.50\r\n'
    orders("publish", "orders", "--file", written(tmp_path / name, content))
    assert orders.messages("orders") == [("a", "plain"), (None, 'two\nlines, "quoted"'), ("1.50", "007")]


def test_parquet_files_with_a_value_hold_messages(orders: Partq, tmp_path: Path) -> None:
    headers = pa.array([[("h", b"\xff")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    path = parquet(
        tmp_path / "a.parquet",
        key=pa.array([17, None], pa.int64()),
        value=[b"\xff\x00", b""],
        headers=headers,
        offset=[1, 2],
    )
    orders("publish", "orders", "--file", path)
    first, second = orders.browse("orders")
    assert (first["key"], first["value"], first["value_encoding"]) == ("17", "/wA=", "base64")
    assert first["headers"] == [{"key": "h", "value": "/w==", "value_encoding": "base64"}]
    assert (second["key"], second["value"], second["headers"]) == (None, "", None)


def test_rows_of_any_other_table_become_json(orders: Partq, tmp_path: Path) -> None:
    content = 'tail,flight,origin,note\nN1,15,JFK,"say ""hi"""\n,007,EWR,\n'
    orders("publish", "orders", "--file", written(tmp_path / "a.csv", content), "--key-column", "tail")
    assert orders.messages("orders") == [
        ("N1", '{"tail":"N1","flight":15,"origin":"JFK","note":"say \\"hi\\""}'),
        (None, '{"tail":null,"flight":"007","origin":"EWR","note":null}'),
    ]


TEXTS: dict[str, tuple[pa.Array, list[str]]] = {
    "key": (pa.array([1, -(2**63), None]), ["1", str(-(2**63)), "null"]),
    "large": (pa.array([2**64 - 1, 0, None], pa.uint64()), [str(2**64 - 1), "0", "null"]),
    "ok": (pa.array([True, False, None]), ["true", "false", "null"]),
    "float": (pa.array([0.1, 5.0, 1e20]), ["0.1", "5", "1e+20"]),
    "strange": (pa.array([math.nan, math.inf, -math.inf]), ['"NaN"', '"Infinity"', '"-Infinity"']),
    "price": (pa.array([Decimal("1.50"), Decimal("-0.01"), None]), ["1.50", "-0.01", "null"]),
    "day": (pa.array([date(2026, 1, 2), None, None]), ['"2026-01-02"', "null", "null"]),
    "time": (pa.array([time(1, 2, 3), None, None]), ['"01:02:03.000000"', "null", "null"]),
    "wall": (
        pa.array([datetime(2026, 1, 2, 3, 4, 5, 6), None, None]),  # noqa: DTZ001 - a wall clock
        ['"2026-01-02T03:04:05.000006"', "null", "null"],
    ),
    "at": (
        pa.array([datetime(2026, 1, 2, tzinfo=UTC), None, None], pa.timestamp("ms", "Asia/Kolkata")),
        ['"2026-01-02T00:00:00.000Z"', "null", "null"],
    ),
    "raw": (pa.array([b"\xff\x00", b"", None]), ['"/wA="', '""', "null"]),
    "nothing": (pa.nulls(3), ["null"] * 3),
    "list": (pa.array([[1, None], [], None]), ["[1,null]", "[]", "null"]),
    "both": (
        pa.array([{"a": 1, "b": ["x"]}, None, {"a": None}]),
        ['{"a":1,"b":["x"]}', "null", '{"a":null,"b":null}'],
    ),
    't"ext\\': (pa.array(['say "hi"\n\x00', "\u2028 é </script>", "\\"]), []),
}


def test_rows_of_parquet_become_json_by_their_types(orders: Partq, tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", **{name: column for name, (column, _) in TEXTS.items()})
    orders("publish", "orders", "--file", path)
    found = orders.messages("orders")
    assert [key for key, _ in found] == ["1", str(-(2**63)), None]
    for row, (_, value) in enumerate(found):
        texts = [texts[row] if texts else json.dumps(column[row].as_py()) for column, texts in TEXTS.values()]
        pairs = zip(TEXTS, texts, strict=True)
        expected = "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in pairs) + "}"
        assert json.loads(value, object_pairs_hook=list) == json.loads(expected, object_pairs_hook=list)
        assert all(f":{text}" in value for text in texts[:-1]), "as it is written"


def test_a_field_of_csv_is_a_number_only_if_json_would_write_it_so(orders: Partq, tmp_path: Path) -> None:
    numbers = ["0", "-1", "12.50", "1" * 30]
    others = ["007", "-", ".5", "5.", "1e5", "1\n", "\u0661", "+1", " 1", "true", "NaN"]
    content = "c,d\n" + "".join(f'"{each}",\n' for each in [*numbers, *others])
    orders("publish", "orders", "--file", written(tmp_path / "a.csv", content))
    texts = [*numbers, *(json.dumps(each, ensure_ascii=False) for each in others)]
    assert [value for _, value in orders.messages("orders")] == [f'{{"c":{text},"d":null}}' for text in texts]


def test_rows_of_json_lines_are_published_as_they_stand_and_reported(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"id": 7, "price": 1.50}\n  {"price":2,   "id":null}  \n')
    done = orders.json("publish", "orders", "--file", path, "--key-column", "id")
    assert orders.messages("orders") == [("7", '{"id": 7, "price": 1.50}'), (None, '{"price":2,   "id":null}')]
    assert (done["published"], done["already_published"], done["messages"], done["without_key"]) == (True, False, 2, 1)
    assert done["partitions"] == [{"partition": 0, "messages": 2}]
    assert (done["sequence"], done["timestamp"]) == (2, orders.browse("orders")[0]["timestamp"])


def test_a_column_named_key_is_the_key_unless_another_is_named(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "key,id,x\na,b,c\n")
    orders("publish", "orders", "--file", path)
    orders("publish", "orders", "--file", path, "--key-column", "id")
    orders("publish", "orders", "--file", written(path, "id,value\n1,x\n"), "--key-column", "id")
    orders("publish", "orders", "--key-column", "id", stdin='{"id":2,"value":"y"}\n')
    assert [key for key, _ in orders.messages("orders")] == ["a", "b", "1", "2"]


def test_a_table_that_could_be_meant_in_two_ways_is_refused_with_the_way_out(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "sensor,value,unit\ns1,20.5,C\n")
    message = orders.error("publish", "orders", "--file", path, "--key-column", "sensor")
    assert "'unit' is no part of a message: give --whole-rows" in message
    orders("publish", "orders", "--file", path, "--key-column", "sensor", "--whole-rows")
    orders("publish", "orders", "--whole-rows", stdin='{"key":"s2","value":1}\n')
    assert orders.messages("orders") == [
        ("s1", '{"sensor":"s1","value":20.5,"unit":"C"}'),
        ("s2", '{"key":"s2","value":1}'),
    ]


@pytest.mark.parametrize(
    ("name", "content", "options", "reason"),
    [
        ("a.csv", "a,b\n1,2\n1,2,3\n", [], "line 3 has 3 fields, the first line names 2 columns"),
        ("a.csv", 'a,b\n"x\ny",2\n1\n', [], "line 4 has 1 fields"),
        ("a.csv", 'a,b\n1,2\n"open,3\n4,5\n', [], "line 3 is no CSV (unexpected end of data)"),
        ("a.csv", 'a,b\n"x"y,2\n', [], "line 2 is no CSV"),
        ("a.csv", "key,value\na,\n", [], "line 2 has no value"),
        ("a.csv", "", [], "is empty: the first line of a CSV file names its columns"),
        ("a.csv", "a,a\n1,2\n", [], "names the column 'a' twice"),
        ("a.csv", "a,b\n1,2\n", ["--key-column", "c"], "has no column 'c' (--key-column), it has a, b"),
        ("a.csv", "key,value,headers\na,b,c\n", [], "has a column 'headers': CSV cannot hold them"),
        ("a.csv", "key,value\n" + "x" * 256 + ",b\n", [], "line 2 has 256 bytes in UTF-8"),
        ("a.csv", b"a,b\n1,2\n\xff,2\n", [], "line 3 is not UTF-8"),
        ("a.jsonl", '{"a":1}\n{"b":1}\n', ["--key-column", "a"], "line 2 has no 'a' (--key-column)"),
        ("a.jsonl", '{"a":1}\n', ["--key-column", "b"], "line 1 has no column 'b'"),
        ("a.jsonl", '{"value":"a"}\n{"a":1}\n', [], "line 2 has no value"),
        ("a.parquet", "PAR1 no", [], "is no Parquet file that can be read"),
    ],
)
def test_a_bad_file_is_named_and_nothing_is_published(
    orders: Partq, tmp_path: Path, name: str, content: str | bytes, options: list[str], reason: str
) -> None:
    path = written(tmp_path / name, content)
    message = orders.error("publish", "orders", "--file", path, *options)
    assert f"{path} " in message
    assert reason in message
    assert orders.is_untouched()


@pytest.mark.parametrize(
    ("columns", "words", "reason"),
    [
        ({"value": [1, 2]}, (), "has a column 'value' of type int64"),
        ({"value": ["a", None]}, (), "row 2 has no value"),
        ({"key": [["a"]], "value": ["a"]}, (), "column 'key' has type list<"),
        ({"value": ["a"], "headers": ["x"]}, (), "has a column 'headers' of type string"),
        ({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, (), "column 'm' has type map<"),
        ({"d": pa.array([1], pa.duration("s"))}, (), "column 'd' has type duration"),
        ({"key": texts(b"a", BAD), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"key": pa.array([b"a", BAD]), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"id": texts(b"a", BAD), "n": [1, 2]}, ("--key-column", "id"), "row 2 has text in 'id'"),
        ({"n": [1, 2], "t": texts(b"a", BAD)}, (), "row 2 has text in 't' that is not UTF-8"),
        ({"value": texts(b"1", b"2"), "headers": headers_of(b"ok", BAD)}, (), "row 2 has a header's key that is not"),
    ],
)
def test_columns_of_parquet_that_do_not_fit_are_named(
    orders: Partq, tmp_path: Path, columns: dict[str, Any], words: tuple[str, ...], reason: str
) -> None:
    message = orders.error("publish", "orders", "--file", parquet(tmp_path / "a.parquet", **columns), *words)
    assert reason in message
    assert orders.is_untouched()


def test_a_damaged_or_cut_off_gzip_file_is_refused(orders: Partq, tmp_path: Path) -> None:
    whole = gzip.compress(json_lines({"value": str(i)} for i in range(5000)).encode())
    for content in (whole[: len(whole) // 2], whole[:50] + b"\x00\x00\x00\x00" + whole[54:], b"no gzip"):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(content)
        assert f"{path} cannot be read after line" in orders.error("publish", "orders", "--file", path)
    assert orders.is_untouched()


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz", "a.gz", ".csv"])
def test_an_unknown_kind_of_file_is_wrong_use(orders: Partq, tmp_path: Path, name: str) -> None:
    message = orders.misuse("publish", "orders", "--file", written(tmp_path / name, "x"))
    assert ".csv, .jsonl, .ndjson or .json" in message
