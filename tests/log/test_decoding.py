"""A slice's columns on request: each as in the whole slice, and no look at the others. And slices of Arrow that nobody
of ours wrote, with a right checksum: read, and used as a reader uses them, in a process of its own
(`python -m tests.log.test_decoding ROWS FIRST LAST`), because what this is about would end it by a signal.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from partq_spark.base.errors import Corrupt
from partq_spark.log.model import Slice
from partq_spark.log.schema.conform import widened
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of, with_added, with_widened
from partq_spark.log.segment import HEADERS, SegmentWriter, decoded, read_slice, segment_schema
from tests.support.memory_store import MemoryStore

COMPRESSIONS = ("none", "lz4", "zstd")


@dataclass(frozen=True, kw_only=True)
class Original:
    """A slice as it should be."""

    data: bytes
    rows: int
    schema: pa.Schema
    compression: str


def slice_of(batch: pa.RecordBatch, compression: str) -> bytes:
    store = MemoryStore(clock=lambda: 0.0, rng=random.Random(1))
    with SegmentWriter(store, "a.arrow", batch.schema, compression) as writer:
        piece = writer.write(0, batch)
    return bytes(store.read("a.arrow", start=piece.start, length=piece.length))


def originals(count: int) -> list[Original]:
    """Every form that a segment has, with so many rows."""
    return [
        Original(
            data=slice_of(rows(count, headers, times), compression),
            rows=count,
            schema=segment_schema(headers=headers, times=times),
            compression=compression,
        )
        for compression, headers, times in itertools.product(COMPRESSIONS, (False, True), (False, True))
    ]


COLUMNS = columns_of(
    schema_from(
        "a STRING, b INT NOT NULL, c ARRAY<STRUCT<d: MAP<STRING, DECIMAL(5,2)>, e: BOOLEAN NOT NULL>>, f DATE, "
        "g TIMESTAMP"
    )
)


WIDER = with_added(with_widened(COLUMNS, "b BIGINT"), "h ARRAY<STRING>")


def typed_originals(count: int) -> list[Original]:
    """Rows with columns of most kinds."""
    some = [
        {
            "a": None if n % 7 == 3 else f"text {n}" * (n % 3),
            "b": n,
            "c": [{"d": [("k", Decimal(n % 100))] * (n % 2), "e": n % 2 == 0}, None][: n % 3],
            "f": date(2026, 1, 1 + n % 28),
            "g": None if n % 5 == 0 else datetime(2026, 1, 1, tzinfo=UTC),
        }
        for n in range(count)
    ]
    batch = pa.RecordBatch.from_pylist(some, schema=schema_of(COLUMNS))
    return [
        Original(data=slice_of(batch, how), rows=count, schema=batch.schema, compression=how) for how in COMPRESSIONS
    ]


def rows(count: int, headers: bool, times: bool) -> pa.RecordBatch:
    keys = [None if n % 7 == 3 else f"key-{n}" for n in range(count)]
    arrays = [pa.array(keys, pa.string()), pa.array([b"value %d" % n * (n % 5) for n in range(count)], pa.binary())]
    if headers:
        lists = [None if n % 5 == 0 else [{"key": "h", "value": b"x" * (n % 50)}] * (n % 3) for n in range(count)]
        arrays.append(pa.array(lists, HEADERS))
    if times:
        arrays.append(pa.array(range(count), TIMESTAMP))
    return pa.RecordBatch.from_arrays(arrays, schema=segment_schema(headers=headers, times=times))


def damaged(original: Original, rng: random.Random) -> bytes:
    """One to four bytes or words replaced, or a part repeated elsewhere."""
    data = bytearray(original.data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                at -= at % 4
                word = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**24, rng.randrange(2**31), len(data)))
                data[at : at + 4] = word.to_bytes(4, "little", signed=True)
            case _:
                size = rng.randrange(1, 33)
                data[at : at + size] = data[(start := rng.randrange(len(data))) : start + size].ljust(size, b"\0")
    return bytes(data[: len(original.data)].ljust(len(original.data), b"\0"))


def use(data: bytes, original: Original, only: Collection[str] | None, *, thoroughly: bool) -> str:
    """Read the wanted columns, and if they were checked `thoroughly` hand them on as the source does to Spark, and
    write them anew, with wider columns where there are such, as compaction does.
    """
    store = MemoryStore(clock=lambda: 0.0, rng=random.Random(1))
    store.create("a.arrow", data)
    piece = Slice(0, 0, 0, len(data), 0, original.rows, xxhash.xxh3_64_hexdigest(data))
    try:
        batch = read_slice(store, "a.arrow", piece, original.schema, only=only, thoroughly=thoroughly)
    except Corrupt as problem:
        return "refused" if re.search("segment a.arrow .* restore", str(problem)) else str(problem)
    if not thoroughly:
        return "read"
    with pa.ipc.new_stream(io.BytesIO(), batch.schema) as stream:
        stream.write_batch(batch)
    for name in {"key", "value"} & set(batch.schema.names):
        batch.column(name).cast(pa.binary()).to_pylist()
    if original.schema == segment_schema(COLUMNS) and only is None:
        batch = widened(batch, schema_of(WIDER))
    with SegmentWriter(store, "b.arrow", batch.schema) as writer:
        writer.write(0, pa.concat_batches([batch, batch.take(pa.array(range(batch.num_rows)))]))
    return "read"


def main(count: int, first: int, last: int) -> None:
    """Damage with each seed of a range; what became of it is printed, and the seeds as they are begun."""
    forms = {"": originals(count), "rows ": typed_originals(count)}
    found: Counter[str] = Counter()
    for made in forms.values():
        assert {use(original.data, original, None, thoroughly=True) for original in made} == {"read"}
    for seed in range(first, last):
        sys.stderr.write(f"{seed}\n")
        rng = random.Random(seed)
        for kind, made in forms.items():
            original = rng.choice(made)
            data = damaged(original, rng)
            names = original.schema.names
            some = rng.sample(names, rng.randrange(len(names)))
            for thoroughly in (False, True):
                how = kind + "thoroughly " * thoroughly
                found[how + use(data, original, None, thoroughly=thoroughly)] += 1
                found[how + "some " + use(data, original, some, thoroughly=thoroughly)] += 1
    sys.stdout.write(json.dumps(found))


NAMES = ("key", "value", "_headers", "_timestamp")


CHOICES = [only for size in range(len(NAMES) + 1) for only in itertools.combinations(NAMES, size)]


def test_some_columns_are_as_in_the_whole_slice_and_not_copied_where_nothing_is_compressed() -> None:
    """Whatever a segment stores, and also where it does not store a column that is named."""
    for original, only in itertools.product(originals(100), CHOICES):
        schema = original.schema
        whole, found = (decoded(memoryview(original.data), schema, some) for some in (None, only))
        stored = [name for name in schema.names if name in only]
        assert found.schema.equals(pa.schema([schema.field(name) for name in stored]), check_metadata=True)
        assert found.num_rows == original.rows
        assert found.equals(whole.select(stored))
        found.validate(full=True)
        if original.compression == "none":
            data = pa.py_buffer(original.data)
            for buffer in (each for column in found.columns for each in column.buffers() if each is not None):
                assert data.address <= buffer.address <= buffer.address + buffer.size <= data.address + data.size


# --- what is not asked for --------------------------------------------------------------------------------------------


FRAMES = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}  # how a compressed buffer begins


@pytest.mark.conformance("TYP-01")
@pytest.mark.parametrize("compression", FRAMES)
def test_what_is_not_asked_for_is_not_decompressed(compression: str) -> None:
    """It could not be: one of its buffers is no such thing, under a right checksum."""
    *_, original = (each for each in originals(2_000) if each.compression == compression)  # which has all columns
    schema, broken = original.schema, set[str]()
    whole = decoded(memoryview(original.data), schema, None)
    for frame in re.finditer(re.escape(FRAMES[compression]), original.data):
        data, refused = bytearray(original.data), []
        data[frame.start()] ^= 0xFF
        for only in CHOICES:
            try:
                assert decoded(memoryview(data), schema, only).equals(whole.select([*only]))
            except OSError:
                refused.append(only)
        (mine,) = (name for name in NAMES if (name,) in refused)
        assert refused == [only for only in CHOICES if mine in only]
        broken.add(mine)
    assert broken == {*NAMES}


# --- no Arrow ---------------------------------------------------------------------------------------------------------


def test_bytes_that_are_no_record_batch_are_refused() -> None:
    end, schema = b"\xff\xff\xff\xff\0\0\0\0", segment_schema(headers=True).serialize().to_pybytes()
    for data in (b"", b"rubbish", end, end[:-1] + b"\x7f", schema, schema * 2):
        for only in (None, *CHOICES):
            with pytest.raises((pa.ArrowException, OSError, EOFError)):
                decoded(memoryview(data), segment_schema(headers=True), only)


# --- malformed Arrow --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "tries"), [(40, 3000), (2000, 300)])
def test_what_is_malformed_under_a_right_checksum_is_corrupt_and_nothing_else(rows: int, tries: int) -> None:
    """In a process of its own, which it may not end: neither by a signal, nor by an error of Arrow's."""
    command = [sys.executable, "-m", "tests.log.test_decoding", str(rows), "0", str(tries)]
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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
