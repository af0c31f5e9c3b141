"""Which partition a message belongs to (DIS-01, DIS-03). Pure: the same rows give the same answer on every machine.

Publishing hashes every key, and a Python object for each key costs more than its hash: short keys, hashed as a whole
column, take a quarter of the time. numpy is used where it is installed, which PyArrow does not demand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
    Rows = slice | npt.NDArray[np.intp]

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
        signed = digests.view("i8")
        found = (signed - signed // partitions * partitions).astype("u2")  # pmod, in half the time that % takes
    return pa.Array.from_buffers(pa.uint16(), len(keys), [None, pa.py_buffer(found)])


def _one_by_one(keys: Sequence[bytes], partitions: int, seed: int) -> array[int]:
    digests = map(xxhash.xxh64_intdigest, keys, repeat(seed))
    return array("H", [((digest ^ _SIGN) - _SIGN) % partitions for digest in digests])


# --- xxh64 of a column ------------------------------------------------------------------------------------------------

_WORTH_ROWS = 2_000  # with fewer, calling numpy may cost more than it saves
_SHORT_BYTES = 31  # from 32 bytes on xxh64 has another form

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def xxh64_column(keys: pa.Array, seed: int) -> Words | None:
    """The digests of `keys` (binary; of a null they mean nothing), as `xxhash.xxh64_intdigest(key, seed)` of each; None
    without numpy, and for a few keys, which is done faster without it.
    """
    if len(keys) < _WORTH_ROWS:
        return None
    try:
        import numpy as np
    except ImportError:
        return None
    rows = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, rows + 1, keys.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    longest = int(lengths.max())
    if longest > _SHORT_BYTES:
        each = [key or b"" for key in keys.to_pylist()]
        return np.fromiter(map(xxhash.xxh64_intdigest, each, repeat(seed)), np.uint64, rows)
    first, end = int(offsets[0]), int(offsets[-1])
    starts = offsets[:-1] - first
    # Eight bytes can be read from any position in it: one word for every byte.
    data = np.zeros(end - first + 8, np.uint8)
    if end > first:
        data[: end - first] = np.frombuffer(data_buffer, np.uint8, end - first, first)
    words = np.ndarray((end - first + 1,), np.dtype("<u8"), data, 0, (1,))

    digests = lengths.astype(np.uint64)
    digests += np.uint64((seed + _P5) % (1 << 64))

    def rows_where(there: npt.NDArray[np.bool_]) -> Rows:
        """All rows are taken as they lie, without gathering them: often all keys are of one length."""
        return slice(None) if there.all() else np.flatnonzero(there)

    def fold(some: Rows, taken: Words, turn: int, factor: int, term: int) -> None:
        """Fold one word per row into the digests of `some` rows; `taken` are those rows' words."""
        mixed = digests[some]
        mixed ^= taken
        _rotate(mixed, turn)
        mixed *= np.uint64(factor)
        mixed += np.uint64(term)
        digests[some] = mixed

    eights = lengths >> 3
    for number in range(longest >> 3):
        some = rows_where(eights > number)
        taken = words[starts[some] + 8 * number]
        taken *= np.uint64(_P2)
        _rotate(taken, 31)
        taken *= np.uint64(_P1)
        fold(some, taken, 27, _P1, _P4)
    rest = lengths & 7
    tail = words[starts + 8 * eights]
    fours = rest >= 4
    if fours.any():
        some = rows_where(fours)
        taken = tail[some] & np.uint64(0xFFFFFFFF)
        taken *= np.uint64(_P1)
        fold(some, taken, 23, _P2, _P3)
        tail[some] >>= np.uint64(32)
    rest &= 3
    for number in range(int(rest.max())):
        some = rows_where(rest > number)
        taken = (tail[some] >> np.uint64(8 * number)) & np.uint64(0xFF)
        taken *= np.uint64(_P5)
        fold(some, taken, 11, _P1, 0)

    digests ^= digests >> np.uint64(33)
    digests *= np.uint64(_P2)
    digests ^= digests >> np.uint64(29)
    digests *= np.uint64(_P3)
    digests ^= digests >> np.uint64(32)
    return digests


def _rotate(words: Words, left: int) -> None:
    """In place."""
    bits = words.dtype.type  # the words' own type: older numpys make a float of an unsigned and a plain integer
    low = words >> bits(64 - left)
    words <<= bits(left)
    words |= low
