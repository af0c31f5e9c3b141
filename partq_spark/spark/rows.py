"""From the rows that Spark hands a sink to the columns of a segment. No pyspark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.segment import HEADERS, check_values, segment_schema


def normalised(batch: pa.RecordBatch, columns: Sequence[str], headers: bool, first_row: int) -> pa.RecordBatch:
    """`batch`, whose columns are named `columns` in this order, as a segment's columns; nothing is copied where types
    agree.

    Raises `Invalid` for a binary key that is not UTF-8, and for a value that is null; whether texts are UTF-8 is seen
    where they are staged. `first_row` is the number of the batch's first row in its task.
    """
    position = {name: index for index, name in enumerate(columns)}
    value = batch.column(position["value"]).cast(pa.binary())
    key = batch.column(position["key"]) if "key" in position else pa.nulls(batch.num_rows, pa.string())
    try:
        key = key.cast(pa.string())
    except pa.ArrowInvalid:
        row = next(index for index, raw in enumerate(key.to_pylist()) if not _is_utf8(raw))
        raise Invalid(
            f"the key of row {first_row + row} is not valid UTF-8 ({key[row].as_py()[:40]!r}): encode it, for example "
            "with hex()"
        ) from None
    arrays = [key, value]
    if headers:
        arrays.append(batch.column(position["headers"]).cast(HEADERS))
    check_values(value, first_row)
    return pa.RecordBatch.from_arrays(arrays, schema=segment_schema(headers))


def topics_of(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array | None:
    """The column `topic` of `batch`, whose columns are named `columns` in this order; None if there is none."""
    return batch.column(columns.index("topic")) if "topic" in columns else None


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
