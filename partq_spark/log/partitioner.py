"""Which partition a message belongs to (DIS-01, DIS-03). Pure: the same rows give the same answer on every machine."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

_SEED = 42  # Spark SQL's own seed for xxhash64, so that pmod(xxhash64(key), partitions) says the same
_SIGN = 1 << 63


def partition_of(key: bytes, partitions: int) -> int:
    """`pmod(xxh64(utf8(key), seed 42) as signed 64-bit, partitions)` (conformance DIS-01); `key` is UTF-8."""
    digest = xxhash.xxh64_intdigest(key, _SEED)
    return (digest - ((digest & _SIGN) << 1)) % partitions


def partitions_of(keys: Sequence[bytes | None], partitions: int, seed: str, first_row: int) -> list[int]:
    """The partition of each of `keys`; a null key gets a random one.

    The choice for a null key depends on `seed` (writer, batch and task) and the row's number in its task alone, so
    that a retried task chooses as the first attempt did (DIS-03). `first_row` is the number of the first of `keys`.
    """
    intdigest = xxhash.xxh64_intdigest
    # One subtraction makes the unsigned digest signed: (u XOR sign) - sign, and Python's % is pmod.
    result = [-1 if key is None else ((intdigest(key, _SEED) ^ _SIGN) - _SIGN) % partitions for key in keys]
    if -1 in result:
        for index, partition in enumerate(result):
            if partition < 0:
                result[index] = intdigest(f"{seed}/{first_row + index}".encode()) % partitions
    return result
