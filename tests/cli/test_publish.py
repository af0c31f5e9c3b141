"""`partq publish`: what lines of standard input and rows of files become. Refusals are in `test_publish_refusals`."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.conftest import parquet, source
from tests.support.command_line import Partq, json_lines

SCALARS = (
    *("17", "1" + "0" * 30, "true", "1.50", "1e5", "-0.0"),
    *("123456789012345678901234567890.123", "0.1000000000000000055511151231257827"),
)
OTHERS = ('{"b": 1, "a": [1.5, null, "é"]}', "[1, 2]", "{}", '{"n": [1.50, {"é": 1e5}], "s": "x"}')
ODD = "naïve \u2028\u2029\x85 \U0001f6e9"
LINES = '{"key":"a","value":"1"}\n{"value":"2"}\n'
TABLE = 'value,key\r\nplain,a\r\n"two\nlines, ""quoted""",\r\n\r\n007,1.50\r\n'
SENSOR = "sensor,value,unit\ns1,20.5,C\n"
NUMBERS = ["0", "-1", "12.50", "1" * 30]
"""As JSON would write them, and no other field of CSV is one."""
NO_NUMBERS = ["007", "-", ".5", "5.", "1e5", "1\n", "\u0661", "+1", " 1", "true", "NaN"]

PUBLISHED = [
    # Standard input: messages as JSON lines. What is no string becomes compact text, and numbers keep every digit.
    (
        "",
        json_lines([{"key": "a", "value": "x"}, {"key": None, "value": ""}, {"value": "y"}, {"key": "", "value": "z"}]),
        [("a", "x"), (None, ""), (None, "y"), ("", "z")],
    ),
    ("", "".join(f'{{"key": {each}, "value": {each}}}\n' for each in SCALARS), [(each, each) for each in SCALARS]),
    ("", "".join(f'{{"value": {each}}}\n' for each in OTHERS), [(None, each.replace(" ", "")) for each in OTHERS]),
    ("", f'{{"key": "{ODD}", "value": "{ODD}"}}', [(ODD, ODD)]),
    ("", b'\xef\xbb\xbf{"value":"a"}\r\n\n  \n{"value":"b"}', [(None, "a"), (None, "b")]),
    # Files, by their names; those with values hold messages.
    *((name, LINES, [("a", "1"), (None, "2")]) for name in ("a.jsonl", "a.ndjson", "A.JSON", "a.b.jsonl.gz")),
    *(
        (name, TABLE, [("a", "plain"), (None, 'two\nlines, "quoted"'), ("1.50", "007")])
        for name in ("A.CSV", "a.csv.gz")
    ),
    # Rows of any other table become JSON.
    (
        "a.csv --key-column tail",
        'tail,flight,note\nN1,15,"say ""hi"""\n,007,\n',
        [("N1", '{"tail":"N1","flight":15,"note":"say \\"hi\\""}'), (None, '{"tail":null,"flight":"007","note":null}')],
    ),
    (
        "a.csv",
        "c,d\n" + "".join(f'"{each}",\n' for each in [*NUMBERS, *NO_NUMBERS]),
        [
            (None, f'{{"c":{text},"d":null}}')
            for text in (*NUMBERS, *(json.dumps(each, ensure_ascii=False) for each in NO_NUMBERS))
        ],
    ),
    (
        "a.jsonl --key-column id",
        '{"id": 7, "price": 1.50}\n  {"price":2,   "id":null}  \n',
        [("7", '{"id": 7, "price": 1.50}'), (None, '{"price":2,   "id":null}')],
    ),
    # A column `key` is the key unless another is named.
    ("a.csv", "key,x\na,c\n", [("a", '{"key":"a","x":"c"}')]),
    ("a.csv --key-column id", "key,id\na,b\n", [("b", '{"key":"a","id":"b"}')]),
    ("a.csv --key-column id", "id,value\n1,x\n", [("1", "x")]),
    (" --key-column id", '{"id":2,"value":"y"}\n', [("2", "y")]),
    # What could be meant in two ways is said, on standard input too.
    ("a.csv --key-column sensor --whole-rows", SENSOR, [("s1", '{"sensor":"s1","value":20.5,"unit":"C"}')]),
    (" --whole-rows", '{"key":"s2","value":1}\n', [("s2", '{"key":"s2","value":1}')]),
    *((" --whole-rows", line, [(key, line)]) for key, line in (("a", '{"key": "a", "valu": "b"}'), (None, "{}"))),
]
"""The file's name (none: standard input) and options, what is in it, and the messages."""


