"""Typed queues in a store of a test's own, and their columns as Spark says them. Nothing here judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from partq_spark.log.admin import create_queue
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.versions import columns_of, schema_from
from partq_spark.objects import open_store
from partq_spark.query.typed_columns import METADATA_TYPES
from tests.support.data_source import Calls

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]
WRITERS: list[Callable[..., None]] = [Calls.append, Calls.publish]
"""A batch write and a micro-batch."""

Row = dict[str, Any]


class PointType(types.UserDefinedType):
    """A type of users, of which Arrow sees an array."""

    @classmethod
    def sqlType(cls) -> types.DataType:  # noqa: N802 - Spark's
        return types.ArrayType(types.DoubleType())

    @classmethod
    def module(cls) -> str:
        return __name__


def create(
    calls: Calls, schema: str | pa.Schema | None, key: str | None = None, name: str = "orders", partitions: int = 1
) -> QueueLog:
    """A queue, an untyped one without a schema."""
    columns = None if schema is None else columns_of(schema_from(schema), key)
    return create_queue(open_store(calls.url), "default", name, partitions, columns=columns)


def spark(ddl: str, *more: StructField) -> StructType:
    """Columns as Spark says them; `more` may have types that no queue keeps, and partq's own names."""
    payload = from_arrow_schema(schema_from(ddl)) if ddl else StructType()
    return StructType([*payload.fields, *more])


def field(name: str, kind: types.DataType) -> StructField:
    return StructField(name, kind)


def metadata(*names: str) -> StructField:
    """`_metadata` with these fields."""
    found = from_arrow_schema(pa.schema([(name, METADATA_TYPES[name]) for name in names]))
    return StructField("_metadata", found)


def headers_type() -> types.DataType:
    found = from_arrow_schema(pa.schema([("headers", METADATA_TYPES["headers"])]))
    return found.fields[0].dataType


def rows_of(table: pa.Table) -> list[Row]:
    """Without what partq knows of them."""
    return table.drop_columns(["_metadata"]).to_pylist()  # type: ignore[no-any-return]
