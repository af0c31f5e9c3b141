"""`partq publish` into typed queues from CSV, JSON lines and Parquet, and what `partq browse` shows of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given

import partq as api
from tests.cli.conftest import parquet, written
from tests.log.schema.shapes import batches, same
from tests.support.command_line import Partq, json_lines
from tests.support.properties import examples

DDL = (
    "id BIGINT NOT NULL, name STRING, total DECIMAL(7,2), ok BOOLEAN, small TINYINT, x DOUBLE, f FLOAT, at TIMESTAMP, "
    "wall TIMESTAMP_NTZ, day DATE, raw BINARY, tags ARRAY<STRING>, who STRUCT<a: INT, b: DATE>, m MAP<INT, DOUBLE>"
)


CSV = (
    "day,id,name,total,ok,small,x,f,at,wall,raw,tags,who,m\n"
    '2026-11-20,1,"tea, ""green""",12.5,TRUE,-5,1e-7,.5,2026-11-20T09:30:00.25+01:00,2026-11-20 08:30:00,AP8=,'
    '"[""a"", null]","{""a"": 1, ""b"": ""2026-01-01""}","{""1"": 0.5, ""2"": null}"\n'
    ",2,,,,,,,,,,,,\n"
)


@pytest.fixture
def rows(partq: Partq) -> Partq:
    """A store with the typed queue `orders`."""
    partq("queue", "create", "orders", "--partitions", 1, "--schema", DDL, "--key", "id")
    return partq


def values(partq: Partq, queue: str = "orders") -> list[dict[str, Any]]:
    return [each.value for each in api.open_queue(queue, store=partq.url).browse()]


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-02")
def test_csv_is_read_by_the_types_of_the_columns_and_what_browse_prints_is_read_again(
    rows: Partq, tmp_path: Path
) -> None:
    for name in ("rows.csv", "rows.csv.gz"):
        said = rows("publish", "orders", "--file", written(tmp_path / name, CSV)).stdout
        assert said.startswith("Published 2 messages from ")
    printed = "".join(rows("browse", "orders", "--json", "--limit", 2).stdout)
    first = json.loads(printed.splitlines()[0])
    assert first.pop("_metadata").keys() == {"partition", "offset", "timestamp"}
    assert first == {
        "id": 1,
        "name": 'tea, "green"',
        "total": "12.50",
        "ok": True,
        "small": -5,
        "x": 1e-07,
        "f": 0.5,
        "at": "2026-11-20T08:30:00.250000Z",
        "wall": "2026-11-20T08:30:00.000000",
        "day": "2026-11-20",
        "raw": "AP8=",
        "tags": ["a", None],
        "who": {"a": 1, "b": "2026-01-01"},
        "m": {"1": 0.5, "2": None},
    }
    rows("publish", "orders", stdin=printed)
    rows("publish", "orders", "--file", written(tmp_path / "rows.jsonl", printed))
    (row, empty), others = values(rows)[:2], values(rows)[2:]
    assert (row["total"], row["wall"], row["raw"]) == (Decimal("12.50"), datetime(2026, 11, 20, 8, 30), b"\0\xff")  # noqa: DTZ001
    assert empty == {**dict.fromkeys(row), "id": 2}
    assert others == [row, empty] * 3


def test_headers_are_printed_and_read(rows: Partq) -> None:
    line = {"id": 1, "_headers": {"trace": "7f3a", "raw": None}, "_metadata": {"offset": 7}}
    rows("publish", "orders", stdin=json_lines([line, {"id": 2}]))
    first, second = rows.browse("orders")
    assert first["_headers"] == [{"key": "trace", "value": "7f3a"}, {"key": "raw", "value": None}]
    assert "_headers" not in second
    rows("publish", "orders", stdin=json_lines([first]))
    assert rows.browse("orders")[-1]["_headers"] == first["_headers"]
    assert "trace=7f3a, raw=null" in rows("browse", "orders", COLUMNS="400").stdout


