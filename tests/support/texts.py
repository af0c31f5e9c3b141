"""Columns of texts that are none, as Spark and Parquet let them pass."""

from __future__ import annotations

import pyarrow as pa

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""As a segment has them."""

BAD = b"\xffA"
"""As `CAST(X'FF41' AS STRING)` gives it."""


def texts(*values: bytes | None, large: bool = False) -> pa.Array:
    """A column of strings that Arrow takes for such, because nobody looked."""
    if large:
        return pa.array(values, pa.large_binary()).view(pa.large_string())
    return pa.array(values, pa.binary()).view(pa.string())


def headers_of(*keys: bytes) -> pa.Array:
    """One header for each message."""
    pairs = pa.StructArray.from_arrays([texts(*keys), pa.array([b"x"] * len(keys), pa.binary())], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(range(len(keys) + 1), pa.int32()), pairs).cast(HEADERS)
