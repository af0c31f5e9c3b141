"""Typed queues in a store of a test's own, called as Spark calls its data sources and without a JVM; their columns as
Spark says them. Nothing here judges.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

import partq
from partq_spark.log.schema import types as kept
from partq_spark.log.schema.versions import schema_from
from partq_spark.query.typed_columns import METADATA_TYPES
from tests.support.data_source import Calls, as_spark_sends

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]
KEY_TYPES = kept.KEY_TYPES
METADATA = list(METADATA_TYPES)
widens = kept.widens

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
) -> partq.Queue:
    """A queue, an untyped one without a schema."""
    return partq.create_queue(name, partitions=partitions, schema=schema, key=key, store=calls.url)


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


def sent(given: StructType, *rows: list[Any], **how: Any) -> list[pa.RecordBatch]:
    """The rows of one task, as Spark sends them."""
    return [as_spark_sends(rows, given, **how)]
