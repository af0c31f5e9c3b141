"""Reading ranges: every message once and in order, or an error that names what is missing; losses that are accepted."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, ObjectMissing
from partq_spark.log import tree
from partq_spark.log.housekeeping import collect, trim
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import HOUR_US, Row, World, everything, read, send, staged, through, values
from tests.support.way import Hooked

GRACE_US = 24 * HOUR_US


Span = tuple[int, int]


@pytest.fixture
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)


def filled(world: World, publishes: int, rows: int = 2) -> QueueLog:
    """One partition, message n has the value n."""
    queue = world.create(1)
    for number in range(publishes):
        send(queue, values(*range(number * rows, number * rows + rows)))
    return queue


def reader_of(queue: QueueLog, *, fail: bool = True, wanted: dict[int, Span] | None = None) -> RangeReader:
    head = queue.refresh()
    log = tree.view(head, everything(head) if wanted is None else wanted)
    return RangeReader(queue, head.queue_id, log, fail_on_data_loss=fail)


def numbers(pieces: Iterator[Piece]) -> Iterator[int]:
    """The messages of a queue made by `filled`, each checked against its offset."""
    for piece in pieces:
        for index, value in enumerate(piece.batch.column("value").to_pylist()):
            assert int(value) == piece.offset + index
            yield int(value)


def two_partitions(world: World, publishes: int) -> QueueLog:
    """Partition 0 has two messages of every publish, partition 1 has one; message n has the value n."""
    queue = world.create(2)
    keys = {partition_of(key.encode(), 2): key for key in ("a", "b", "c", "d")}
    for number in range(publishes):
        send(queue, [(keys[0], b"%d" % (2 * number)), (keys[0], b"%d" % (2 * number + 1)), (keys[1], b"%d" % number)])
    return queue


def trim_and_collect(world: World, *before: int) -> None:
    """As housekeeping would over some days."""
    trim(world.handle(), before)
    for _ in range(4):
        collect(world.handle())
        world.clock.now_us += GRACE_US + 1


# --- order and ranges -------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-02")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
def test_any_ranges_give_their_messages_in_publish_order(world: World, seed: int) -> None:
    rng = random.Random(seed)
    queue = world.create(4)
    published: dict[str, list[bytes]] = {}
    for number in range(rng.randint(1, 40)):
        rows: list[Row] = []
        for row in range(rng.randint(1, 12)):
            key, value = f"key {rng.randrange(8)}", b"%d/%d" % (number, row)
            published.setdefault(key, []).append(value)
            rows.append((key, value))
        stage = stage_of(queue.refresh())
        cut = rng.randint(0, len(rows))
        publish(queue, stage, staged(queue, stage, rows[:cut]) + staged(queue, stage, rows[cut:]))
    whole: dict[int, list[bytes]] = {}
    by_key: dict[str, list[bytes]] = {}
    times: dict[int, int] = {}
    for piece in reader_of(queue).pieces():
        assert piece.time_us >= times.get(piece.partition, 0)
        times[piece.partition] = piece.time_us
        whole.setdefault(piece.partition, []).extend(piece.batch.column("value").to_pylist())
        columns = [piece.batch.column(name).to_pylist() for name in ("key", "value")]
        for key, value in zip(*columns, strict=True):
            by_key.setdefault(key, []).append(value)
    assert by_key == published
    for _ in range(10):
        spans = {}
        for partition, end in enumerate(queue.head.next):
            a, b = sorted((rng.randint(0, end), rng.randint(0, end)))
            spans[partition] = (a, b)
        expected = {p: whole[p][a:b] for p, (a, b) in spans.items() if a < b}
        assert read(queue, spans) == expected


def test_only_the_slices_that_are_needed_are_read(world: World) -> None:
    hooked = Hooked(world.store)
    queue = through(hooked, filled(world, 10))
    found = reader_of(queue, wanted={0: (5, 9)})
    hooked.calls.clear()
    assert list(numbers(found.pieces())) == [5, 6, 7, 8]
    assert [kind for kind, _ in hooked.calls] == ["read"] * 3


def test_a_range_beyond_the_end_is_damage(world: World) -> None:
    queue = filled(world, 2)
    with pytest.raises(Corrupt, match="ends partition 0 at offset 4, 7 was planned"):
        list(reader_of(queue, wanted={0: (0, 7)}).pieces())


def test_a_gap_in_the_log_is_damage(world: World) -> None:
    queue = filled(world, 3)
    head = queue.refresh()
    log = tree.view(head, everything(head))
    holed = tree.LogView(wanted=log.wanted, chunks=log.chunks, entries=(log.entries[0], log.entries[2]))
    with pytest.raises(Corrupt, match="no entry for offsets 2 to 4 of partition 0"):
        list(RangeReader(queue, head.queue_id, holed).pieces())


# --- what was trimmed and collected meanwhile -------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("read_before", [0, 1, 6, 13, 29])
@pytest.mark.parametrize("kept_from", [0, 7, 30])
def test_a_reader_whose_view_is_old_reads_on_from_the_present_head(
    world: World, read_before: int, kept_from: int
) -> None:
    # 60 messages in a deep tree. The reader has had some when everything before `kept_from` goes, and all chunks of its
    # view too, as another compaction of the tree would have it.
    queue = filled(world, 30)
    pieces = numbers(reader_of(queue).pieces())
    had = [next(pieces) for _ in range(2 * read_before)]
    trim_and_collect(world, min(kept_from, 2 * read_before))
    for ref in queue.head.tree:  # named by the old view; the present head gets copies under other names
        rename_chunk(world, queue, ref.name)
    assert had + list(pieces) == list(range(60))


def rename_chunk(world: World, queue: QueueLog, name: str) -> None:
    """Put a chunk of the head under another name, as whatever rewrites the tree may do."""
    folder = queue.log_folder
    head = world.handle().refresh()
    if name not in {ref.name for ref in head.tree}:
        return
    renamed = name[:-21] + "ffffffffffffffff.json"
    world.store.create(folder + renamed, world.store.read(folder + name))
    world.handle().change(
        lambda now: replace(
            now,
            sequence=now.sequence + 1,
            tree=tuple(structs.replace(ref, name=renamed) if ref.name == name else ref for ref in now.tree),
        )
    )
    world.store.delete(folder + name)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("trimmed_to", [30, 36, 45, 50])
def test_a_partition_that_is_read_to_its_end_does_not_hinder_the_rest_after_a_loss(
    world: World, trimmed_to: int
) -> None:
    queue = two_partitions(world, 60)
    pieces = reader_of(queue, wanted={0: (0, 3), 1: (0, 60)}, fail=False).pieces()
    found: dict[int, list[int]] = {0: [], 1: []}
    for piece in pieces:
        found[piece.partition] += [int(value) for value in piece.batch.column("value").to_pylist()]
        if len(found[0]) == 3 and len(found[1]) == 2:
            trim_and_collect(world, 2 * trimmed_to, trimmed_to)
    assert found[0] == [0, 1, 2]
    assert found[1] == sorted(set(found[1]))
    assert found[1][-(60 - trimmed_to) :] == list(range(trimmed_to, 60))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("inner", [False, True])
def test_trimmed_messages_are_a_loss_that_is_named(world: World, inner: bool) -> None:
    queue = filled(world, 30)
    pieces = numbers(reader_of(queue).pieces())
    had = [next(pieces) for _ in range(4)] if inner else []
    trim_and_collect(world, 40)
    with pytest.raises(ObjectMissing, match=r"offsets \d+ to 40 of partition 0 were trimmed from .*orders") as caught:
        had += list(pieces)
    assert "earliest offset is 40" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    assert had == list(range(len(had)))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("had", [0, 2, 4])
def test_trimmed_messages_may_be_skipped(world: World, had: int, caplog: pytest.LogCaptureFixture) -> None:
    queue = filled(world, 30)
    pieces = numbers(reader_of(queue, fail=False).pieces())
    before = [next(pieces) for _ in range(had)]
    trim_and_collect(world, 40)
    with caplog.at_level(logging.WARNING):
        after = list(pieces)
    assert before + after == sorted({*before, *after})
    assert after[-20:] == list(range(40, 60))
    assert all(number < 40 for number in after[:-20])  # what was still there may come
    assert "offsets" in caplog.text
    assert "failOnDataLoss=false" in caplog.text


# --- what is gone or damaged although it is needed --------------------------------------------------------------------


def segment_of(queue: QueueLog, index: int) -> str:
    return queue.segment_folder + queue.head.entries[index].segments[0]


def flip(world: World, name: str, position: int = -300) -> None:
    data = bytearray(world.store.read(name))
    data[position] ^= 0x10
    world.store.delete(name)
    world.store.create(name, bytes(data))


def damage_slice(world: World, queue: QueueLog) -> None:
    piece = queue.head.entries[2].slices[0]
    flip(world, segment_of(queue, 2), piece.start + piece.length // 2)


def lose_segment(world: World, queue: QueueLog) -> None:
    world.store.delete(segment_of(queue, 2))


def cut_segment(world: World, queue: QueueLog) -> None:
    name, piece = segment_of(queue, 2), queue.head.entries[2].slices[0]
    data = bytes(world.store.read(name))
    world.store.delete(name)
    world.store.create(name, data[: piece.start + 10])


HARMS = [damage_slice, lose_segment, cut_segment]


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_segment_may_be_skipped_and_nothing_else(
    world: World, harm: Callable[[World, QueueLog], None], caplog: pytest.LogCaptureFixture
) -> None:
    queue = filled(world, 5)
    harm(world, queue)
    with caplog.at_level(logging.WARNING):
        assert list(numbers(reader_of(queue, fail=False).pieces())) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert "skipped offsets 4 to 6 of partition 0" in caplog.text


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("lost", ["segment", "chunk", "many segments"])
def test_what_is_lost_is_not_looked_for_as_long_as_the_head_goes_on_changing(
    world: World, fail: bool, lost: str
) -> None:
    hooked = Hooked(world.store)
    queue = through(hooked, filled(world, 40))
    found = reader_of(queue, fail=fail)
    entries = list(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk))
    gone = {
        "segment": [queue.segment_folder + entries[3].segments[0]],
        "chunk": [queue.log_folder + queue.head.tree[-1].name],
        "many segments": [queue.segment_folder + entry.segments[0] for entry in entries[3:33]],
    }[lost]
    for name in gone:
        world.store.delete(name)

    def busy(kind: str, name: str) -> None:
        if kind == "read" and name in gone:
            assert len(hooked.calls) < 1000, "it is looked for without end"
            send(world.handle(), values(10))

    hooked.before = busy
    if fail or lost == "chunk":
        with pytest.raises(ObjectMissing, match=gone[0]):
            list(found.pieces())
        assert len([name for _, name in hooked.calls if name == gone[0]]) <= 3
    else:
        skipped = range(6, 6 + 2 * len(gone))
        assert list(numbers(found.pieces())) == [number for number in range(80) if number not in skipped]
        assert all(len([name for _, name in hooked.calls if name == each]) <= 2 for each in gone)


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_segment_is_an_error_after_what_came_before_it_or_skipped_and_nothing_else(
    world: World, harm: Callable[[World, QueueLog], None], caplog: pytest.LogCaptureFixture
) -> None:
    queue = filled(world, 5)
    harm(world, queue)
    pieces = numbers(reader_of(queue).pieces())
    assert [next(pieces) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(Corrupt, match=segment_of(queue, 2)):
        next(pieces)
    with caplog.at_level(logging.WARNING):
        assert list(numbers(reader_of(queue, fail=False).pieces())) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert "skipped offsets 4 to 6 of partition 0" in caplog.text


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_chunk_that_is_damaged_or_gone_is_never_skipped(world: World, fail: bool, gone: bool) -> None:
    """It says what there is; without it nobody knows what would be left out."""
    queue = filled(world, 20)
    name = queue.log_folder + queue.head.tree[0].name
    if gone:
        world.store.delete(name)
    else:
        flip(world, name, 100)
    with pytest.raises(Corrupt, match=rf"{queue.head.tree[0].name} is {'not there' if gone else 'damaged'}"):
        list(reader_of(queue, fail=fail).pieces())
