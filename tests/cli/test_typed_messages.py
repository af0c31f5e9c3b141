"""`partq publish` into typed queues from CSV, JSON lines and Parquet, and what `partq browse` shows of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
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
def test_csv_is_read_by_the_types_of_columns_and_what_browse_prints_is_read_again(rows: Partq, tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.csv.gz"):
        said = rows("publish", "orders", "--file", written(tmp_path / name, CSV)).stdout
        assert said.startswith("Published 2 messages from ")
    printed = rows("browse", "orders", "--json", "--limit", 2).stdout
    first = json.loads(printed.splitlines()[0])
    assert (first["total"], first["at"], first["raw"]) == ("12.50", "2026-11-20T08:30:00.250000Z", "AP8=")
    rows("publish", "orders", stdin=printed)
    rows("publish", "orders", "--file", written(tmp_path / "rows.jsonl", printed))
    (row, empty), others = values(rows)[:2], values(rows)[2:]
    wall = datetime(2026, 11, 20, 8, 30)  # noqa: DTZ001
    assert list(row.values()) == [
        *(
            1,
            'tea, "green"',
            Decimal("12.50"),
            True,
            -5,
            1e-07,
            0.5,
            wall.replace(microsecond=250_000, tzinfo=UTC),
            wall,
        ),
        *(wall.date(), b"\0\xff", ["a", None], {"a": 1, "b": date(2026, 1, 1)}, {1: 0.5, 2: None}),
    ]
    assert empty == {**dict.fromkeys(row), "id": 2}
    assert others == [row, empty] * 3


def test_what_readers_get_beside_the_columns_is_left_out_of_a_file(rows: Partq, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("_metadata,id,name\n7,1,x\n")
    rows("publish", "orders", "--file", str(file))
    (row,) = rows.browse("orders")
    assert (row["id"], row["name"]) == (1, "x")


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
def test_what_goes_in_comes_out_every_way(tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch) -> None:
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


def test_columns_have_names_in_any_case_and_order_and_numbers_keep_every_digit(rows: Partq, tmp_path: Path) -> None:
    rows("publish", "orders", "--file", written(tmp_path / "rows.csv", "NAME,Id\ntea,1\n"))
    line = '{"NAME": "tea", "ID": 9223372036854775807, "total": 12345.10, "f": 1e1, "who": {"B": null, "A": 5}}'
    rows("publish", "orders", stdin=line)
    names = pa.array(["tea", "pot"]).dictionary_encode()
    rows("publish", "orders", "--file", parquet(tmp_path / "a.parquet", Name=names, iD=pa.array([3, 4], pa.uint32())))
    found = [(each["id"], each["name"]) for each in values(rows)]
    assert found == [(1, "tea"), (2**63 - 1, "tea"), (3, "tea"), (4, "pot")]
    second = values(rows)[1]
    assert (second["total"], second["f"], second["who"]) == (Decimal("12345.10"), 10.0, {"a": 5, "b": None})


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
    wall = pa.table({"wall": pa.array([late.replace(tzinfo=None)])})
    pq.write_table(wall, file, use_deprecated_int96_timestamps=True)
    said = partq.error("publish", "orders", "--file", file)
    assert "column 'wall' has type TIMESTAMP, the queue's is TIMESTAMP_NTZ" in said


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
