"""What messages of typed queues hold in the interleaving check: what is in a column follows from the message's value
and from the column's type when it was staged, so that a reader of a row can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa

from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of
from partq_spark.log.staged import Stage

WIDTHS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
ADDED = ("INT", "STRING", "ARRAY<STRUCT<a: INT NOT NULL>>")

Payload = Mapping[str, Any]


def first_columns() -> Columns:
    """Those that the queue begins with."""
    return columns_of(schema_from("key STRING, value BINARY NOT NULL, n TINYINT"), "key")


def payload_of(key: str | None, value: bytes, schema: pa.Schema) -> dict[str, Any]:
    """A message as it is staged for these columns."""
    row: dict[str, Any] = {"key": key, "value": value}
    for field in schema:
        if field.name not in row:
            row[field.name] = _drawn(crc32(field.name.encode(), crc32(value)), field.type)
    return row


def _drawn(number: int, kind: pa.DataType) -> Any:
    if number % 7 == 0:
        return None
    if pa.types.is_integer(kind):
        span = 2 ** min(kind.bit_width, 40)
        return number * 2654435761 % span - span // 2
    if pa.types.is_string(kind):
        return f"{number:x}"
    return [{"a": number % 100}] * (number % 3)


def batch_of(rows: Sequence[tuple[str | None, bytes]], stage: Stage) -> pa.RecordBatch:
    """Messages as a task stages them."""
    assert stage.columns is not None
    schema = schema_of(stage.columns)
    return pa.RecordBatch.from_pylist([payload_of(key, value, schema) for key, value in rows], schema=schema)


def seen_by(row: Payload, schema: pa.Schema) -> dict[str, Any]:
    """What a reader with these columns sees of a row: null for what was not there when it was staged."""
    return {field.name: row.get(field.name) for field in schema}


def all_seen_by(messages: Sequence[Any], schema: pa.Schema | None) -> list[Any]:
    """What a reader sees of messages; of an untyped queue (None) it sees them as they are."""
    return list(messages) if schema is None else [seen_by(row, schema) for row in messages]


def fits(row: Payload, schema: pa.Schema) -> bool:
    """Whether all values fit the types of a reader that loaded `n` before it was widened."""
    number, field = row.get("n"), schema.field("n") if "n" in schema.names else None
    if field is None or number is None:
        return True
    most = 2 ** (field.type.bit_width - 1)
    return bool(-most <= int(number) < most)
