"""Tables of pyarrow, polars, pandas and duckdb, both ways, by the Arrow PyCapsule interface (API-04)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import partq
from partq_spark.client.tables import CHUNK_BYTES, table_source
from partq_spark.log.destinations import stage_of
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.client.conftest import Make

DDL = (
    "id BIGINT, s STRING, b BINARY, f DOUBLE, g FLOAT, d DECIMAL(10,2), day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, "
    "ok BOOLEAN, tiny TINYINT, l ARRAY<STRING>, st STRUCT<a: INT, b: STRING>"
)
ROW: dict[str, Any] = {
    "id": 1,
    "s": "é",
    "b": b"\0\xff",
    "f": 1.5,
    "g": 0.5,
    "d": Decimal("1.50"),
    "day": date(2020, 2, 29),
    "at": datetime(2020, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC),
    "wall": datetime(2020, 1, 1, 12),  # noqa: DTZ001 - a wall clock
    "ok": True,
    "tiny": -5,
    "l": ["x", None],
    "st": {"a": 1, "b": "long enough to lie beside its view"},
}
EMPTY: dict[str, Any] = dict.fromkeys(ROW)
UNTYPED = [("a", b"1"), (None, b"\xff"), ("é", b"")]

pytestmark = pytest.mark.conformance("API-04")


def published(queue: partq.Queue, table: Any) -> None:
    with queue.publisher() as publisher:
        publisher.send_table(table).result()


def rows(queue: partq.Queue) -> list[dict[str, Any]]:
    return [each.value for each in queue.browse()]


def typed(make: Make, ddl: str = DDL, **more: Any) -> partq.Queue:
    return make(partitions=1, schema=ddl, **more)


def from_duckdb(given: Any) -> Any:
    """As a relation of duckdb, which names what it reads by the variable."""
    return duckdb.sql("SELECT * FROM given")


READERS: dict[str, Callable[[Any], Any]] = {
    "pyarrow": pa.table,
    "polars": pl.DataFrame,
    "pandas": lambda table: pa.table(table).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas by itself": pd.DataFrame.from_arrow,
    "duckdb": from_duckdb,
}


@pytest.mark.conformance("DIS-08")
@pytest.mark.parametrize("fails", ["row", "objects.local.TemporaryFile.finish", "client.publication.publish_all", ""])
def test_of_what_fails_no_part_is_published(make: Make, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """And what has not is published once."""
    queue = make()
    value, said = (None, "row 1 has no value") if fails == "row" else ("b", "it was committed")
    with queue.publication() as publication:
        with suppress(partq.Invalid, ZeroDivisionError), monkeypatch.context() as patch:
            if "." in fails:
                patch.setattr(f"partq_spark.{fails}", lambda *_, **__: 1 / 0)
            publication.add(pa.table({"value": ["a", value]}))
            publication.commit()
        for again in (partial(publication.add, pa.table({"value": ["b"]})), publication.commit):
            with pytest.raises(partq.Invalid, match=f"make another publication: {said}"):
                again()
    with queue.publication() as left:
        left.add(pa.table({"value": ["c"]}))
    with pytest.raises(partq.Invalid, match="left before it was committed"):
        left.commit()
    assert len(list(queue.browse())) == (0 if fails else 2)


# --- both ways --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", READERS)
def test_what_a_library_reads_it_publishes_as_it_was(make: Make, library: str) -> None:
    """A plain copy, `_metadata` and all."""
    queue, copy = typed(make), typed(make, name="copy")
    filled = [ROW, EMPTY]
    if library == "pandas by itself":  # its numbers are floats where one is null, and in a struct always BIGINT
        filled = [{**ROW, "st": None}]
    with queue.publisher() as publisher:
        for row in filled:
            publisher.send(row)
    published(copy, READERS[library](queue.read()))
    with queue.consumer("billing", starting="earliest") as consumer:
        published(copy, READERS[library](consumer.poll(5)))
    assert rows(copy) == filled * 2

    queue, copy = make("plain", partitions=1), make("plain-copy", partitions=1)
    with queue.publisher() as publisher:
        for key, value in UNTYPED:
            publisher.send(value, key=key, headers={"h": b"\0"})
    published(copy, READERS[library](queue.read(columns=["headers", "value", "key"])))
    assert [(each.key, each.value) for each in copy.browse()] == UNTYPED
    assert [each.headers for each in copy.browse()] == [(("h", b"\0"),)] * 3


# --- forms of the same values -----------------------------------------------------------------------------------------

MOMENT = datetime(2020, 1, 1, 12, tzinfo=UTC)
WALL = MOMENT.replace(tzinfo=None)

FORMS: dict[str, tuple[str, pa.Array]] = {
    "views": ("STRING", pa.array(["long enough to lie beside its view", None], pa.string_view())),
    "few": (
        "STRING",
        pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int8()), pa.array(["b", "a"], pa.string_view())),
    ),
    "fixed": ("BINARY", pa.array([b"ab", None], pa.binary(2))),
    "unsigned": ("BIGINT", pa.array([2**32 - 1, None], pa.uint32())),
    "short": ("DOUBLE", pa.array([0.5, None], pa.float16())),
    "wide": ("DECIMAL(10,2)", pa.array([Decimal("1.5"), None], pa.decimal256(10, 2))),
    "day": ("DATE", pa.array([date(2020, 1, 1), None], pa.date64())),
    "there": ("TIMESTAMP", pa.array([MOMENT, None], pa.timestamp("ns", "Europe/Berlin"))),
    "wall": ("TIMESTAMP_NTZ", pa.array([WALL, None], pa.timestamp("s"))),
    "list": ("ARRAY<STRING>", pa.array([["a", None], None], pa.list_view(pa.string_view()))),
    "struct": ("STRUCT<a: INT>", pa.array([{"a": 1}, None], pa.struct([("a", pa.uint16())]))),
    "nothing": ("STRING", pa.nulls(2)),
}
"""Every other one is in tests/log/schema/test_conform.py."""


def test_other_forms_of_the_same_values_are_taken_in_any_order_and_case(make: Make) -> None:
    queue = typed(make, ", ".join(f"{name} {kind}" for name, (kind, _) in FORMS.items()) + ", missing INT")
    table = pa.table({name.upper(): FORMS[name][1] for name in reversed(FORMS)})
    published(queue, table)
    published(queue, table.slice(1))
    first, *others = rows(queue)
    wanted: dict[str, Any] = {name: column[0].as_py() for name, (_, column) in FORMS.items()}
    assert first == {**wanted, "missing": None}
    assert first["wide"].as_tuple().exponent == -2
    assert others == [dict.fromkeys(first)] * 2


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("INT", pa.RunEndEncodedArray.from_arrays([1], pa.array([1], pa.int32())), "run_end_encoded"),
        (
            "TIMESTAMP",
            pa.array([0, 1], pa.int64()).cast(pa.timestamp("ns", "UTC")),
            r"row 1, column 'a': 1970-01-01 00:00:00.000000001\+00:00 .* is no TIMESTAMP .*lose data",
        ),
    ],
)
def test_what_could_change_a_value_is_refused_by_its_row(make: Make, kind: str, column: pa.Array, said: str) -> None:
    queue = typed(make, f"a {kind}, z INT")
    with queue.publisher() as publisher:
        with pytest.raises(partq.Invalid, match=said):
            publisher.send_table(pa.table({"a": column}))
        publisher.send({"a": None, "z": 1})
    assert len(rows(queue)) == 1, "and the publisher goes on"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"id": [1], "colour": ["red"]}), r"column 'colour' \(STRING\) is none of the queue's"),
        (pa.table([pa.array([1]), pa.array([1])], ["id", "id"]), "column 'id' is there 2 times: select it once"),
        (pa.table({"id": [1], "ID": [1]}), "columns 'id' and 'ID' are both the queue's column 'id': give one"),
        (pa.table({"s": ["a"]}), r"column 'id' \(BIGINT NOT NULL\) is missing: the queue needs it in every row"),
        (pa.table({"id": [1], "_headers": ["x"]}), r"column '_headers' has type STRING"),
        (
            pa.Table.from_pandas(pd.DataFrame({"id": [1, 2]}, index=[3, 7])),
            "column '__index_level_0__' is the index of a frame of pandas, .*reset_index",
        ),
        ([1, 2], "list is no table: give something with __arrow_c_stream__"),
        (pl.Series("id", [1]), r"Series is no table \(.* non-struct type int64\): give one with named columns"),
    ],
)
def test_columns_that_do_not_fit_are_refused(make: Make, table: Any, said: str) -> None:
    queue = typed(make, "id BIGINT NOT NULL, s STRING")
    with queue.publisher() as publisher, pytest.raises(partq.Invalid, match=said):
        publisher.send_table(table)
    assert queue.describe().log.entries == 0


def test_headers_go_with_rows_in_any_form(make: Make) -> None:
    queue = typed(make, "id BIGINT")
    headers = [[{"key": "a", "value": b"1"}, {"key": None, "value": None}], None]
    given = pl.DataFrame(
        {"id": [1, 2], "_headers": pl.Series(headers, dtype=pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})))}
    )
    published(queue, given)
    with queue.publication() as publication:
        publication.add(given)
        publication.add(pa.table({"id": [3]}))
        publication.commit()
    with queue.publication() as publication:
        publication.add(pa.table({"id": [3]}))
        publication.add(given.slice(1))
        with pytest.raises(partq.Invalid, match=r"some of the messages have headers .* '_headers'"):
            publication.add(given)
    wanted = [(("a", b"1"), (None, None)), None]
    assert [each.headers for each in queue.browse()] == [*wanted, *wanted, None]


LONG = "x" * 2**20


def repeated(kind: pa.DataType, rows: int) -> pa.Array:
    """The same long text in so many rows, which is there once."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int8()).fill_null(0), pa.array([LONG], kind.value_type))
    _, view, text = pa.array([LONG], kind).buffers()
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(view.to_pybytes() * rows), text])