def as_arrow(kind: pa.DataType, value: Any) -> Any:
    """A value of a message as pyarrow would give it: a MAP as a list of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(as_arrow(kind.key_type, key), as_arrow(kind.item_type, item)) for key, item in pairs]
    if pa.types.is_list(kind):
        return [as_arrow(kind.value_type, each) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: as_arrow(field.type, value[field.name]) for field in kind}
    return value


def as_csv(lines: str, names: list[str]) -> str:
    """What `partq browse --json` printed, as CSV: text as it is, anything else as JSON."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(names)
    for line in lines.splitlines():
        cells = [json.loads(line)[name] for name in names]
        texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in cells]
        writer.writerow("" if cell is None else text for cell, text in zip(cells, texts, strict=True))
    return file.getvalue()


@pytest.mark.conformance("TYP-02")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches())
def test_what_goes_in_one_way_comes_out_and_goes_in_every_other_way(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch
) -> None:
    """Rows of any columns: as a table, one by one, as lines, as a Parquet file and as CSV; all come back as they were,
    browsed, read and consumed.
    """
    store = tmp_path_factory.mktemp("store")
    partq = Partq(store)
    queue = api.create_queue("orders", partitions=1, store=partq.url, schema=batch.schema)
    wanted = batch.to_pylist()
    with queue.publisher() as publisher:
        publisher.send_table(batch)
        for row in wanted:
            publisher.send(row)
    seen = list(queue.browse())
    with queue.publisher() as publisher:
        for message in seen[: len(wanted)]:
            publisher.send(message.value)
    printed = partq("browse", "orders", "--json", "--limit", max(1, len(wanted))).stdout
    partq("publish", "orders", stdin=printed)
    pq.write_table(pa.table(queue.read()).slice(0, len(wanted)), store / "rows.parquet")
    partq("publish", "orders", "--file", store / "rows.parquet")
    table = pa.table(queue.read()).drop_columns(["_metadata"])
    assert table.schema.equals(batch.schema)
    assert same(table.to_pylist(), wanted * 5)
    rows = [{field.name: as_arrow(field.type, each.value[field.name]) for field in batch.schema} for each in seen]
    assert same(rows, wanted * 2)
    assert {each.key for each in seen} <= {None}
    with queue.consumer("billing", starting="earliest") as consumer:
        given_out = consumer.poll(5) if wanted else None
        assert given_out is None or same(list(given_out)[: len(seen)], seen)
    file = written(store / "rows.csv", as_csv(printed, batch.schema.names))
    if wanted and not any(value in ("", b"") for row in wanted for value in row.values()):  # which is null in CSV
        partq("publish", "orders", "--file", file)
        assert same(pa.table(queue.read()).drop_columns(["_metadata"]).to_pylist()[-len(wanted) :], wanted)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("id,colour", "column 'colour' (STRING) is none of the queue's (id, name,"),
        ("name,total", "column 'id' (BIGINT NOT NULL) is missing: the queue needs it in every row"),
        ("id,ID", "columns 'id' and 'ID' are both the queue's column 'id': give one"),
        ("id,_headers", "column '_headers' (STRING) is none of the queue's"),
    ],
)
def test_columns_of_csv_that_do_not_fit_are_refused(rows: Partq, tmp_path: Path, header: str, said: str) -> None:
    file = written(tmp_path / "rows.csv", f"{header}\n1,2\n")
    error = rows.error("publish", "orders", "--file", file)
    assert error.startswith(f"{file}: queue 'orders' cannot take these rows: ")
    assert said in error
    assert rows.is_untouched()


def test_columns_have_their_names_in_any_case_and_order(rows: Partq, tmp_path: Path) -> None:
    rows("publish", "orders", "--file", written(tmp_path / "rows.csv", "NAME,Id\ntea,1\n"))
    rows("publish", "orders", stdin='{"NAME": "tea", "ID": 2, "who": {"B": null, "A": 5}}\n')
    names = pa.array(["tea", "pot"]).dictionary_encode()
    rows("publish", "orders", "--file", parquet(tmp_path / "a.parquet", Name=names, iD=pa.array([3, 4], pa.uint32())))
    found = [(each["id"], each["name"]) for each in values(rows)]
    assert found == [(1, "tea"), (2, "tea"), (3, "tea"), (4, "pot")]
    assert values(rows)[1]["who"] == {"a": 5, "b": None}


