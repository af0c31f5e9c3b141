"""`partq publish --file`: what rows of files become, what is refused, and what is reported."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partq_spark.client.files import messages as messages_module
from partq_spark.client.files.sources import open_source
from tests.cli.conftest import Partq, json_lines, nothing_is_published, parquet, written


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
    content = 'tail,flight,delay,origin,note\nN1,15,-3.50,JFK,"say ""hi"""\n,007,1e5,EWR,\n'
    done = orders("publish", "orders", "--file", written(tmp_path / "a.csv", content), "--key-column", "tail")
    assert done.stdout.startswith(f"Published 2 messages from {tmp_path}/a.csv to queue 'orders'")
    assert done.stdout.splitlines()[0].endswith(": each row as a JSON object, key from 'tail'.")
    assert orders.messages("orders") == [
        ("N1", '{"tail":"N1","flight":15,"delay":-3.50,"origin":"JFK","note":"say \\"hi\\""}'),
        (None, '{"tail":null,"flight":"007","delay":"1e5","origin":"EWR","note":null}'),
    ]


def test_rows_of_parquet_become_json_by_their_types(orders: Partq, tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "a.parquet",
        id=pa.array([1, 2], pa.int64()),
        price=pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
        tags=pa.array([["a", "b"], None], pa.list_(pa.string())),
    )
    orders("publish", "orders", "--file", path, "--key-column", "id")
    assert orders.messages("orders") == [
        ("1", '{"id":1,"price":1.50,"tags":["a","b"]}'),
        ("2", '{"id":2,"price":null,"tags":null}'),
    ]


def test_rows_of_json_lines_are_published_as_they_stand(orders: Partq, tmp_path: Path) -> None:
    lines = '{"id": 7, "price": 1.50}\n  {"price":2,   "id":null}  \n'
    orders("publish", "orders", "--file", written(tmp_path / "a.jsonl", lines), "--key-column", "id")
    assert orders.messages("orders") == [("7", '{"id": 7, "price": 1.50}'), (None, '{"price":2,   "id":null}')]


def test_a_column_named_key_is_the_key_unless_another_is_named(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "key,id,x\na,b,c\n")
    orders("publish", "orders", "--file", path)
    orders("publish", "orders", "--file", path, "--key-column", "id")
    assert [key for key, _ in orders.messages("orders")] == ["a", "b"]