@pytest.mark.parametrize(
    "kind", [pa.string_view(), *(pa.dictionary(pa.int8(), word) for word in (pa.string(), pa.string_view()))]
)
@pytest.mark.parametrize("ddl", ["s STRING", None])
def test_a_long_text_in_many_rows_is_cast_in_bounded_memory(make: Make, ddl: str | None, kind: pa.DataType) -> None:
    queue = make(partitions=1, schema=ddl)
    table = pa.table({"s" if ddl else "value": repeated(kind, 10_000)})
    assert table.nbytes < 3 * len(LONG), "and cast it takes 10 GB"
    before = pa.total_allocated_bytes()
    log = QueueLog(open_store(queue.store), queue.namespace, queue.name)
    most = 0
    parts, take = table_source(table, stage_of(log.refresh()))
    for batch in map(take, islice(parts, 10)):
        assert batch.num_rows == CHUNK_BYTES // len(LONG)
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 4 * CHUNK_BYTES


# --- what the libraries make by themselves ----------------------------------------------------------------------------

OWN: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "polars": (
        lambda: pl.DataFrame(
            {
                "id": pl.Series([2**32 - 1], dtype=pl.UInt32),
                "s": pl.Series(["a"], dtype=pl.Categorical),
                "b": pl.Series([None], dtype=pl.Null),
                "at": pl.Series([WALL], dtype=pl.Datetime("ms")).dt.replace_time_zone("Europe/Berlin"),
                "d": pl.Series([Decimal("1.5")], dtype=pl.Decimal(5, 1)),
                "l": pl.Series([["a", "b"]], dtype=pl.Array(pl.String, 2)),
            }
        ),
        {"id": 2**32 - 1, "s": "a", "d": Decimal("1.50"), "l": ["a", "b"], "at": MOMENT.replace(hour=11)},
    ),
    "pandas": (
        lambda: pd.DataFrame({"id": pd.array([1], dtype="UInt16"), "s": pd.Categorical(["a"]), "day": [MOMENT.date()]}),
        {"id": 1, "s": "a", "day": MOMENT.date()},
    ),
    "duckdb": (
        lambda: duckdb.sql(
            "SELECT 5::UINTEGER AS id, 'b'::ENUM('a', 'b') AS s, TIMESTAMPTZ '2020-01-01 14:00:00+02' AS at,"
            " TIMESTAMP_NS '2020-01-01 12:00:00' AS wall, 12.5::DECIMAL(5,1) AS d"
        ),
        {"id": 5, "s": "b", "at": MOMENT, "wall": WALL, "d": Decimal("12.50")},
    ),
}


@pytest.mark.parametrize("library", OWN)
def test_tables_of_a_library_are_taken_by_its_own_types(make: Make, library: str) -> None:
    queue, (table, wanted) = typed(make), OWN[library]
    published(queue, table())
    assert rows(queue) == [{**EMPTY, **wanted}]