def test_the_key_is_the_queues(rows: Partq, tmp_path: Path) -> None:
    error = rows.error("publish", "orders", "--key-column", "id", stdin='{"id": 1}\n')
    assert error == "queue 'orders' is typed, and its key is its column 'id': leave the key column (--key-column) out"
    assert "leave whole rows (--whole-rows) out" in rows.error("publish", "orders", "--whole-rows", stdin='{"id": 1}\n')
    assert rows.is_untouched()
    rows("publish", "orders", stdin='{"id": 1}\n')
    (message,) = api.open_queue("orders", store=rows.url).browse()
    assert message.key == "1"
    rows("queue", "create", "keyless", "--partitions", 1, "--schema", "a INT")
    assert "its messages have no key" in rows.error("publish", "keyless", "--key-column", "a", stdin='{"a": 1}\n')
    assert "1 message without a key went" in rows("publish", "keyless", stdin='{"a": 1}\n').stdout


# --- values -----------------------------------------------------------------------------------------------------------


BAD_FIELDS = [
    ("id", "", "empty, which is null in CSV, and the queue's schema says BIGINT NOT NULL"),
    ("small", "128", "128 (int) is no TINYINT: give an int from -128 to 127"),
    ("small", "1.0", "'1.0' is no TINYINT: give a whole number in digits"),
    ("small", " 1", "' 1' is no TINYINT"),
    ("id", "9" * 50, "is no BIGINT: give a whole number in digits"),
    ("ok", "yes", "'yes' is no BOOLEAN: give true or false"),
    ("x", "1,5", "'1,5' is no DOUBLE: give a number such as 4.5 or 1e-3, or NaN, Infinity, -Infinity"),
    ("x", "1e400", "'1e400' is no DOUBLE: give a number that is not so large"),
    ("f", "1e39", "1e+39 (float) is no FLOAT: give a number that is not so large"),
    ("total", "1.234", "1.234 (Decimal) is no DECIMAL(7,2): give a number with at most 5 digits before the point"),
    ("day", "2026-02-30", "'2026-02-30' is no DATE: give one such as 2026-11-20"),
    ("at", "2026-11-20T08:30:00", "is no TIMESTAMP: give one with its offset, such as 2026-11-20T08:30:00Z"),
    ("at", "2026-11-20T08:30:00.1234567Z", "is no TIMESTAMP: give one without nanoseconds"),
    ("at", "0001-01-01T00:00:00+01:00", "is no TIMESTAMP: give one in the years 1 to 9999"),
    ("wall", "2026-11-20T08:30:00Z", "is no TIMESTAMP_NTZ: give one without an offset"),
    ("raw", "ü", "is no BINARY: give bytes in base64"),
    ("tags", "a;b", "'a;b' is no ARRAY<STRING>: give JSON"),
    ("who", '{"c": 1}', "column 'who.c': there is no such field, but a, b: leave it out"),
    ("m", '{"x": 1}', "column 'm.key': 'x' is no INT: give a whole number in digits"),
    (
        "m",
        '{"1": 1, "1": 2}',
        "is no MAP<INT, DOUBLE>: give JSON (the name '1' is there twice in one object: keep one)",
    ),
    (
        "m",
        '{"1": 1e99999999999999999999}',
        "give JSON (a number has an exponent that is too large: give one in digits)",
    ),
]


@pytest.mark.parametrize(("column", "field", "said"), BAD_FIELDS)
def test_a_field_of_csv_that_does_not_convert_is_named_by_line_column_and_value(
    rows: Partq, tmp_path: Path, column: str, field: str, said: str
) -> None:
    quoted = '"' + field.replace('"', '""') + '"'
    other = "" if column == "id" else "id,"
    one = "" if column == "id" else "1,"
    text = f"{other}{column}\n{one}{'7' if column == 'id' else ''}\n\n{one}{quoted}\n{one}{quoted}\n"
    file = written(tmp_path / "rows.csv", text)
    error = rows.error("publish", "orders", "--file", file)
    where, _, what = error.partition(", ")
    assert where == f"{file} line 4"
    assert what.startswith(f"column '{column}")
    assert said in what
    assert rows.is_untouched()


