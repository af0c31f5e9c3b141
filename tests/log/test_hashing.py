"""A column of keys hashed at once gives what each key gives alone, and few keys are declined."""

from __future__ import annotations

import random
import sys

import pyarrow as pa
import pytest
import xxhash

from partq_spark.log.hashing import xxh64_column
from partq_spark.log.partitioner import partition_of, partitions_of
from tests.log.test_partitioner import SPARK_SAYS

SEED = 42
ROWS = 4_000
LENGTHS = [*([length] for length in range(32)), [5, 6], [0, 8], [3, 31], list(range(32))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_digests_are_those_of_each_key_alone(lengths: list[int]) -> None:
    source = random.Random(str(lengths))
    keys = [source.randbytes(source.choice(lengths)) for _ in range(ROWS)]
    # A slice: the column's bytes do not begin where its buffer does.
    found = xxh64_column(pa.array([b"before", *keys, b"after"], pa.binary()).slice(1, ROWS), SEED)
    assert found is not None
    assert found.dtype == "u8"
    assert found.tolist() == [xxhash.xxh64_intdigest(key, SEED) for key in keys]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_any_seed(seed: int) -> None:
    keys = [b"key %d" % number for number in range(ROWS)]
    found = xxh64_column(pa.array(keys, pa.binary()), seed)
    assert found is not None
    assert found.tolist() == [xxhash.xxh64_intdigest(key, seed) for key in keys]


@pytest.mark.conformance("DIS-01")
@pytest.mark.parametrize("partitions", [1, 7, 8, 1000])
def test_a_long_column_goes_where_spark_sql_says(partitions: int) -> None:
    said = [(key.encode(), digest) for key, digest, *_ in SPARK_SAYS]
    short = [(key, digest) for key, digest in said if len(key) < 32]
    for known in (short, said):
        column = pa.array([key for key, _ in known] * 500, pa.binary())
        placed = partitions_of(column, partitions, "seed", 0)
        assert placed.type == pa.uint16()
        assert placed.to_pylist() == [digest % partitions for _, digest in known] * 500
    assert xxh64_column(pa.array([key for key, _ in short] * 500, pa.binary()), SEED) is not None


def test_few_keys_are_left_to_be_hashed_one_by_one() -> None:
    assert xxh64_column(pa.array([b"key"] * 10, pa.binary()), SEED) is None


@pytest.mark.parametrize("length", [32, 36, 255])
def test_long_keys_beside_short_ones_and_none(length: int) -> None:
    keys = [b"key", b"k" * length, None, b""] * (ROWS // 4)
    found = xxh64_column(pa.array(keys, pa.binary()), SEED)
    assert found is not None
    expected = [xxhash.xxh64_intdigest(key or b"", SEED) for key in keys]
    assert found.tolist() == expected


def test_without_numpy_messages_go_to_the_same_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([b"key %d" % number for number in range(ROWS)], pa.binary())
    with_numpy = partitions_of(column, 16, "seed", 0)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert xxh64_column(column, SEED) is None
    assert partitions_of(column, 16, "seed", 0).equals(with_numpy)
    assert with_numpy[7].as_py() == partition_of(b"key 7", 16)
