"""The tree of chunks against a plain list of all entries: any history, any trims, limits small enough to grow deep; and
what of it is worth compacting, decided from references alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.log import codec, tree
from partq_spark.log.codec import entry_bytes
from partq_spark.log.model import Chunk, ChunkRef, Entry, Head, Slice
from partq_spark.log.names import LOG_SIZES, LogSizes
from partq_spark.log.publish import place
from partq_spark.log.runs import RunLimits, choose, fits
from tests.log.queues import BEGIN_US, SECOND_US, empty_head, everything, unread
from tests.log.test_codec import ENTRY
from tests.support.properties import examples

Wanted = Mapping[int, tuple[int, int]]


SMALL = LogSizes(inline_entries=6, fan_out=3)  # two levels after fifty publishes


@dataclass(kw_only=True)
class Grown:
    """A head that grew publish by publish, and beside it all that was ever published. `loaded`: chunks asked for."""

    head: Head
    sizes: LogSizes = SMALL
    chunks: dict[str, bytes] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def create(self, name: str, data: bytes) -> None:
        assert name not in self.chunks
        self.chunks[name] = data

    def load(self, ref: ChunkRef) -> Chunk:
        self.loaded.append(ref.name)
        return codec.decode_chunk(self.chunks[ref.name], ref)

    def publish(self, rows: dict[int, int], now_us: int = 0) -> None:
        before = self.head
        entry = place(before, [unread(before, rows)], None, f"{len(self.entries):016x}", now_us)
        following = list(before.next)
        for piece in entry.slices:
            following[piece.partition] = piece.end
        grown = replace(
            before,
            sequence=entry.sequence,
            time_us=entry.time_us,
            next=tuple(following),
            entries=(*before.entries, entry),
        )
        self.head = tree.rolled(grown, before.sequence, self.create, self.sizes)
        self.entries.append(entry)
        assert not tree.goes_on(self.head, before)
        levels = [ref.level for ref in self.head.tree]
        assert levels == sorted(levels, reverse=True), "oldest first, levels falling"
        assert all(levels.count(level) <= self.sizes.fan_out for level in levels)
        assert len(self.head.entries) <= self.sizes.inline_entries
        assert sum(map(entry_bytes, self.head.entries)) <= self.sizes.inline_bytes

    def trim(self, before: tuple[int, ...]) -> None:
        gone = tree.tokens_gone_until(self.head, before)
        trimmed = replace(self.head, earliest=before, sequence=self.head.sequence + 1, trimmed_sequence=gone)
        self.head = tree.pruned(trimmed)

    # --- what the tree says, and what a look at everything says

    def walked(self, view: tree.LogView) -> list[Entry]:
        return list(tree.walk(view, self.load))

    def seen(self, wanted: Wanted) -> list[Entry]:
        found = []
        for entry in self.entries:
            kept = [s for s in entry.slices if _overlap(s.offset, s.end, wanted.get(s.partition, (0, 0)))]
            found += [structs.replace(entry, slices=tuple(kept))] if kept else []
        return found

    def seen_since(self, time_us: int) -> tuple[int, ...]:
        found = list(self.head.next)
        for entry in reversed(self.entries):
            if entry.time_us >= time_us:
                for piece in entry.slices:
                    found[piece.partition] = min(found[piece.partition], piece.offset)
        return tuple(map(max, found, self.head.earliest))

    def check_publishes(self) -> None:
        """Whatever is not found is known to be gone. A second publish of nothing does no harm."""
        for entry in self.entries:
            if entry.slices and entry.sequence > self.head.trimmed_sequence:
                assert tree.find_publish(self.head, entry.sequence, self.load) == entry


def _overlap(start: int, end: int, span: tuple[int, int]) -> bool:
    return max(start, span[0]) < min(end, span[1])


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_after_any_history_the_tree_finds_what_a_look_at_everything_finds(seed: int, trims: bool) -> None:
    """Ranges of all and of some partitions, times, publishes. One partition may be held back by a group."""
    rng = random.Random(f"{seed} {trims}")
    partitions = rng.randint(1, 5)
    grown = Grown(head=empty_head(partitions))
    for number in range(rng.randint(1, 150)):
        before, chosen = grown.head, sorted(rng.sample(range(partitions), rng.randint(0, partitions)))
        now_us = BEGIN_US + number * 1000 + rng.choice((0, 0, 0, -5_000, 50_000))
        grown.publish({partition: rng.randint(1, 9) for partition in chosen}, now_us)
        assert tree.goes_on(before, grown.head)
        if trims and rng.random() < 0.07:
            spans = list(zip(grown.head.earliest, grown.head.next, strict=True))
            grown.trim(tuple(rng.choice((a, rng.randint(a, b), rng.randint(a, b), b)) for a, b in spans))
            grown.check_publishes()
    head = grown.head
    grown.check_publishes()
    for sequence in (0, head.sequence + 1):
        assert tree.find_publish(head, sequence, grown.load) is None
    times = [entry.time_us for entry in grown.entries]
    for time_us in [0, times[-1] + 1, *(rng.choice(times) + rng.choice((-1, 0, 1)) for _ in range(25))]:
        assert tree.offsets_at_time(head, time_us, grown.load) == grown.seen_since(time_us)
    assert grown.walked(tree.view(head, everything(head))) == grown.seen(everything(head))
    for _ in range(12):
        some = {p: span for p, span in everything(head).items() if rng.random() < 0.7}
        wanted = {p: (a, b) for p, (a, b) in ((p, sorted((rng.randint(*s), rng.randint(*s)))) for p, s in some.items())}
        view = tree.view(head, wanted)
        assert grown.walked(view) == grown.seen(wanted)
        only = {p: wanted[p] for p in view.wanted if rng.random() < 0.5}
        assert dict(view.only([*only]).wanted) == only
        assert grown.walked(view.only([*only])) == grown.seen(only)


def test_what_came_after_all_that_a_trim_took_is_not_called_gone() -> None:
    grown = Grown(head=empty_head(1))
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


def test_an_entry_that_is_larger_than_the_limit_goes_to_a_chunk_of_its_own() -> None:
    large = Grown(head=empty_head(1000), sizes=LOG_SIZES)
    large.publish(dict.fromkeys(range(1000), 1))
    assert large.head.entries == ()
    assert [ref.level for ref in large.head.tree] == [0]
    assert large.walked(tree.view(large.head, {999: (0, 1)})) == large.seen({999: (0, 1)})


@examples(100)
@given(
    slices=st.lists(st.integers(0, 8), max_size=24), most=st.integers(1, 24), spare=st.sampled_from([None, 0, -1, -400])
)
def test_overflow_takes_the_oldest_and_no_more_than_needed(slices: list[int], most: int, spare: int | None) -> None:
    """Also where a limit in bytes is just met (`spare`), or passed by one."""
    head = empty_head(8)
    sizes = [dict.fromkeys(range(each), 1) for each in slices]
    entries = [place(head, [unread(head, each)], None, "0" * 16, 0) for each in sizes]
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


def test_a_walk_and_a_search_read_one_chunk_of_each_level() -> None:
    grown = Grown(head=empty_head(2))
    for number in range(400):
        grown.publish({number % 2: 10}, number + 1)
    head = grown.head
    levels = 1 + max(ref.level for ref in head.tree)
    assert levels >= 4
    searches: list[Callable[[], object]] = [
        lambda: grown.walked(tree.view(head, {0: (700, 701)})),
        lambda: tree.offsets_at_time(head, grown.entries[40].time_us, grown.load),
        lambda: tree.find_publish(head, grown.entries[20].sequence, grown.load),
    ]
    for search in searches:
        grown.loaded.clear()
        search()
        assert 1 < len(grown.loaded) <= levels
    grown.loaded.clear()
    grown.walked(tree.view(head, everything(head)))
    assert len(grown.loaded) == len({*grown.loaded}), "each once"


def test_the_size_of_an_entry_is_known_nearly_without_writing_it() -> None:
    """The head's limit in bytes goes by it."""
    slices = tuple(Slice(p, 0, 10**7 + 10**5 * p, 10**5, 10**6, 1000, "0" * 16) for p in range(64))
    big = structs.replace(ENTRY, segments=("000000000001-0123456789abcdef.arrow",), slices=slices)
    exact = len(codec.encode_chunk(Chunk(chunks=(), entries=(big,))))
    assert 0.7 * exact < codec.entry_bytes(big) < 1.3 * exact


