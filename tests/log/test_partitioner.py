"""Which partition a message belongs to, against what Spark SQL itself says; of a whole column as of each key alone."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.log.hashing import xxh64_column
from partq_spark.log.partitioner import partition_of, partitions_of
from tests.support.properties import examples

# Printed by Spark 4.3.0: xxhash64(key), and pmod(xxhash64(key), n) for n = 7, 8, 1000.
SPARK_SAYS = [
    ("", -7444071767201028348, 3, 4, 652),
    ("a", -8582455328737087284, 3, 4, 716),
    ("key 1", 911313546284094928, 2, 0, 928),
    ("order-4711", -3143667204884693454, 5, 2, 546),
    ("GW-0001/temperature", 3251835411182505763, 0, 3, 763),
    ("客户", -5717359305675550574, 1, 2, 426),
    ("订单-北京-0042", -4445477014196292668, 1, 4, 332),
    ("日本語のキー", -6464522833561849983, 4, 1, 17),
    ("ключ", 7028797273662724703, 3, 7, 703),
    ("\U0001f6b2 bike", 360120404006435757, 6, 5, 757),
    ("\x00", -8959994473701255385, 5, 7, 615),
    ("x" * 255, 9183441613640115487, 1, 7, 487),
    ("é" * 127 + "x", 6891010188444382093, 2, 5, 93),  # 255 bytes in 128 characters
    ("abcdefgh", 2470326616177429180, 3, 4, 180),
    ("abcdefgh" * 4, 7672564337819487975, 1, 7, 975),  # 32 bytes: the hash's long form begins
    ("k" * 31, -6687355316768463964, 3, 4, 36),
    ("k" * 33, 6278079195063646626, 5, 2, 626),
    ("A" * 63, -4325642061437458972, 0, 4, 28),
]


def placed(keys: list[bytes | None], partitions: int, seed: str = "seed", first_row: int = 0) -> list[int]:
    column = partitions_of(pa.array(keys, pa.binary()), partitions, seed, first_row)
    assert column.type == pa.uint16()
    return [int(each) for each in column.to_pylist()]


@pytest.mark.conformance("DIS-01")
@pytest.mark.parametrize(("key", "digest", "of_7", "of_8", "of_1000"), SPARK_SAYS)
def test_a_key_goes_where_spark_sql_says(key: str, digest: int, of_7: int, of_8: int, of_1000: int) -> None:
    for partitions, expected in ((1, 0), (7, of_7), (8, of_8), (1000, of_1000)):
        assert partition_of(key.encode(), partitions) == expected == digest % partitions
        assert placed([key.encode()], partitions) == [expected]


@pytest.mark.conformance("DIS-01")
@examples(60)
@given(
    keys=st.lists(st.binary(max_size=255), max_size=30), partitions=st.integers(1, 1000), first_row=st.integers(0, 9)
)
def test_a_column_of_keys_is_placed_as_each_key_alone(keys: list[bytes], partitions: int, first_row: int) -> None:
    expected = [partition_of(key, partitions) for key in keys]
    assert placed([*keys], partitions, first_row=first_row) == expected
    # A null in the column takes another way through the code.
    assert placed([None, *keys], partitions, first_row=first_row)[1:] == expected
    assert all(0 <= each < partitions for each in expected)


@pytest.mark.conformance("DIS-03")
def test_a_message_without_a_key_is_placed_again_where_it_was() -> None:
    column: list[bytes | None] = [None, b"key", None, b""] * 100
    first = placed(column, 16, seed="query/7/task-3")
    assert placed(column, 16, seed="query/7/task-3") == first
    assert placed(column, 16, seed="query/7/task-4") != first
    assert placed(column, 16, seed="query/8/task-3") != first


@pytest.mark.conformance("DIS-03")
def test_messages_without_a_key_spread_over_all_partitions() -> None:
    counts = Counter(placed([None] * 16_000, 16))
    assert sorted(counts) == list(range(16))
    assert min(counts.values()) > 850  # of 1000 expected each; the standard deviation is 31
    assert max(counts.values()) < 1150


# --- a column at once -------------------------------------------------------------------------------------------------


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


def test_without_numpy_messages_go_to_the_same_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([b"key %d" % number for number in range(ROWS)], pa.binary())
    with_numpy = partitions_of(column, 16, "seed", 0)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert xxh64_column(column, SEED) is None
    assert partitions_of(column, 16, "seed", 0).equals(with_numpy)
    assert with_numpy[7].as_py() == partition_of(b"key 7", 16)
