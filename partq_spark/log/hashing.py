"""xxh64 of many short keys at once. Pure; the same digests as `xxhash.xxh64_intdigest(key, seed)`, key by key.

Publishing hashes every key, and a Python object for each key costs more than its hash: whole columns take a quarter of
the time. numpy is used where it is installed, which PyArrow does not demand; without it keys are hashed one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

_WORTH_ROWS = 2_000  # with fewer, calling numpy may cost more than it saves
_SHORT_BYTES = 31  # from 32 bytes on xxh64 has another form

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def xxh64_column(keys: pa.Array, seed: int) -> pa.Array | None:
    """The digests (uint64) of `keys` (binary, without nulls); None if it has to be done key by key: few keys, a long
    key, no numpy.
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
        return None
    first, end = int(offsets[0]), int(offsets[-1])
    starts = offsets[:-1] - first
    # Eight bytes can be read from any position in it: one word for every byte.
    data = np.zeros(end - first + 8, np.uint8)
    if end > first:
        data[: end - first] = np.frombuffer(data_buffer, np.uint8, end - first, first)
    words = np.ndarray((end - first + 1,), np.dtype("<u8"), data, 0, (1,))

    digests = lengths.astype(np.uint64) + np.uint64((seed + _P5) % (1 << 64))

    def fold(some: npt.NDArray[np.intp], taken: Words, turn: int, factor: int, term: int) -> None:
        """Fold one word per row into the digests of `some` rows; `taken` are those rows' words."""
        nonlocal digests
        every = len(some) == rows
        mixed = digests if every else digests[some]
        mixed ^= taken
        mixed = _rotated(mixed, turn)
        mixed *= np.uint64(factor)
        mixed += np.uint64(term)
        if every:
            digests = mixed
        else:
            digests[some] = mixed

    eights = lengths >> 3
    for number in range(longest >> 3):
        some = np.flatnonzero(eights > number)
        taken = words[starts[some] + 8 * number] * np.uint64(_P2)
        fold(some, _rotated(taken, 31) * np.uint64(_P1), 27, _P1, _P4)
    rest = lengths & 7
    tail = words[starts + 8 * eights]
    some = np.flatnonzero(rest >= 4)
    if len(some):
        taken = tail[some]
        tail[some] = taken >> np.uint64(32)
        fold(some, (taken & np.uint64(0xFFFFFFFF)) * np.uint64(_P1), 23, _P2, _P3)
    rest &= 3
    for number in range(int(rest.max())):
        some = np.flatnonzero(rest > number)
        fold(some, ((tail[some] >> np.uint64(8 * number)) & np.uint64(0xFF)) * np.uint64(_P5), 11, _P1, 0)

    digests ^= digests >> np.uint64(33)
    digests *= np.uint64(_P2)
    digests ^= digests >> np.uint64(29)
    digests *= np.uint64(_P3)
    digests ^= digests >> np.uint64(32)
    return pa.Array.from_buffers(pa.uint64(), rows, [None, pa.py_buffer(digests)])


def _rotated(words: Words, left: int) -> Words:
    bits = words.dtype.type  # the words' own type: older numpys make a float of an unsigned and a plain integer
    low = words >> bits(64 - left)
    high = words << bits(left)
    high |= low
    return high