@pytest.mark.parametrize(("line", "content", "messages"), PUBLISHED)
def test_what_goes_in_becomes_messages(
    orders: Partq, tmp_path: Path, line: str, content: str | bytes, messages: list[tuple[str | None, str]]
) -> None:
    name, *options = line.split(" ")
    given = source(tmp_path, name, content)
    orders("publish", "orders", *given["words"], *options, stdin=given["stdin"])
    assert orders.messages("orders") == messages


def test_headers_are_an_object_or_a_list_and_what_browse_prints_can_be_published_again(orders: Partq) -> None:
    raw = {"key": "raw", "value": "//8=", "value_encoding": "base64"}
    rows = [
        {"key": "a", "value": "text\n\u0000", "headers": {"trace": 1.5, "empty": None}},
        {"value": "/wA=", "value_encoding": "base64", "headers": [raw, {"key": "t", "value": "x"}]},
        {"key": "b", "value": "text", "value_encoding": "text", "headers": []},
        {"value": "d"},
    ]
    said = orders("publish", "orders", stdin=json_lines(rows)).stdout
    assert "2 messages without a key went to random partitions." in said
    found = orders.browse("orders")
    assert [each["headers"] for each in found] == [
        [{"key": "trace", "value": "1.5"}, {"key": "empty", "value": None}],
        [raw, {"key": "t", "value": "x"}],
        [],
        None,
    ]
    assert (found[1]["value"], found[1]["value_encoding"]) == ("/wA=", "base64")
    orders("queue", "create", "copy", "--partitions", 1)
    orders("publish", "copy", stdin=orders("browse", "orders", "--json").stdout)
    assert [{**each, "timestamp": 0} for each in orders.browse("copy")] == [{**each, "timestamp": 0} for each in found]


def test_no_messages_is_no_error_and_no_publish(orders: Partq) -> None:
    assert orders("publish", "orders").stdout == "No messages in standard input: nothing was published.\n"
    done = orders.json("publish", "orders")
    assert (done["published"], done["already_published"], done["messages"]) == (False, False, 0)
    assert (done["partitions"], done["sequence"], done["timestamp"]) == ([], None, None)
    assert orders.is_untouched()


# --- Parquet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.large_list(pa.struct([("value", pa.binary()), ("key", pa.binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
)
def test_parquet_files_with_a_value_hold_messages(orders: Partq, tmp_path: Path, kind: pa.DataType) -> None:
    """Headers in whatever form Arrow keeps them."""
    headers = pa.array([[("h", b"\xff") if pa.types.is_map(kind) else {"key": "h", "value": b"\xff"}], None], kind)
    keys = pa.array([17, None], pa.int64())
    path = parquet(tmp_path / "a.parquet", key=keys, value=[b"\xff\x00", b""], headers=headers, offset=[1, 2])
    orders("publish", "orders", "--file", path)
    first, second = orders.browse("orders")
    assert (first["key"], first["value"], first["value_encoding"]) == ("17", "/wA=", "base64")
    assert first["headers"] == [{"key": "h", "value": "/w==", "value_encoding": "base64"}]
    assert (second["key"], second["value"], second["headers"]) == (None, "", None)


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
    "both": (pa.array([{"a": 1, "b": ["x"]}, None, {"a": None}]), ['{"a":1,"b":["x"]}', "null", '{"a":null,"b":null}']),
    't"ext\\': (
        pa.array(['say "hi"\n\x00', "\u2028 é </script>", "\\"]),
        [r'"say \"hi\"\n\u0000"', '"\u2028 é </script>"', r'"\\"'],
    ),
}


def test_rows_of_parquet_become_json_by_their_types(orders: Partq, tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", **{name: column for name, (column, _) in TEXTS.items()})
    orders("publish", "orders", "--file", path)
    for row, (key, value) in enumerate(orders.messages("orders")):
        texts = [texts[row] for _, texts in TEXTS.values()]
        pairs = (f"{json.dumps(name)}:{text}" for name, text in zip(TEXTS, texts, strict=True))
        assert (key, value) == (None if texts[0] == "null" else texts[0], f"{{{','.join(pairs)}}}")