def test_the_key_column_works_with_a_value_column_too(orders: Partq, tmp_path: Path) -> None:
    orders("publish", "orders", "--file", written(tmp_path / "a.csv", "id,value\n1,x\n"), "--key-column", "id")
    orders("publish", "orders", "--key-column", "id", stdin='{"id":2,"value":"y"}\n')
    assert orders.messages("orders") == [("1", "x"), ("2", "y")]


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
    assert nothing_is_published(orders)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": [1, 2]}, "has a column 'value' of type int64"),
        ({"value": ["a", None]}, "row 2 has no value"),
        ({"key": [b"\xff"], "value": ["a"]}, "row 1 has a key that is not UTF-8"),
        ({"key": [["a"]], "value": ["a"]}, "column 'key' has type list<"),
        ({"value": ["a"], "headers": ["x"]}, "has a column 'headers' of type string"),
        ({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, "column 'm' has type map<"),
    ],
)
def test_columns_of_the_wrong_type_are_named(
    orders: Partq, tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    message = orders.error("publish", "orders", "--file", parquet(tmp_path / "a.parquet", **columns))
    assert reason in message
    assert nothing_is_published(orders)


def test_a_damaged_or_cut_off_gzip_file_is_refused(orders: Partq, tmp_path: Path) -> None:
    whole = gzip.compress(json_lines({"value": str(i)} for i in range(5000)).encode())
    for content in (whole[: len(whole) // 2], whole[:50] + b"\x00\x00\x00\x00" + whole[54:], b"no gzip"):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(content)
        assert f"{path} cannot be read after line" in orders.error("publish", "orders", "--file", path)
    assert nothing_is_published(orders)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz", "a.gz", ".csv"])
def test_an_unknown_kind_of_file_is_wrong_use(orders: Partq, tmp_path: Path, name: str) -> None:
    message = orders.misuse("publish", "orders", "--file", written(tmp_path / name, "x"))
    assert ".csv, .jsonl, .ndjson or .json" in message


def test_a_file_that_is_not_there_is_wrong_use(orders: Partq, tmp_path: Path) -> None:
    assert "does not exist" in orders.misuse("publish", "orders", "--file", tmp_path / "none.csv")
    assert "is a directory" in orders.misuse("publish", "orders", "--file", tmp_path)


def test_a_parquet_file_is_read_in_batches_of_bounded_bytes(
    orders: Partq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    check = messages_module.check

    def watched(chunk: messages_module.Chunk, *rest: Any) -> None:
        sizes.append(chunk.batch.nbytes)
        check(chunk, *rest)

    monkeypatch.setattr(messages_module, "check", watched)
    values = [os.urandom(20_000) for _ in range(600)]
    done = orders.json("publish", "orders", "--file", parquet(tmp_path / "a.parquet", value=values))
    assert len(sizes) > 2
    assert max(sizes) <= 1.2 * messages_module.CHUNK_BYTES
    assert done["messages"] == 600


def test_json_reports_are_complete(orders: Partq, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,x\n1,2\n,3\n")
    done = json.loads(orders("publish", "orders", "--file", path, "--key-column", "id", "--json").stdout)
    assert (done["published"], done["already_published"], done["messages"], done["without_key"]) == (True, False, 2, 1)
    assert done["partitions"] == [{"partition": 0, "messages": 2}]
    assert done["sequence"] == 2
    assert done["timestamp"] == orders.browse("orders")[0]["timestamp"]


@pytest.mark.parametrize("part", ["header keys", "headers without anything", "keys", "values", "header values"])
def test_what_lines_hold_is_taken_in_chunks_of_bounded_bytes(tmp_path: Path, part: str) -> None:
    """Some 10 MB of each, in lines that are otherwise small: no part of a message is left out of the count."""
    long = "x" * 20_000
    rows: dict[str, dict[str, Any]] = {
        "header keys": {"value": "v", "headers": [{"key": long, "value": None}]},
        "headers without anything": {"value": "v", "headers": [{"key": None, "value": None}] * 200},
        "keys": {"value": "v", "key": long},
        "values": {"value": long},
        "header values": {"value": "v", "headers": {"h": long}},
    }
    row = rows[part]
    file = written(tmp_path / "in.jsonl", json_lines([row] * 500))
    with open_source(str(file), key_column=None, whole_rows=False, max_message_bytes=10_000_000) as source:
        chunks = [chunk.batch.num_rows for chunk in source.chunks()]
    assert sum(chunks) == 500
    assert max(chunks) < 250


def test_empty_fields_count_too(tmp_path: Path) -> None:
    file = written(tmp_path / "in.csv", ",".join(f"c{i}" for i in range(1000)) + "\n" + ("," * 999 + "\n") * 1000)
    with open_source(str(file), key_column=None, whole_rows=True, max_message_bytes=10_000_000) as source:
        assert max(chunk.batch.num_rows for chunk in source.chunks()) < 300


def test_texts_that_a_parquet_file_writes_once_are_counted_as_often_as_they_come(orders: Partq, tmp_path: Path) -> None:
    """A thousand messages of 100 kB in a file of some kilobytes: as they come they would be 100 MB in one chunk."""
    values: list[Any] = [b"x" * 100_000] * 1000 + [b"y", b"z"]
    file = parquet(tmp_path / "a.parquet", value=values, key=["a"] * 1000 + [None, "b"])
    assert file.stat().st_size < 100_000
    with open_source(str(file), key_column=None, whole_rows=False, max_message_bytes=10_000_000) as source:
        found = [(chunk.batch.nbytes, chunk.batch.num_rows, list(chunk.places)) for chunk in source.chunks()]
    assert max(size for size, _, _ in found) < 5_000_000
    assert [place for _, _, places in found for place in places] == list(range(1, 1003))
    rows = parquet(tmp_path / "b.parquet", value=["a", "b", "a", "c"], key=[b"k", None, b"k", b"l"])
    orders("publish", "orders", "--file", rows)
    assert orders.messages("orders") == [("k", "a"), (None, "b"), ("k", "a"), ("l", "c")]
