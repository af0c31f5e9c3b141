"""The partition key of a message: of a typed one its key column cast to STRING as Spark SQL casts (conformance TYP-03).
Pure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.log.schema.columns import Columns


def keys_of(messages: pa.RecordBatch, columns: Columns | None) -> pa.Array:
    """The keys of messages, as text: `columns` are those of the typed queue whose rows they are, under its names; None
    of an untyped one.
    """
    if columns is None:
        return messages.column("key")
    return pa.nulls(messages.num_rows, pa.string()) if columns.key is None else texts_of(messages.column(columns.key))


def texts_of(keys: pa.Array) -> pa.Array:
    """The texts of a key column of one of `types.KEY_TYPES`; null stays null. Bytes are believed to be UTF-8:
    publishing checks the texts (`segment.check_keys`).
    """
    if is_.is_string(keys.type):
        return keys
    if is_.is_binary(keys.type):
        return pc.cast(keys, pa.string(), safe=False)
    return pc.cast(keys, pa.string())