# --- what is worth compacting -----------------------------------------------------------------------------------------


def ref_of(number: int, rows: int, slices: int, **other: Any) -> ChunkRef:
    """Of a publish a second, with so many messages in each of two partitions."""
    ref = ChunkRef(
        name=f"chunk-{number}",
        xxh3="0" * 16,
        level=0,
        sequence=(number, number),
        time_us=(number * SECOND_US, number * SECOND_US + 1),
        rows=(rows, rows),
        bytes=1000,
        slices=slices,
        coarsest=2 * rows // max(slices, 1),
    )
    return structs.replace(ref, **other)


def refs_of(count: int, rows: int = 32, slices: int = 64, **other: Any) -> list[ChunkRef]:
    return [ref_of(number, rows, slices, **other) for number in range(count)]


def limits(until_s: int = 10**9, **other: Any) -> RunLimits:
    return RunLimits(until_us=until_s * SECOND_US, **other)


BYTES, MESSAGES, SHORT = LogSizes(slice_bytes=1000), LogSizes(slice_messages=100), LogSizes(step_slices=100)
INNER = ref_of(0, 320, 640, level=1)
WORTH: dict[str, tuple[Sequence[ChunkRef], RunLimits, Sequence[int]]] = {
    "many small slices are joined": (refs_of(3), limits(), [0, 1, 2]),
    "what would not become four times as large stays": (refs_of(1, slices=7), limits(), []),
    "what becomes four times as large does not": (refs_of(1, slices=8), limits(), [0]),
    # Else each message would be written anew whenever some others came.
    "what is large already is not dragged along": ([ref_of(0, 1000, 2), ref_of(1, 32, 64)], limits(), [1]),
    "three large ones stay": (refs_of(3, 1000, 2), limits(), []),
    "four large ones are joined": (refs_of(4, 1000, 2), limits(), [0, 1, 2, 3]),
    "slices full of messages stay": (refs_of(40, 50, 1), limits(sizes=MESSAGES), []),
    "slices full of bytes stay": (refs_of(40, 5, 1), limits(sizes=BYTES), []),
    # Most had been trimmed when they were compacted: what is left is not small, but few.
    "of half a slice each": (refs_of(4, 50, 1, bytes=500), limits(sizes=BYTES), []),
    "of a fraction of a slice each": (refs_of(4, 50, 8, bytes=500, coarsest=1), limits(sizes=BYTES), [0, 1, 2, 3]),
    "of few whose bytes they are": (refs_of(4, 50, 8, bytes=500, coarsest=1, holds=5), limits(sizes=BYTES), []),
    "what is young stays": (refs_of(4), limits(2), [0, 1]),
    "what is all young stays": (refs_of(4), limits(0), []),
    "a step has a bound in slices": (refs_of(9), limits(sizes=LogSizes(step_slices=200)), [0, 1, 2]),
    "in bytes": (refs_of(9), limits(sizes=LogSizes(step_bytes=2000)), [0, 1]),
    "in time": (refs_of(9), limits(longest_us=4 * SECOND_US), [0, 1, 2, 3]),
    "a chunk of entries is not divided": (refs_of(9), limits(sizes=LogSizes(step_slices=10)), []),
    "one that is too large waits for what is not": (
        [INNER, ref_of(1, 32, 64)],
        limits(sizes=SHORT),
        [1],
    ),
    "then it is looked into": ([INNER], limits(sizes=SHORT), [0]),
    "and one with large and small slices": ([structs.replace(INNER, coarsest=1000)], limits(), [0]),
    "references of old that count nothing are left alone": (refs_of(1, slices=0), limits(), []),
}


@pytest.mark.parametrize(("refs", "within", "numbers"), WORTH.values(), ids=WORTH)
def test_what_is_worth_it_is_chosen(refs: Sequence[ChunkRef], within: RunLimits, numbers: Sequence[int]) -> None:
    run = choose(refs, (0, 0), (0, 0), within)
    assert ([] if run is None else [ref.first_sequence for ref in run.refs]) == numbers
    # What is to be looked into first is an answer, and no run by itself.
    assert run is None or fits(run.refs, within) == (run.refs[0].level == 0)


@pytest.mark.parametrize(("earliest", "first"), [((32, 32), 1), ((32, 31), 0), ((96, 96), None)])
def test_what_cannot_be_read_is_left_alone(earliest: tuple[int, int], first: int | None) -> None:
    run = choose(refs_of(3), (0, 0), earliest, limits())
    assert (run.refs[0].first_sequence if run is not None else None) == first
