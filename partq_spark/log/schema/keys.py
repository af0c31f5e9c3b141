"""The partition key of a typed message: its key column cast to STRING as Spark SQL casts (conformance TYP-03). Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_


def texts_of(keys: pa.Array) -> pa.Array:
    """The texts of a key column of one of `types.KEY_TYPES`; null stays null. Bytes are believed to be UTF-8: who
    publishes checks the texts (`segment.check_keys`).
    """
    if is_.is_string(keys.type):
        return keys
    if is_.is_binary(keys.type):
        return pc.cast(keys, pa.string(), safe=False)
    return pc.cast(keys, pa.string())
