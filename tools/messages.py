"""The messages that most parts use: how they are made, and where they are kept while a run lasts.

A key is an aircraft's registration, one of 4,000, with unequal traffic: weights are log-normal (sigma 1), so the
busiest hundredth of the aircraft has about 9 % of the messages. A value is 100 bytes of running text of made-up
lower-case words (4,096 words of 3 to 10 letters, drawn evenly), cut every 100 bytes. So a value is distinct, but not
noise: compressors find repeated words and no more. The same seed gives the same messages on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

VALUE_BYTES = 100
FILES = 8
SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary(), nullable=False)])
DDL = "key STRING, value BINARY"

_AIRCRAFT = 4000
_WORDS = 4096
_LONGEST_WORD = 10
_SEED = 20130101
_CHUNK_ROWS = 100_000


def make_messages(count: int, part: int = 0) -> pa.Table:
    """`count` messages, `key` and `value`; another `part` gives other messages of the same kind."""
    random = np.random.default_rng([_SEED, part])
    chunks = [_chunk(random, min(_CHUNK_ROWS, count - done)) for done in range(0, count, _CHUNK_ROWS)]
    return pa.Table.from_batches(chunks, SCHEMA)


def write_parquet(folder: Path, rows: int, made: Callable[[int, int, int], pa.Table] | None = None) -> None:
    """`rows` messages as a new folder of 8 Parquet files of equal size, with PyArrow's defaults; or other rows: those
    that are `made` for a file, by the number of its first row, how many it has, and its own number.
    """
    folder.mkdir(parents=True)
    for part in range(FILES):
        count = rows // FILES + (part < rows % FILES)
        begin = part * (rows // FILES) + min(part, rows % FILES)
        if count:
            table = made(begin, count, part) if made else make_messages(count, part)
            pq.write_table(table, folder / f"part-{part:02d}.parquet")


def _aircraft() -> tuple[pa.Array, npt.NDArray[np.float64]]:
    """Registrations such as `N472QD`, and the share of each in the traffic."""
    random = np.random.default_rng([_SEED, 1_000_000])
    letters = random.integers(ord("A"), ord("Z") + 1, size=(_AIRCRAFT, 2))
    names = [f"N{100 + index % 900}{chr(a)}{chr(b)}" for index, (a, b) in enumerate(letters)]
    weights = random.lognormal(sigma=1.0, size=_AIRCRAFT)
    return pa.array(names), weights / weights.sum()


def _words() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The vocabulary as a matrix of letters, each word followed by a space, and the length of each with it."""
    random = np.random.default_rng([_SEED, 1_000_001])
    lengths = random.integers(3, _LONGEST_WORD + 1, size=_WORDS)
    letters = random.integers(ord("a"), ord("z") + 1, size=(_WORDS, _LONGEST_WORD + 1)).astype(np.uint8)
    letters[np.arange(_WORDS), lengths] = ord(" ")
    return letters, lengths + 1


_REGISTRATIONS, _SHARES = _aircraft()
_LETTERS, _LENGTHS = _words()


def _chunk(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    keys = _REGISTRATIONS.take(pa.array(random.choice(_AIRCRAFT, size=rows, p=_SHARES)))
    wanted = rows * VALUE_BYTES
    # A word with its space has 7.5 bytes on average; 6 leaves a wide margin, checked below.
    drawn = random.integers(0, _WORDS, size=wanted // 6 + 100)
    lengths = _LENGTHS[drawn]
    text = _LETTERS[drawn][np.arange(_LONGEST_WORD + 1) < lengths[:, None]]
    if len(text) < wanted:
        raise RuntimeError(f"{len(text)} bytes of text were drawn, {wanted} are needed: draw more words")
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * VALUE_BYTES)
    values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(text[:wanted].tobytes())])
    return pa.RecordBatch.from_arrays([keys, values], schema=SCHEMA)
