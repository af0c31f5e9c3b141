"""Input that `partq publish` does not take: it is named by file, line (Parquet: row) and column, and nothing is
published.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import source, written
from tests.support.command_line import Partq, json_lines
from tests.support.texts import BAD, headers_of, texts

DDL = (
    "id BIGINT NOT NULL, name STRING, total DECIMAL(7,2), ok BOOLEAN, small TINYINT, x DOUBLE, at TIMESTAMP, "
    "wall TIMESTAMP_NTZ, day DATE, raw BINARY, tags ARRAY<STRING>, who STRUCT<a: INT, b: DATE>, m MAP<INT, DOUBLE>, "
    "z MAP<DOUBLE, INT>"
)
TWICE = "is there twice in one object: keep one)"

LINES = {
    "nonsense": "is no JSON (Expecting value: line 1 column 1 (char 0)): write one object per line",
    '{"value": "a"} {"value": "b"}': "is no JSON (Extra data",
    '{"value": "a", "headers": {"h": "1", "h": "2"}}': f"is no JSON (the name 'h' {TWICE}",
    '[{"value": "a"}]': "is a JSON array: write one object per line, for example with `jq -c '.[]'`",
    # Lines of a file that have no value are rows; here it may be a slip of the pen.
    "{}": "has no value: every message needs one",
    '{"value": "a", "topic": "t"}': "has 'topic', which is no part of a message",
    '{"key": {"a": 1}, "value": "a"}': "has an object for its key 'key'",
    '{"value": "!", "value_encoding": "base64"}': "has a value that is no base64",
    '{"value": 1, "value_encoding": "base64"}': "has a number or boolean for its value, and value_encoding=base64",
    '{"value": "a", "value_encoding": "hex"}': "has value_encoding='hex': give base64",
    '{"value": "a", "headers": "h"}': "has a string for its headers",
    '{"value": "a", "headers": [{"key": "h", "val": "x"}]}': "has a header with 'val'",
    r'{"value": "\ud800"}': "has half of a surrogate pair in its value",
    '{"value": {"a": 1e999}}': "has a value that cannot be written as JSON",
    "[" * 100_000: "is no JSON (maximum recursion depth",
    '{"value": ' + "9" * 5000 + "}": "is no JSON (Exceeds the limit",
}
"""Of standard input, for the untyped queue."""

pq.write_table(pa.table([[1], [2]], names=["n", "n"]), sink := pa.BufferOutputStream())
FILES: list[tuple[str, Any, str]] = [
    ("a.csv", "a,b\n1,2\n1,2,3\n", "FILE line 3 has 3 fields, the first line names 2 columns"),
    ("a.csv", 'a,b\n"x\ny",2\n1\n', "FILE line 4 has 1 fields"),
    ("a.csv", 'a,b\n1,2\n"open,3\n4,5\n', "FILE line 3 is no CSV (unexpected end of data)"),
    ("a.csv", 'a,b\n"x"y,2\n', "FILE line 2 is no CSV"),
    ("a.csv", "", "FILE is empty: the first line of a CSV file names its columns"),
    ("a.csv", "a,a\n1,2\n", "FILE names the column 'a' twice"),
    ("a.csv --key-column c", "a,b\n1,2\n", "FILE has no column 'c' (--key-column), it has a, b"),
    ("a.csv --key-column a", "a,value,unit\ns1,20.5,C\n", "'unit' is no part of a message: give --whole-rows"),
    ("a.csv", "key,value,headers\na,b,c\n", "FILE has a column 'headers': CSV cannot hold them"),
    ("a.csv", b"a,b\n1,2\n\xff,2\n", "FILE line 3 is not UTF-8"),
    ("a.jsonl --key-column a", '{"a":1}\n{"b":1}\n', "FILE line 2 has no 'a' (--key-column)"),
    ("a.parquet", "PAR1 no", "FILE is no Parquet file that can be read"),
    ("a.parquet", sink.getvalue().to_pybytes(), "FILE names the column 'n' twice"),
    ("a.parquet", {"value": ["a", None]}, "FILE row 2 has no value"),
    ("a.parquet", {"key": [["a"]], "value": ["a"]}, "column 'key' has type list<"),
    ("a.parquet", {"value": ["a"], "headers": ["x"]}, "FILE: column 'headers' has type "),
    ("a.parquet", {"value": ["a"], "headers": [[{"key": "h", "val": "x"}]]}, "FILE: column 'headers' has type list<"),
    ("a.parquet", {"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, "column 'm' has type map<"),
    ("a.parquet", {"key": texts(b"a", BAD), "value": texts(b"1", b"2")}, "the key of FILE row 2 is not valid UTF-8"),
    ("a.parquet", {"n": [1, 2], "t": texts(b"a", BAD)}, "FILE row 2 has text in 't' that is not UTF-8"),
    (
        "a.parquet",
        {"value": texts(b"1", b"2"), "headers": headers_of(b"ok", BAD)},
        "a header of FILE row 2 has a key that is not",
    ),
]
"""For the untyped queue: the file's name and options, what is in it, and what is said; `FILE` is its path."""