def test_the_first_line_that_is_wrong_is_named_whatever_the_order_of_columns(rows: Partq, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.csv", "id,small\n1,1\n2,x\ny,2\n")
    assert f"{file} line 3, column 'small': 'x' is no TINYINT" in rows.error("publish", "orders", "--file", file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "1"}', "column 'id': '1' (str) is no BIGINT"),
        ('{"id": 1, "x": "1"}', "column 'x': '1' is no DOUBLE: give a number, or \"NaN\""),
        ('{"id": 1, "x": NaN}', "is no JSON (NaN is no JSON number)"),
        ('{"id": 1, "total": "1,5"}', "column 'total': '1,5' is no DECIMAL(7,2): give a number such as 12.50"),
        ('{"id": 1, "at": "2026-11-20"}', "column 'at': '2026-11-20' is no TIMESTAMP"),
        ('{"id": 1, "raw": "*"}', "column 'raw': '*' is no BINARY: give bytes in base64"),
        ('{"id": 1, "m": {"1": "x"}}', "column 'm.value': 'x' is no DOUBLE"),
        ('{"id": 1, "m": [[1, 2], [1, 3]]}', "column 'm.key': "),
        (
            '{"id": 1, "m": {"1": 1, "2": 1, "1": 2}}',
            "is no JSON (the name '1' is there twice in one object: keep one)",
        ),
        ('{"id": 1, "id": 2}', "is no JSON (the name 'id' is there twice in one object: keep one)"),
        ('{"id": 1, "x": 1e99999999999999999999}', "is no JSON (a number has an exponent that is too large"),
        ('{"id": 1, "total": 1e999999999999999999}', "column 'total': 1E+999999999999999999 (Decimal) is no DECIMAL"),
        ('{"id": 1, "colour": 1}', "column 'colour': there is no such column, but id, name"),
        ('{"name": "x"}', "column 'id': missing, where the queue's schema says BIGINT NOT NULL"),
        ('{"id": 1, "_headers": 5}', "has a number or boolean for its headers"),
        ("[1]", "is a JSON array"),
        ("5", 'is no JSON object: write one per line, such as {"id": …, "name": …, "total": …}'),
    ],
)
def test_a_line_of_json_that_is_no_row_is_named_with_its_column_and_value(rows: Partq, line: str, said: str) -> None:
    error = rows.error("publish", "orders", stdin=f'{{"id": 1}}\n\n{line}\n')
    assert error.startswith("standard input line 3")
    assert said in error
    assert rows.is_untouched()


def test_keys_that_spark_takes_for_one_are_repeated_by_csv_and_json(partq: Partq, tmp_path: Path) -> None:
    partq("queue", "create", "orders", "--partitions", 1, "--schema", "m MAP<DOUBLE, INT>")
    file = written(tmp_path / "rows.csv", 'm\n"{""0.0"": 1, ""-0.0"": 2}"\n')
    assert "has a key twice: give each once" in partq.error("publish", "orders", "--file", file)
    for keys in ('{"0.0": 1, "-0": 2}', "[[0, 1], [-0.0, 2]]"):
        assert "has a key twice: give each once" in partq.error("publish", "orders", stdin=f'{{"m": {keys}}}')
    assert partq.is_untouched()


def test_numbers_of_json_keep_every_digit(rows: Partq) -> None:
    rows("publish", "orders", stdin='{"id": 9223372036854775807, "total": 12345.10, "x": 5, "f": 1e1}\n')
    (found,) = values(rows)
    assert (found["id"], found["total"], found["x"], found["f"]) == (2**63 - 1, Decimal("12345.10"), 5.0, 10.0)


