"""Columns and rows as Spark says and sends them, for the data source called without a JVM. Nothing here judges."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

import partq
from tests.support.data_source import Calls, as_spark_sends

WRITERS: list[Callable[..., None]] = [Calls.append, Calls.publish]
"""A batch write and a micro-batch."""


def create(calls: Calls, schema: str | pa.Schema | None, name: str = "orders", **more: Any) -> partq.Queue:
    """A queue, an untyped one without a schema."""
    return partq.create_queue(name, **{"partitions": 1, **more}, schema=schema, store=calls.url)


@cache
def _loaded(ddl: str) -> StructType:
    """What `.load()` says of a queue with these columns."""
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(url=f"file://{folder}/store")
        create(calls, ddl)
        return calls.load("orders", includeHeaders="true")


def spark(ddl: str, *more: StructField) -> StructType:
    """Columns as Spark says them; `more` may have types that no queue keeps, and partq's own names."""
    return StructType([*(_loaded(ddl).fields[:-1] if ddl else ()), *more])


def field(name: str, kind: types.DataType) -> StructField:
    return StructField(name, kind)


def metadata(*names: str) -> StructField:
    """`_metadata` with these fields, or all."""
    whole = _loaded("id INT")["_metadata"]
    assert isinstance(whole.dataType, StructType)
    return field(whole.name, StructType([whole.dataType[name] for name in names or whole.dataType.names]))


def headers_type() -> types.DataType:
    (found,) = metadata("headers").dataType.fields  # type: ignore[attr-defined]
    kind: types.DataType = found.dataType
    return kind


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Without what partq knows of them."""
    return table.drop_columns(["_metadata"]).to_pylist()  # type: ignore[no-any-return]


def sent(given: StructType, *rows: list[Any], **how: Any) -> list[pa.RecordBatch]:
    """The rows of one task, as Spark sends them."""
    return [as_spark_sends(rows, given, **how)]
