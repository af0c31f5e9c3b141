"""The tree of chunks against a plain list of all entries: any history, any trims, limits small enough to grow deep; and
what of it is worth compacting, decided from references alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.log import codec, tree
from partq_spark.log.codec import entry_bytes
from partq_spark.log.model import ChunkRef, Entry, Head, Slice
from partq_spark.log.publish import place
from partq_spark.log.runs import RunLimits, choose, fits
from partq_spark.log.sizes import LOG_SIZES, LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import BEGIN_US, Chunks, empty_head, everything, unread
from tests.log.test_codec import ENTRY
from tests.support.properties import examples

Wanted = dict[int, tuple[int, int]]


SMALL = LogSizes(inline_entries=6, fan_out=3)
"""Two levels after fifty publishes."""


@dataclass(kw_only=True)
class Grown:
    """A head that grew publish by publish, and beside it all that was ever published."""

    head: Head
    chunks: Chunks = field(default_factory=Chunks)
    entries: list[Entry] = field(default_factory=list)
    sizes: LogSizes = LOG_SIZES

    def publish(self, rows: dict[int, int], now_us: int = 0) -> None:
        token = f"{len(self.entries):016x}"
        entry = place(self.head, stage_of(self.head), [unread(rows)], None, token, now_us)
        following = list(self.head.next)
        for piece in entry.slices:
            following[piece.partition] = piece.end
        grown = replace(
            self.head,
            sequence=entry.sequence,
            time_us=entry.time_us,
            next=tuple(following),
            entries=(*self.head.entries, entry),
        )
        self.head = tree.rolled(grown, self.head.sequence, self.chunks.create, self.sizes)
        self.entries.append(entry)

    def trim(self, before: tuple[int, ...]) -> None:
        earliest = tuple(map(max, self.head.earliest, before))
        gone = tree.tokens_gone_until(self.head, earliest)
        trimmed = replace(self.head, earliest=earliest, sequence=self.head.sequence + 1, trimmed_sequence=gone)
        self.head = tree.pruned(trimmed)

    def walked(self, wanted: Wanted) -> list[Entry]:
        return list(tree.walk(tree.view(self.head, wanted), self.chunks.load))

    def expected(self, wanted: Wanted) -> list[Entry]:
        """By looking at everything."""
        found = []
        for entry in self.entries:
            kept = [s for s in entry.slices if s.partition in wanted and _overlap(s.offset, s.end, wanted[s.partition])]
            if kept:
                found.append(structs.replace(entry, slices=tuple(kept)))
        return found


def _overlap(start: int, end: int, span: tuple[int, int]) -> bool:
    return max(start, span[0]) < min(end, span[1])


def any_history(
    rng: random.Random, partitions: int, publishes: int, trims: bool = True, sizes: LogSizes = SMALL
) -> Grown:
    """Publishes of any shape; now and then everything before some offsets goes."""
    grown = Grown(head=empty_head(partitions), sizes=sizes)
    for number in range(publishes):
        chosen = rng.sample(range(partitions), rng.randint(0, partitions))
        now_us = BEGIN_US + number * 1000 + rng.choice((0, 0, 0, -5_000, 50_000))
        grown.publish({partition: rng.randint(1, 9) for partition in sorted(chosen)}, now_us)
        if trims and rng.random() < 0.05:
            least, most = grown.head.earliest, grown.head.next
            grown.trim(tuple(rng.randint(a, b) for a, b in zip(least, most, strict=True)))
    return grown


def any_wanted(rng: random.Random, head: Head) -> Wanted:
    """Ranges of some partitions, none before what can be read."""
    wanted = {}
    for partition, (start, end) in everything(head).items():
        if rng.random() < 0.7:
            a, b = sorted((rng.randint(start, end), rng.randint(start, end)))
            wanted[partition] = (a, b)
    return wanted


# --- walking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_walk_finds_what_a_look_at_everything_finds(seed: int) -> None:
    rng = random.Random(seed)
    grown = any_history(rng, rng.randint(1, 5), rng.randint(1, 150))
    for _ in range(12):
        wanted = any_wanted(rng, grown.head)
        assert grown.walked(wanted) == grown.expected(wanted)
    whole = everything(grown.head)
    assert grown.walked(whole) == grown.expected(whole)


@pytest.mark.parametrize("seed", range(15))
def test_a_view_for_some_partitions_finds_theirs_alone(seed: int) -> None:
    rng = random.Random(f"only {seed}")
    grown = any_history(rng, 5, rng.randint(1, 120))
    wanted = any_wanted(rng, grown.head)
    log = tree.view(grown.head, wanted)
    for _ in range(5):
        chosen = [partition for partition in log.wanted if rng.random() < 0.5]
        part = log.only(chosen)
        assert dict(part.wanted) == {partition: wanted[partition] for partition in chosen}
        found = list(tree.walk(part, grown.chunks.load))
        assert found == grown.expected({partition: wanted[partition] for partition in chosen})


# --- seeking ----------------------------------------------------------------------------------------------------------


def offsets_by_looking(grown: Grown, time_us: int) -> tuple[int, ...]:
    found = list(grown.head.next)
    for entry in reversed(grown.entries):
        if entry.time_us >= time_us:
            for piece in entry.slices:
                found[piece.partition] = min(found[piece.partition], piece.offset)
    return tuple(map(max, found, grown.head.earliest))


@pytest.mark.parametrize("seed", range(20))
def test_a_time_is_found_where_a_look_at_everything_finds_it(seed: int) -> None:
    rng = random.Random(f"time {seed}")
    grown = any_history(rng, rng.randint(1, 4), rng.randint(1, 150))
    times = [entry.time_us for entry in grown.entries]
    tried = [0, times[-1] + 1, *(rng.choice(times) + rng.choice((-1, 0, 1)) for _ in range(25))]
    for time_us in tried:
        expected = offsets_by_looking(grown, time_us)
        assert tree.offsets_at_time(grown.head, time_us, grown.chunks.load) == expected


@pytest.mark.parametrize("seed", range(10))
def test_every_publish_is_found_by_its_sequence(seed: int) -> None:
    rng = random.Random(f"token {seed}")
    grown = any_history(rng, 2, rng.randint(1, 120), trims=False)
    for entry in grown.entries:
        if not entry.slices:
            continue  # a second publish of nothing does no harm
        assert tree.find_publish(grown.head, entry.sequence, grown.chunks.load) == entry
    for sequence in (0, grown.head.sequence + 1):
        assert tree.find_publish(grown.head, sequence, grown.chunks.load) is None


@pytest.mark.parametrize("seed", range(25))
def test_a_publish_that_is_not_found_is_known_to_be_gone(seed: int) -> None:
    """After every publish and trim of a history, one partition of which may be held back."""
    rng = random.Random(f"gone {seed}")
    grown = Grown(head=empty_head(2), sizes=SMALL)
    for number in range(60):
        grown.publish({p: rng.randint(1, 3) for p in rng.choice(((0,), (1,), (0, 1)))}, BEGIN_US + number)
        if rng.random() < 0.2:
            spans = list(zip(grown.head.earliest, grown.head.next, strict=True))
            to = tuple(rng.choice((a, a, rng.randint(a, b), b)) for a, b in spans)
            grown.trim(to)
        for entry in grown.entries:
            if entry.sequence > grown.head.trimmed_sequence:
                assert tree.find_publish(grown.head, entry.sequence, grown.chunks.load) == entry


def test_what_came_after_all_that_a_trim_took_is_not_called_gone() -> None:
    grown = Grown(head=empty_head(1), sizes=SMALL)
    for number in range(40):
        grown.publish({0: 2}, BEGIN_US + number)
    grown.trim((5,))
    whole = next(ref for ref in grown.head.tree if ref.level > 0)
    assert grown.head.trimmed_sequence == whole.last_sequence, "what is in there is not looked into"
    grown.trim((2 * 39 + 1,))
    assert grown.head.trimmed_sequence == grown.entries[-2].sequence
    grown.publish({0: 2}, BEGIN_US + 99)
    grown.trim((2 * 40,))
    assert grown.head.trimmed_sequence == grown.entries[-2].sequence


# --- a head stays small -----------------------------------------------------------------------------------------------


def assert_bounded(head: Head, sizes: LogSizes) -> None:
    levels = [ref.level for ref in head.tree]
    assert levels == sorted(levels, reverse=True)  # oldest first, levels falling
    assert all(levels.count(level) <= sizes.fan_out for level in levels)
    assert len(head.entries) <= sizes.inline_entries
    assert sum(map(entry_bytes, head.entries)) <= sizes.inline_bytes


@pytest.mark.parametrize("seed", range(5))
def test_references_and_entries_are_bounded_at_every_moment(seed: int) -> None:
    rng = random.Random(f"bounded {seed}")
    grown = Grown(head=empty_head(8), sizes=LogSizes(inline_entries=4, inline_bytes=2_000, fan_out=3))
    for _ in range(400):
        grown.publish(dict.fromkeys(sorted(rng.sample(range(8), rng.randint(1, 8))), 1))
        assert_bounded(grown.head, grown.sizes)


def test_one_publish_larger_than_the_limit_goes_to_a_chunk_of_its_own() -> None:
    grown = Grown(head=empty_head(1000))
    grown.publish(dict.fromkeys(range(1000), 1))
    assert grown.head.entries == ()
    assert [ref.level for ref in grown.head.tree] == [0]
    assert grown.walked({999: (0, 1)}) == grown.expected({999: (0, 1)})


@examples(100)
@given(
    slices=st.lists(st.integers(0, 8), max_size=24), most=st.integers(1, 24), spare=st.sampled_from([None, 0, -1, -400])
)
def test_overflow_takes_the_oldest_and_no_more_than_needed(slices: list[int], most: int, spare: int | None) -> None:
    """Also where a limit in bytes is just met (`spare`), or passed by one."""
    head = empty_head(8)
    sizes = [dict.fromkeys(range(each), 1) for each in slices]
    entries = [place(head, stage_of(head), [unread(each)], None, "0" * 16, 0) for each in sizes]
    total = sum(map(entry_bytes, entries))
    limits = LogSizes(inline_entries=most, inline_bytes=max(600, 4_000 if spare is None else total + spare))
    moved = tree.overflow(entries, limits)
    if total <= limits.inline_bytes and len(entries) <= most:
        assert moved == 0
        return
    left, one_more = entries[moved:], entries[moved - 1 :]
    assert sum(map(entry_bytes, left)) <= limits.inline_bytes // 2
    assert len(left) <= most // 2
    assert sum(map(entry_bytes, one_more)) > limits.inline_bytes // 2 or len(one_more) > most // 2


def test_a_head_shows_that_it_came_from_the_one_before_it_and_not_the_other_way() -> None:
    grown = Grown(head=empty_head(1), sizes=SMALL)
    heads = [grown.head]
    for number in range(20):
        grown.publish({0: 1}, BEGIN_US + number)
        heads.append(grown.head)
    for before, after in pairwise(heads):
        assert tree.goes_on(before, after)
        assert not tree.goes_on(after, before)


def test_a_walk_and_a_search_read_one_chunk_of_each_level() -> None:
    grown = Grown(head=empty_head(2), sizes=SMALL)
    for number in range(400):
        grown.publish({number % 2: 10}, number + 1)
    levels = 1 + max(ref.level for ref in grown.head.tree)
    assert levels >= 4
    searches: list[Callable[[], object]] = [
        lambda: list(tree.walk(tree.view(grown.head, {0: (700, 701)}), grown.chunks.load)),
        lambda: tree.offsets_at_time(grown.head, grown.entries[40].time_us, grown.chunks.load),
        lambda: tree.find_publish(grown.head, grown.entries[20].sequence, grown.chunks.load),
    ]
    for search in searches:
        grown.chunks.loaded.clear()
        search()
        assert 1 < len(grown.chunks.loaded) <= levels
    seen: list[str] = []
    grown.chunks.loaded.clear()
    list(tree.walk(tree.view(grown.head, everything(grown.head)), grown.chunks.load, seen.append))
    assert sorted(seen) == sorted({*grown.chunks.loaded}), "each once"


def test_the_size_of_an_entry_is_known_nearly_without_writing_it() -> None:
    """The head's limit in bytes goes by it."""
    slices = tuple(Slice(p, 0, 10**7 + 10**5 * p, 10**5, 10**6, 1000, "0" * 16) for p in range(64))
    big = structs.replace(ENTRY, segments=("000000000001-0123456789abcdef.arrow",), slices=slices)
    exact = len(codec.encode_entries([big])) - len(codec.encode_entries([]))
    assert 0.7 * exact < codec.entry_bytes(big) < 1.3 * exact


# --- what is worth compacting -----------------------------------------------------------------------------------------


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
