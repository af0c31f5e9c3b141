"""Which partition a message belongs to (DIS-01, DIS-03). Pure: the same rows give the same answer on every machine."""

from __future__ import annotations

from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from partq_spark.log.hashing import xxh64_column

_SEED = 42  # Spark SQL's own seed for xxhash64, so that pmod(xxhash64(key), partitions) says the same
_SIGN = 1 << 63


def partition_of(key: bytes, partitions: int) -> int:
    """`pmod(xxh64(utf8(key), seed 42) as signed 64-bit, partitions)` (conformance DIS-01); `key` is UTF-8."""
    digest = xxhash.xxh64_intdigest(key, _SEED)
    return (digest - ((digest & _SIGN) << 1)) % partitions


def partitions_of(keys: pa.Array, partitions: int, seed: str, first_row: int) -> pa.Array:
    """The partition (uint16) of each of `keys` (binary, UTF-8); a null key gets a random one.

    The choice for a null key depends on `seed` (writer, batch and task) and the row's number in its task alone, so that
    a retried task chooses as the first attempt did (DIS-03). `first_row` is the number of the first of `keys`.
    """
    # pmod for a column: Arrow divides towards zero, so a negative remainder moves up by one divisor.
    signed = _digests(keys, seed, first_row).view(pa.int64())
    count = pa.scalar(partitions, pa.int64())
    rest = pc.subtract(signed, pc.multiply(pc.divide(signed, count), count))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, count), rest).cast(pa.uint16())


def _digests(keys: pa.Array, seed: str, first_row: int) -> pa.Array:
    intdigest = xxhash.xxh64_intdigest
    if keys.null_count:
        digests = [
            intdigest(f"{seed}/{first_row + row}".encode()) if key is None else intdigest(key, _SEED)
            for row, key in enumerate(keys.to_pylist())
        ]
        return pa.array(digests, pa.uint64())
    at_once = xxh64_column(keys, _SEED)
    return pa.array(map(intdigest, keys.to_pylist(), repeat(_SEED)), pa.uint64()) if at_once is None else at_once
