"""What Spark says of columns, in partq's words, and back: a StructType as names and types, or as columns of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructType

from partq_spark.base.errors import Invalid
from partq_spark.query.settings import WantedColumns, wanted_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from partq_spark.log.model import Head
    from partq_spark.log.schema.columns import Columns
    from partq_spark.query.columns import TypedColumns

_KEPT: Final = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


# --- names and types --------------------------------------------------------------------------------------------------


def column_types(schema: StructType, *, nulls: bool = False) -> list[tuple[str, str]]:
    """The columns in order, name and Spark's simple type string. With `nulls`, ` not null` stands behind what excludes
    null, within other types too.
    """
    if nulls:
        return [(column.name, _type_text(column.dataType, column.nullable)) for column in schema.fields]
    return [(column.name, column.dataType.simpleString()) for column in schema.fields]


def _type_text(kind: DataType, nullable: bool) -> str:
    text = kind.simpleString()
    if isinstance(kind, ArrayType):
        text = f"array<{_type_text(kind.elementType, kind.containsNull)}>"
    elif isinstance(kind, StructType):
        fields = ",".join(f"{field.name}:{_type_text(field.dataType, field.nullable)}" for field in kind.fields)
        text = f"struct<{fields}>"
    return text if nullable else f"{text} not null"


# --- columns of Arrow -------------------------------------------------------------------------------------------------


def keeps(kind: DataType, *, or_void: bool = False) -> bool:
    """Whether a typed queue may have a column of this type; `or_void`: or VOID in its place, or in it. What is not kept
    Arrow may still have: a variant would look like a struct, and a collation would be forgotten.
    """
    if isinstance(kind, ArrayType):
        return keeps(kind.elementType, or_void=or_void)
    if isinstance(kind, MapType):
        return keeps(kind.keyType) and keeps(kind.valueType, or_void=or_void)
    if isinstance(kind, StructType):
        return all(keeps(field.dataType, or_void=or_void) for field in kind.fields)
    if isinstance(kind, NullType):
        return or_void
    if isinstance(kind, StringType):
        return kind == StringType()
    return isinstance(kind, _KEPT)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The columns as Spark wants a source's batches to have them (spark-traps.md 11). For types that are kept."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def default_schema(columns: Columns, include_headers: bool) -> StructType:
    """The columns of a typed queue's reader that names none. As a StructType, since a DDL would have to be quoted as
    the session's settings want it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from partq_spark.query.columns import default_typed_columns

    return from_arrow_schema(default_typed_columns(columns, include_headers).schema)


def wanted_by(head: Head, schema: StructType) -> WantedColumns | TypedColumns:
    """What a reader gives, of the queue with this head, whose `.load()` or `.schema()` said `schema`. Raises `Invalid`
    for the first column that the queue does not have so.
    """
    if head.columns is None:
        return wanted_columns(column_types(schema, nulls=True))
    from partq_spark.query.columns import wanted_typed_columns

    try:
        for field in schema.fields:
            if not keeps(field.dataType):
                known = head.columns.column(field.name)
                is_ = f"it is {known.type}" if known is not None else "which no queue has"
                raise Invalid(
                    f"column {field.name!r} is asked for as {field.dataType.simpleString()}, {is_}: ask for what the "
                    "queue has, and cast it in the query"
                )
        return wanted_typed_columns(head.columns, arrow_schema_of(schema))
    except Invalid as error:
        raise Invalid(f"queue {head.queue!r} is typed: {error}") from None
