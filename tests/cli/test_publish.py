"""`partq publish`: what lines of standard input and rows of files become, in bounded memory; and that it is one publish
or none: repetitions, bad rows at the end, Ctrl-C. Refusals are in `test_publish_refusals`. And `partq browse`: what it
shows, in which order, and that it reads no more than that.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

import partq as api
from tests.cli.conftest import parquet, source, written
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


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch]:
    """What a publish stages, piece by piece."""
    found: list[pa.RecordBatch] = []
    publication: Any = api.Publication
    alike = publication._alike

    def watched(self: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        found.append(batch)
        return alike(self, batch)

    monkeypatch.setattr(publication, "_alike", watched)
    return found


LONG = "x" * 20_000
CHUNKED: list[tuple[str, Any, int]] = [
    # Some 10 MB in lines that are otherwise small: no part of a message is left out of the count.
    *(
        ("", json_lines([{"value": "v", **each}] * 500), 250)
        for each in (
            {"value": LONG},
            {"headers": {"h": LONG}},
            {"headers": [{"key": LONG, "value": None}]},
            {"headers": [{"key": None, "value": None}] * 200},
        )
    ),
    ("random.parquet", {"value": [os.urandom(20_000) for _ in range(600)]}, 250),
    # A thousand messages of 100 kB that a file of some kilobytes holds once, and fields without anything.
    ("once.parquet", {"value": [b"x" * 100_000] * 1000, "key": ["a"] * 1000}, 50),
    ("in.csv", ",".join(f"c{i}" for i in range(1000)) + "\n" + ("," * 999 + "\n") * 1000, 300),
]
"""A file's name (none: standard input), what is in it, and how many messages are staged at once, at most."""


@pytest.mark.parametrize(("name", "content", "most"), CHUNKED)
def test_what_goes_in_is_taken_in_chunks_of_bounded_bytes(
    orders: Partq, tmp_path: Path, chunks: list[pa.RecordBatch], name: str, content: Any, most: int
) -> None:
    given = source(tmp_path, name, content)
    done = orders.json("publish", "orders", *given["words"], stdin=given["stdin"])
    assert done["messages"] == sum(each.num_rows for each in chunks)
    assert max(each.num_rows for each in chunks) < most


# --- one publish ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-08")
def test_a_bad_row_at_the_end_of_much_leaves_nothing_visible_and_no_object(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 4)
    rows = [{"key": f"k{i}", "value": "x" * 100} for i in range(20_000)]
    message = partq.error("publish", "orders", stdin=json_lines([*rows, {"key": "bad"}]))
    assert message.startswith("standard input line 20001 has no value")
    assert partq.is_untouched()
    assert list(partq.store.rglob("_segments/**/*.*")) == []


@pytest.mark.conformance("DIS-09")
def test_a_publish_id_makes_a_repetition_do_nothing_and_say_so(orders: Partq) -> None:
    rows = json_lines([{"value": "a"}, {"value": "b"}])
    first = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    assert (first["published"], first["already_published"]) == (True, False)
    orders("publish", "orders", "--publish-id", "another", stdin=rows)
    again = orders.json("publish", "orders", "--publish-id", "import 7", stdin=rows)
    nothing = {"published": False, "already_published": True, "messages": 0, "without_key": 0, "partitions": []}
    assert again == {**first, **nothing}
    assert [value for _, value in orders.messages("orders")] == ["a", "b", "a", "b"]


def test_a_repetition_reads_its_input_to_the_end_but_does_not_look_at_it(orders: Partq, tmp_path: Path) -> None:
    """Else the program that writes it would die of a broken pipe, and the whole pipeline fail."""
    orders("publish", "orders", "--publish-id", "p", stdin='{"value":"a"}\n')
    path = written(tmp_path / "a.csv", "nothing, that\nis a, csv, file\n")
    assert orders.json("publish", "orders", "--publish-id", "p", "--file", path)["already_published"] is True
    stdin = io.BytesIO(b'{"value":"a"}\n' * 10)
    orders("publish", "orders", "--publish-id", "p", stdin=stdin)  # type: ignore[arg-type]  # CliRunner takes files too
    assert stdin.read() == b""


