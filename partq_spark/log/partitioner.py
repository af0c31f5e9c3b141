"""Which partition a message belongs to (DIS-01, DIS-03). Pure: the same rows give the same answer on every machine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from partq_spark.log.hashing import xxh64_column

_SEED = 42  # Spark SQL's own seed for xxhash64, so that pmod(xxhash64(key), partitions) says the same
_SIGN = 1 << 63


def partition_of(key: bytes, partitions: int) -> int:
    """`pmod(xxh64(utf8(key), seed 42) as signed 64-bit, partitions)` (conformance DIS-01); `key` is UTF-8."""
    return _one_by_one([key], partitions, _SEED)[0]


def partitions_of(keys: pa.Array, partitions: int, seed: str, first_row: int) -> pa.Array:
    """The partition (uint16) of each of `keys` (binary, UTF-8); a null key gets a random one.

    The choice for a null key depends on `seed` (writer, batch and task) and the row's number in its task alone, so that
    a retried task chooses as the first attempt did (DIS-03). `first_row` is the number of the first of `keys`.
    """
    found = _placed(keys, partitions, _SEED)
    if not keys.null_count:
        return found
    without = keys.is_null()
    rows = pa.arange(first_row, first_row + len(keys)).filter(without).view(pa.binary(8)).cast(pa.binary())
    return pc.replace_with_mask(found, without, _placed(rows, partitions, xxhash.xxh64_intdigest(seed.encode())))


def _placed(keys: pa.Array, partitions: int, seed: int) -> pa.Array:
    """Those of null keys mean nothing. Made from buffers, because `pa.array` imports pandas."""
    digests = xxh64_column(keys, seed)
    found: object
    if digests is None:
        found = _one_by_one([key or b"" for key in keys.to_pylist()], partitions, seed)
    else:
        found = (digests.view("i8") % partitions).astype("u2")  # numpy's remainder is never negative, as pmod
    return pa.Array.from_buffers(pa.uint16(), len(keys), [None, pa.py_buffer(found)])


def _one_by_one(keys: Sequence[bytes], partitions: int, seed: int) -> array[int]:
    digests = map(xxhash.xxh64_intdigest, keys, repeat(seed))
    return array("H", [((digest ^ _SIGN) - _SIGN) % partitions for digest in digests])