FIELDS = [
    ("id", "", "empty, which is null in CSV, and the queue's schema says BIGINT NOT NULL"),
    ("id", "9" * 50, "is no BIGINT: give a whole number in digits"),
    ("small", "1.0", "'1.0' is no TINYINT: give a whole number in digits"),
    ("ok", "yes", "'yes' is no BOOLEAN: give true or false"),
    ("x", "1,5", "'1,5' is no DOUBLE: give a number such as 4.5 or 1e-3, or NaN, Infinity, -Infinity"),
    ("x", "1e400", "'1e400' is no DOUBLE: give a number that is not so large"),
    ("day", "2026-02-30", "'2026-02-30' is no DATE: give one such as 2026-11-20"),
    ("at", "2026-11-20T08:30:00", "is no TIMESTAMP: give one with its offset, such as 2026-11-20T08:30:00Z"),
    ("at", "2026-11-20T08:30:00.1234567Z", "is no TIMESTAMP: give one without nanoseconds"),
    ("at", "0001-01-01T00:00:00+01:00", "is no TIMESTAMP: give one in the years 1 to 9999"),
    ("wall", "2026-11-20T08:30:00Z", "is no TIMESTAMP_NTZ: give one without an offset"),
    ("raw", "ü", "is no BINARY: give bytes in base64"),
    ("tags", "a;b", "'a;b' is no ARRAY<STRING>: give JSON"),
    ("m", '{"x": 1}', "column 'm.key': 'x' is no INT: give a whole number in digits"),
    ("m", '{"1": 1, "1": 2}', f"is no MAP<INT, DOUBLE>: give JSON (the name '1' {TWICE}"),
    ("z", '{"0.0": 1, "-0.0": 2}', "has a key twice: give each once"),
]
"""Of CSV, for the typed queue."""

ROWS = {
    '{"id": "1"}': "column 'id': '1' (str) is no BIGINT",
    '{"id": 1, "x": "1"}': "column 'x': '1' is no DOUBLE: give a number, or \"NaN\"",
    '{"id": 1, "x": NaN}': "is no JSON (NaN is no JSON number)",
    '{"id": 1, "total": "1,5"}': "column 'total': '1,5' is no DECIMAL(7,2): give a number such as 12.50",
    '{"id": 1, "m": {"1": "x"}}': "column 'm.value': 'x' is no DOUBLE",
    '{"id": 1, "m": [[1, 2], [1, 3]]}': "column 'm.key': ",
    '{"id": 1, "x": 1e99999999999999999999}': "is no JSON (a number has an exponent that is too large",
    '{"id": 1, "total": 1e999999999999999999}': "column 'total': 1E+999999999999999999 (Decimal) is no DECIMAL",
    '{"id": 1, "colour": 1}': "column 'colour': there is no such column, but id, name",
    '{"name": "x"}': "column 'id': missing, where the queue's schema says BIGINT NOT NULL",
    '{"id": 1, "_headers": 5}': "has a number or boolean for its headers",
    "5": 'is no JSON object: write one per line, such as {"id": …, "name": …, "total": …}',
}
"""Of standard input, for the typed queue."""