def staged(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something happen when everything is staged and the swap is about to be made."""
    commit = api.Publication.commit

    def disturbed(publication: api.Publication) -> Any:
        monkeypatch.setattr(api.Publication, "commit", commit)
        do()
        return commit(publication)

    monkeypatch.setattr(api.Publication, "commit", disturbed)


# --- interrupts -------------------------------------------------------------------------------------------------------


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def test_ctrl_c_during_the_swap_waits_for_the_outcome_or_tells(orders: Partq, monkeypatch: pytest.MonkeyPatch) -> None:
    staged(monkeypatch, interrupt)
    done = orders("publish", "orders", stdin='{"value":"a"}\n')
    assert done.stdout.startswith("Published 1 message ")
    assert "interrupt again to give up waiting" in done.stderr
    assert orders.messages("orders") == [(None, "a")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for more, said in (
        ((), "it may be done or not; look with `partq browse` before repeating it"),
        (("--publish-id", "p"), "repeat it with the same --publish-id"),
    ):
        staged(monkeypatch, interrupt_twice)
        assert said in orders("publish", "orders", *more, code=1, stdin='{"value":"a"}\n').stderr


# --- browse -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counting(partq: Partq) -> Partq:
    """Three partitions, four publishes of 30 messages each; the values count up."""
    partq("queue", "create", "orders", "--partitions", 3)
    for first in range(0, 120, 30):
        rows = ({"key": f"k{i}", "value": str(i)} for i in range(first, first + 30))
        partq("publish", "orders", stdin=json_lines(rows))
    return partq


def test_messages_come_merged_by_time_or_of_one_partition_from_an_offset_on(counting: Partq) -> None:
    before = counting.json("queue", "describe", "orders")
    found = counting.browse("orders")
    assert counting.json("queue", "describe", "orders") == {**before, "oldest_age_s": ANY}, "nothing was taken"
    times = [each["timestamp"] for each in found]
    assert times == sorted(times)
    assert (len(found), len(set(times))) == (120, 4)
    assert {each["partition"] for each in found[:30]} == {0, 1, 2}
    # The first N of all are the first N of any larger number, and 20 unless more are asked for.
    assert counting.browse("orders", "--limit", 33) == found[:33]
    assert len(counting("browse", "orders", "--json").stdout.splitlines()) == 20
    assert counting.browse("orders", "--from", 30) == [each for each in found if each["offset"] >= 30]
    some = [each for each in found if each["partition"] == 1]
    assert [each["offset"] for each in some] == list(range(len(some)))
    one = ("orders", "--partition", 1)
    assert counting.browse(*one) == some
    assert counting.browse(*one, "--from", 5, "--limit", 3) == some[5:8]
    assert counting.browse(*one, "--from", len(some)) == counting.browse(*one, "--from", 10**12) == []
    counting("queue", "trim", "orders", "--before-offsets", '{"1": 5}')
    assert counting.browse(*one, "--from", 2, "--limit", 1) == some[5:6]


def test_only_the_slices_that_are_shown_are_read_and_one_that_is_damaged_is_named(counting: Partq) -> None:
    """All segments but the last are damaged, which nobody notices who looks at that one."""
    last = counting.json("queue", "describe", "orders")["partitions"][1]["next"] - 1
    (found,) = counting.browse("orders", "--partition", 1, "--from", last)
    segments = sorted(counting.store.rglob("*.arrow"), key=lambda path: path.name)
    for segment in segments[:-1]:
        segment.chmod(0o600)
        segment.write_bytes(b"\0" * segment.stat().st_size)
    assert counting.browse("orders", "--partition", 1, "--from", last) == [found]
    assert f"{segments[0].name} is damaged" in counting.error("browse", "orders", "--limit", 1)


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
