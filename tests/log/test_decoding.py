"""A slice's columns on request: each as in the whole slice, and no look at the others; and slices that are none."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from partq_spark.base.errors import Corrupt
from partq_spark.log.decoding import decoded
from partq_spark.log.model import Slice
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.segment import SegmentWriter, read_slice
from partq_spark.log.segment_columns import HEADERS, segment_columns, segment_schema
from partq_spark.objects.memory import MemoryStore
from tests.log.malformed import originals

EVERYTHING = segment_columns(None, headers=True, times=True)


NAMES = ("key", "value", "headers", "timestamp")


CHOICES = [only for size in range(len(NAMES) + 1) for only in itertools.combinations(NAMES, size)]


def test_some_columns_are_as_in_the_whole_slice() -> None:
    """Whatever a segment stores, and also where it does not store a column that is named."""
    for original in originals(40):
        schema = segment_schema(original.headers, original.times)
        data = memoryview(original.data)
        whole = decoded(data, schema, None)
        for only in CHOICES:
            found = decoded(data, schema, only)
            stored = [name for name in schema.names if name in only]
            assert found.schema.equals(pa.schema([schema.field(name) for name in stored]), check_metadata=True)
            assert found.num_rows == original.rows
            assert all(found.column(name).equals(whole.column(name)) for name in stored)
            found.validate(full=True)


@pytest.mark.parametrize("only", CHOICES[1:])
def test_what_is_not_compressed_is_not_copied(only: tuple[str, ...]) -> None:
    (original,) = (each for each in originals(1_000)[:4] if each.headers and each.times)
    data = pa.py_buffer(original.data)
    found = decoded(memoryview(original.data), segment_schema(True, True), only)
    for column in found.columns:
        for buffer in filter(None, column.buffers()):
            assert data.address <= buffer.address <= buffer.address + buffer.size <= data.address + data.size


# --- what is not asked for --------------------------------------------------------------------------------------------


ROWS = 2_000


FRAMES = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}  # how a compressed buffer begins


def with_much_in(column: str) -> pa.RecordBatch:
    """All four columns; nearly all bytes are those of one."""
    rng = random.Random(column)
    much = [rng.randbytes(100).hex() for _ in range(ROWS)]
    few = ["x"] * ROWS
    return pa.RecordBatch.from_arrays(
        [
            pa.array(much if column == "key" else few),
            pa.array([text.encode() for text in (much if column == "value" else few)]),
            pa.array([[{"key": "h", "value": text}] for text in (much if column == "headers" else few)], HEADERS),
            pa.array([rng.getrandbits(60) if column == "timestamp" else 7 for _ in range(ROWS)], TIMESTAMP),
        ],
        schema=segment_schema(True, True),
    )


@pytest.mark.conformance("TYP-01")
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("broken", NAMES)
def test_what_is_not_asked_for_is_not_decompressed(broken: str, compression: str) -> None:
    """It could not be: its longest buffer is no such thing, under a right checksum."""
    store = MemoryStore(clock=lambda: 0.0, rng=random.Random(1))
    batch = with_much_in(broken)
    with SegmentWriter(store, "good.arrow", batch.schema, compression) as writer:
        at = writer.write(0, batch)
    data = bytearray(store.read("good.arrow", start=at.start, length=at.length))
    begins = [found.start() for found in re.finditer(re.escape(FRAMES[compression]), data)]
    longest = max(itertools.pairwise([*begins, at.length]), key=lambda frame: frame[1] - frame[0])
    data[longest[0]] ^= 0xFF
    store.create("bad.arrow", bytes(data))
    piece = Slice(0, 0, 0, at.length, 0, ROWS, xxhash.xxh3_64_hexdigest(data))
    for only in CHOICES:
        if broken in only:
            with pytest.raises(Corrupt, match="no Arrow that partq wrote"):
                read_slice(store, "bad.arrow", piece, EVERYTHING, only=only)
        else:
            assert read_slice(store, "bad.arrow", piece, EVERYTHING, only=only).equals(batch.select(list(only)))
    with pytest.raises(Corrupt, match="is damaged"):
        read_slice(store, "bad.arrow", piece._replace(xxh3=at.xxh3), EVERYTHING, only=())


# --- no Arrow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        b"\xff\xff\xff\xff\0\0\0\0",  # the end of a stream
        b"\xff\xff\xff\xff\0\0\0\x7f",
        segment_schema(True).serialize().to_pybytes(),
        segment_schema(True).serialize().to_pybytes() * 2,
    ],
)
def test_bytes_that_are_no_record_batch_are_refused(data: bytes) -> None:
    for only in (None, *CHOICES):
        with pytest.raises((pa.ArrowException, OSError, EOFError)):
            decoded(memoryview(data), segment_schema(True, True), only)


# --- texts that are none ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "tries"), [(40, 3000), (2000, 300)])
def test_what_is_malformed_under_a_right_checksum_is_corrupt_and_nothing_else(rows: int, tries: int) -> None:
    """In a process of its own, which it may not end: neither by a signal, nor by an error of Arrow's."""
    command = [sys.executable, "-m", "tests.log.malformed", str(rows), "0", str(tries)]
    done = subprocess.run(
        command, check=False, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    ways = [kind + how + some for kind in ("", "rows ") for how in ("", "thoroughly ") for some in ("", "some ")]
    assert set(found) <= {way + what for way in ways for what in ("read", "refused")}
    for kind in ("", "rows "):
        assert found[kind + "thoroughly refused"] > found[kind + "refused"] > found[kind + "some refused"] > 0
    assert found["refused"] > tries / 4