COLUMNS: list[tuple[str, Any, str]] = [
    (
        "a.csv",
        "id,colour\n1,2\n",
        ": queue 'rows' cannot take these rows: column 'colour' (STRING) is none of the queue",
    ),
    # The first line that is wrong is named, whatever the order of columns.
    ("a.csv", "id,small\n1,1\n2,x\ny,2\n", "line 3, column 'small': 'x' is no TINYINT"),
    ("a.parquet", {"id": [1], "small": [1]}, "column 'small' has type BIGINT, the queue's is TINYINT: cast it"),
    ("a.parquet", {"id": [1] * 9000 + [None]}, "row 9001, column 'id': null, where the queue's"),
    # The queue says itself what the key is.
    ("a.csv --key-column id", "id\n1\n", "its key is its column 'id': leave the key column (--key-column) out"),
    ("a.csv --whole-rows", "id\n1\n", "leave whole rows (--whole-rows) out"),
]
"""For the typed queue."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Partq:
    """A store with an untyped queue and a typed one; nothing is ever published to them."""
    partq = Partq(tmp_path_factory.mktemp("refusals") / "store")
    partq("queue", "create", "orders", "--partitions", 1)
    partq("queue", "create", "rows", "--partitions", 1, "--schema", DDL, "--key", "id")
    return partq


def refused(partq: Partq, folder: Path, queue: str, line: str, content: Any) -> str:
    """What is said of a file of this name and options; its path is `FILE`."""
    name, *options = line.split(" ")
    given = source(folder, name, content)
    said = partq.error("publish", queue, *given["words"], *options, stdin=given["stdin"])
    assert partq.is_untouched(queue)
    return said.replace(str(folder / name), "FILE") if name else said


@pytest.mark.parametrize(("line", "reason"), LINES.items(), ids=lambda value: value[:30])
def test_a_bad_line_is_named(both: Partq, tmp_path: Path, line: str, reason: str) -> None:
    said = refused(both, tmp_path, "orders", "", '{"value":"good"}\n\n' + line + '\n{"value":"good"}\n')
    assert said.startswith(f"standard input line 3 {reason}")


@pytest.mark.parametrize(
    ("queue", "line", "content", "reason"),
    [*(("orders", *each) for each in FILES), *(("rows", *each) for each in COLUMNS)],
)
def test_a_bad_file_is_named(both: Partq, tmp_path: Path, queue: str, line: str, content: Any, reason: str) -> None:
    assert reason in refused(both, tmp_path, queue, line, content)


@pytest.mark.parametrize(("column", "field", "reason"), FIELDS)
def test_a_field_of_csv_that_does_not_convert_is_named_by_line_column_and_value(
    both: Partq, tmp_path: Path, column: str, field: str, reason: str
) -> None:
    quoted = '"' + field.replace('"', '""') + '"'
    names, other, first = ("id", "", "7") if column == "id" else (f"id,{column}", "1,", "")
    content = f"{names}\n{other}{first}\n\n{other}{quoted}\n{other}{quoted}\n"
    said = refused(both, tmp_path, "rows", "rows.csv", content)
    assert said.startswith(f"FILE line 4, column '{column}")
    assert reason in said


@pytest.mark.parametrize(("line", "reason"), ROWS.items())
def test_a_line_that_is_no_row_is_named_with_its_column(both: Partq, tmp_path: Path, line: str, reason: str) -> None:
    said = refused(both, tmp_path, "rows", "", f'{{"id": 1}}\n\n{line}\n')
    assert said.startswith("standard input line 3")
    assert reason in said


def test_a_damaged_or_cut_off_gzip_file_is_refused(both: Partq, tmp_path: Path) -> None:
    whole = gzip.compress(json_lines({"value": str(i)} for i in range(5000)).encode())
    for content in (whole[: len(whole) // 2], whole[:50] + b"\x00\x00\x00\x00" + whole[54:], b"no gzip"):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(content)
        assert f"{path} cannot be read after line" in both.error("publish", "orders", "--file", path)
    assert both.is_untouched()


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz", "a.gz", ".csv"])
def test_an_unknown_kind_of_file_is_wrong_use(both: Partq, tmp_path: Path, name: str) -> None:
    message = both.misuse("publish", "orders", "--file", written(tmp_path / name, "x"))
    assert ".csv, .jsonl, .ndjson or .json" in message


@pytest.mark.conformance("DIS-04")
def test_what_is_too_long_or_not_utf_8_is_named_by_its_line(partq: Partq, tmp_path: Path) -> None:
    """A key's bytes are counted, not characters; a line without an end is refused in bounded memory."""
    partq("queue", "create", "orders", "--partitions", 1, "--max-message-bytes", 300)
    typed = ("--schema", "k STRING, v STRING", "--key", "k")
    partq("queue", "create", "rows", "--partitions", 1, "--max-message-bytes", 300, *typed)
    key = {"key": "é" * 127 + "a", "value": "x"}
    exact = {"key": "k" * 10, "value": "v" * 260, "headers": {"h" * 10: "w" * 20}}
    for queue, line, content, reason in (
        ("orders", "", json_lines([key, {**key, "key": "é" * 128}]), "the key of standard input line 2 has 256 bytes"),
        ("orders", "", b'{"value":"a"}\n{"value":"\xff"}\n', "standard input line 2 is not UTF-8 (byte 0xff at 10)"),
        (
            *("orders", "", json_lines([exact, {**exact, "key": "k" * 11}])),
            "the message of standard input line 2 has 301 bytes (key, value and headers), queue 'orders' takes 300",
        ),
        ("orders", "", '{"value":"' + "x" * 1_100_000, "standard input line 1 has more than 1,050,376 bytes"),
        (
            "rows",
            "a.csv",
            f"k,v\na,b\na,{'x' * 300}\n",
            "the message of FILE line 3 has 301 bytes (in all its columns), queue 'rows' takes 300",
        ),
        ("rows", "a.csv", f"k,v\na,b\n{'x' * 256},\n", "the key of FILE line 3 has 256 bytes"),
        ("rows", "", json_lines([{"k": "x" * 256}]), "standard input line 1, column 'k': the key 'xxx"),
    ):
        said = refused(partq, tmp_path, queue, line, content)
        assert said.startswith(reason), said
    partq("publish", "orders", stdin=json_lines([key, exact]))
