"""Reading ranges: every message once and in order, or an error that names what is missing; losses that are accepted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, ObjectMissing
from partq_spark.log import tree
from partq_spark.log.housekeeping import trim
from partq_spark.log.names import LogSizes
from partq_spark.log.partitioner import partition_of
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from tests.log import typed
from tests.log.queues import HOUR_US, World, all_steps, everything, flip, rounds, send


@pytest.fixture
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)


def a_reader(queue: QueueLog, *, fail: bool = True, wanted: Mapping[int, tuple[int, int]] | None = None) -> RangeReader:
    head = queue.refresh()
    log = tree.view(head, everything(head) if wanted is None else wanted)
    return RangeReader(queue, head.queue_id, log, fail_on_data_loss=fail)


def numbers(pieces: Iterator[Piece]) -> Iterator[int]:
    """The messages of a numbered queue, each checked against its offset."""
    for piece in pieces:
        for index, value in enumerate(piece.batch.column("value").to_pylist()):
            assert int(value) == piece.offset + index
            yield int(value)


def trim_and_collect(world: World, *before: int) -> None:
    """As housekeeping would over some days."""
    trim(world.handle(), before)
    rounds(world, 4)


# --- what was trimmed and collected meanwhile -------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("trimmed_to", [30, 36, 45, 50])
def test_a_partition_that_is_read_to_its_end_hinders_no_other_after_a_loss(world: World, trimmed_to: int) -> None:
    queue = world.create(2)
    keys = {partition_of(key.encode(), 2): key for key in ("a", "b", "c", "d")}
    for number in range(60):
        send(queue, [(keys[0], b"%d" % (2 * number)), (keys[0], b"%d" % (2 * number + 1)), (keys[1], b"%d" % number)])
    found: dict[int, list[int]] = {0: [], 1: []}
    for piece in a_reader(queue, wanted={0: (0, 3), 1: (0, 60)}, fail=False).pieces():
        found[piece.partition] += [int(value) for value in piece.batch.column("value").to_pylist()]
        if len(found[0]) == 3 and len(found[1]) == 2:
            trim_and_collect(world, 2 * trimmed_to, trimmed_to)
    assert found[0] == [0, 1, 2]
    assert found[1] == sorted(set(found[1]))
    assert found[1][-(60 - trimmed_to) :] == list(range(trimmed_to, 60))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("had", [0, 2, 12, 26, 58])
@pytest.mark.parametrize("to", [0, 7, 40])
@pytest.mark.parametrize("fail", [True, False])
def test_a_reader_whose_view_is_old_reads_on_and_trimmed_messages_are_a_loss_that_is_named_or_skipped(
    world: World, had: int, to: int, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It has had some messages when all else is compacted, and everything that its view names is collected."""
    pieces = numbers(a_reader(world.numbered(30, rows=2), fail=fail).pieces())
    found = [next(pieces) for _ in range(had)]
    world.clock.now_us += HOUR_US
    assert all_steps(world.handle())
    trim_and_collect(world, to)
    if to <= had:
        assert found + list(pieces) == list(range(60))
        return
    if fail:
        said = rf"offsets \d+ to {to} of partition 0 of queue 'orders' have been trimmed.*failOnDataLoss=false"
        with pytest.raises(ObjectMissing, match=said):
            found += list(pieces)
        assert found == list(range(had))
    else:
        found += list(pieces)
        assert found[to - 60 :] == list(range(to, 60))
        assert found == sorted({*found}), "what was still there may come"
        assert "offsets" in caplog.text
        assert "failOnDataLoss=false" in caplog.text


# --- what is gone or damaged although it is needed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "said"), [("a bit", "checksum .*, published with"), ("all", "is not there"), ("its end", "")]
)
def test_a_harmed_segment_is_an_error_after_what_came_before_it_or_skipped_and_nothing_else(
    world: World, harm: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.numbered(5, rows=2)
    entry = queue.head.entries[2]
    name, where = queue.segment_folder + entry.segments[0], entry.slices[0]
    if harm == "a bit":
        flip(world, name, where.start + where.length // 2)
    else:
        data = bytes(world.store.read(name))
        world.store.delete(name)
        if harm == "its end":
            world.store.create(name, data[: where.start + 10])
    pieces = numbers(a_reader(queue).pieces())
    assert [next(pieces) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(Corrupt, match=f"{name}.*{said}"):
        next(pieces)
    with caplog.at_level(logging.WARNING):
        assert list(numbers(a_reader(queue, fail=False).pieces())) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert "skipped offsets 4 to 6 of partition 0" in caplog.text


def test_what_a_log_cannot_be_is_damage(world: World) -> None:
    """Beyond its end, with a hole, and in columns that the head does not know."""
    queue = world.numbered(3, rows=2)
    with pytest.raises(Corrupt, match="ends partition 0 at offset 6, 7 was planned"):
        list(a_reader(queue, wanted={0: (0, 7)}).pieces())
    log = tree.view(queue.head, everything(queue.head))
    holed = replace(log, entries=(log.entries[0], log.entries[2]))
    with pytest.raises(Corrupt, match="no entry for offsets 2 to 4 of partition 0"):
        list(RangeReader(queue, queue.head.queue_id, holed).pieces())
    rows = typed.create(world, name="rows")
    typed.send(rows, [{"id": 1}])
    log = tree.view(rows.head, everything(rows.head))
    for columns, version, said in (
        (log.columns, 2, r"version 2 .* its head has 1"),
        (log.columns, None, "is of an untyped queue, the head is not"),
        (None, 1, "is of a typed queue, the head is not"),
    ):
        entries = tuple(structs.replace(entry, schema_version=version) for entry in log.entries)
        strange = replace(log, entries=entries, columns=columns)
        with pytest.raises(Corrupt, match=said):
            list(RangeReader(rows, rows.head.queue_id, strange).pieces())