def test_parquet_is_refused_by_row_column_and_both_types(rows: Partq, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    later = pa.array([0, 1], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    for columns, said in (
        ({"id": [1], "small": [1]}, "column 'small' has type BIGINT, the queue's is TINYINT: cast it"),
        ({"id": [1], "colour": ["red"]}, "column 'colour' (STRING) is none of the queue's"),
        ({"id": [1] * 9000 + [None], "name": ["x"] * 9001}, f"{file} row 9001, column 'id': null, where the queue's"),
        ({"id": [1, 2], "at": later}, f"{file} row 2, column 'at': 1970-01-01 00:00:00.000000001+00:00"),
        ({"id": [1], "_headers": ["x"]}, "column '_headers' has type STRING"),
    ):
        assert said in rows.error("publish", "orders", "--file", parquet(file, **columns))
    assert rows.is_untouched()


def test_int96_of_parquet_is_a_timestamp_as_spark_has_it(partq: Partq, tmp_path: Path) -> None:
    """Also where nanoseconds since 1970 would not do, and in what is nested."""
    ddl = "id INT, at TIMESTAMP, l ARRAY<TIMESTAMP>, s STRUCT<n: INT, at: TIMESTAMP>, m MAP<STRING, TIMESTAMP>"
    partq("queue", "create", "orders", "--partitions", 1, "--schema", f"{ddl}, wall TIMESTAMP_NTZ")
    late = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    row = {"id": 1, "at": late, "l": [late, None], "s": {"n": 1, "at": late}, "m": {"x": late}}
    schema = api.open_queue("orders", store=partq.url).read().schema
    given = pa.Table.from_pylist([{**row, "m": [("x", late)]}, {"id": 2}], schema=pa.schema(list(schema)[:5]))
    file = tmp_path / "rows.parquet"
    pq.write_table(given, file, use_deprecated_int96_timestamps=True)
    partq("publish", "orders", "--file", file)
    assert values(partq)[0] == {**row, "wall": None}
    assert values(partq)[1] == {**dict.fromkeys(row), "id": 2, "wall": None}
    pq.write_table(
        pa.table({"wall": pa.array([late.replace(tzinfo=None)])}), file, use_deprecated_int96_timestamps=True
    )
    assert "column 'wall' has type TIMESTAMP, the queue's is TIMESTAMP_NTZ" in partq.error(
        "publish", "orders", "--file", file
    )


def test_a_row_that_is_too_large_and_a_key_that_is_too_long_are_named(partq: Partq, tmp_path: Path) -> None:
    partq(
        *("queue", "create", "orders", "--partitions", 1, "--schema", "k STRING, v STRING", "--key", "k"),
        *("--max-message-bytes", 300),
    )
    file = written(tmp_path / "rows.csv", f"k,v\na,b\na,{'x' * 300}\n")
    assert f"the message of {file} line 3 has 301 bytes, the queue takes 300" in partq.error(
        "publish", "orders", "--file", file
    )
    file = written(tmp_path / "rows.csv", f"k,v\na,b\n{'x' * 256},\n")
    assert f"the key of {file} line 3 has 256 bytes" in partq.error("publish", "orders", "--file", file)
    line = json.dumps({"k": "x" * 256})
    assert "line 1, column 'k': the key 'xxx" in partq.error("publish", "orders", stdin=f"{line}\n")


def test_a_topic_that_queues_of_other_columns_attract_is_refused(rows: Partq) -> None:
    rows("queue", "create", "plain", "--partitions", 1)
    for queue in ("orders", "plain"):
        rows("queue", "subscribe", queue, "orders/>")
    error = rows.error("publish", "--topic", "orders/new", stdin='{"id": 1}\n')
    assert "which do not have the same columns: let their subscriptions differ" in error


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_table_shows_the_columns_for_which_there_is_room(rows: Partq, tmp_path: Path) -> None:
    assert rows("browse", "orders").stdout.startswith("No messages of queue 'orders'")
    rows("publish", "orders", "--file", written(tmp_path / "rows.csv", CSV))
    wide = rows("browse", "orders", COLUMNS="400").stdout.splitlines()
    shown = ("12.50", "true", "1e-07", "2026-11-20T08:30:00.250000Z", "0x00ff", '["a", null]', '{"1": 0.5, "2": null}')
    assert [text for text in shown if text not in wide[2]] == []
    assert wide[3].split()[4:] == ["2", *["null"] * 13]
    narrow = rows("browse", "orders", COLUMNS="80").stdout.splitlines()
    assert narrow[0].split()[4:6] == ["id", "name"]
    assert narrow[-1].endswith(" more columns: --json shows all")
    assert all(len(line) <= 80 for line in narrow)
