"""What of the tree is worth compacting: decided from references alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from partq_spark.log.model import ChunkRef
from partq_spark.log.runs import RunLimits, choose, fits
from partq_spark.log.sizes import LogSizes

SECOND_US = 1_000_000


def ref_of(number: int, rows: tuple[int, ...], slices: int, *, level: int = 0, size: int = 1000) -> ChunkRef:
    return ChunkRef(
        name=f"chunk-{number}",
        xxh3="0" * 16,
        level=level,
        sequence=(number, number),
        time_us=(number * SECOND_US, number * SECOND_US + 1),
        rows=rows,
        bytes=size,
        slices=slices,
        coarsest=sum(rows) // max(slices, 1),
    )


OLD = RunLimits(until_us=10**9 * SECOND_US)


def chosen_numbers(refs: Sequence[ChunkRef], limits: RunLimits = OLD, earliest: tuple[int, ...] = (0, 0)) -> list[int]:
    run = choose(refs, (0, 0), earliest, limits)
    return [] if run is None else [ref.first_sequence for ref in run.refs]


def test_many_small_slices_are_joined() -> None:
    assert chosen_numbers([ref_of(n, (32, 32), 64) for n in range(3)]) == [0, 1, 2]


def test_what_would_not_become_four_times_as_large_stays() -> None:
    assert chosen_numbers([ref_of(0, (32, 32), 7)]) == []
    assert chosen_numbers([ref_of(0, (32, 32), 8)]) == [0]


def test_what_is_large_already_is_not_dragged_along() -> None:
    """Or each message would be written anew whenever some others came."""
    large = ref_of(0, (1000, 1000), 2)
    assert chosen_numbers([large, ref_of(1, (32, 32), 64)]) == [1]
    fours = [ref_of(n, (1000, 1000), 2) for n in range(4)]
    assert chosen_numbers(fours[:3]) == []
    assert chosen_numbers(fours) == [0, 1, 2, 3]


def test_full_slices_stay() -> None:
    few = replace(OLD, sizes=LogSizes(slice_messages=100))
    assert chosen_numbers([ref_of(n, (100, 0), 1) for n in range(40)], few) == []
    short = replace(OLD, sizes=LogSizes(slice_bytes=1000))
    assert chosen_numbers([ref_of(n, (10, 0), 1, size=1000) for n in range(40)], short) == []


def test_messages_are_as_large_as_those_that_their_bytes_are_of() -> None:
    """Most of them had been trimmed when they were compacted: what is left is not small, but few."""
    short = replace(OLD, sizes=LogSizes(slice_bytes=1000))
    refs = [ref_of(n, (100, 0), 1, size=500) for n in range(4)]
    assert chosen_numbers(refs, short) == []
    few = [structs.replace(ref, rows=(50, 50), slices=8, coarsest=1) for ref in refs]
    assert chosen_numbers(few, short) == [0, 1, 2, 3]
    assert chosen_numbers([structs.replace(ref, holds=5) for ref in few], short) == []


def test_what_is_young_stays() -> None:
    refs = [ref_of(n, (32, 32), 64) for n in range(4)]
    assert chosen_numbers(refs, RunLimits(until_us=2 * SECOND_US)) == [0, 1]
    assert chosen_numbers(refs, RunLimits(until_us=0)) == []


def test_a_step_has_a_bound() -> None:
    refs = [ref_of(n, (32, 32), 64) for n in range(9)]
    assert len(chosen_numbers(refs, RunLimits(until_us=OLD.until_us, slices=200))) == 3
    assert len(chosen_numbers(refs, RunLimits(until_us=OLD.until_us, bytes=2000))) == 2
    assert len(chosen_numbers(refs, RunLimits(until_us=OLD.until_us, longest_us=4 * SECOND_US))) == 4
    assert chosen_numbers(refs, RunLimits(until_us=OLD.until_us, slices=10)) == [], "a chunk of entries is not divided"


def test_one_that_is_too_large_is_looked_into() -> None:
    node = ref_of(0, (320, 320), 640, level=1)
    assert chosen_numbers([node, ref_of(1, (32, 32), 64)], RunLimits(until_us=OLD.until_us, slices=100)) == [0]


def test_one_that_holds_large_and_small_slices_is_looked_into() -> None:
    even = ref_of(0, (320, 320), 640, level=1)
    assert fits((even,), OLD)
    mixed = structs.replace(even, coarsest=1000)
    assert chosen_numbers([mixed]) == [0]
    assert not fits((mixed,), OLD)


def test_what_cannot_be_read_is_left_alone() -> None:
    refs = [ref_of(n, (32, 32), 64) for n in range(3)]
    assert chosen_numbers(refs, earliest=(32, 32)) == [1, 2]
    assert chosen_numbers(refs, earliest=(32, 31)) == [0, 1, 2]
    assert chosen_numbers(refs, earliest=(96, 96)) == []


def test_references_of_old_that_count_nothing_are_left_alone() -> None:
    assert chosen_numbers([ref_of(0, (32, 32), 0)]) == []
