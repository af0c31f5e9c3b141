"""How old the oldest message is that a group has not acknowledged (`lag_s`), against when messages were published."""

from __future__ import annotations

import time

import pytest

import partq
from partq_spark.client import groups
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import Owner
from partq_spark.log import admin, housekeeping, publish_times
from partq_spark.log.model import Slice
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
from tests.client.conftest import Make
from tests.log.histories import SECOND_US, all_steps, filled, messages
from tests.log.queues import World


@pytest.fixture
def world() -> World:
    made = World()
    made.sizes = LogSizes(inline_entries=4, fan_out=3)
    return made


def lags(queue: QueueLog) -> list[tuple[int, float | None]]:
    return [(each.lag, each.lag_s) for each in groups.status(queue, None, "billing").partitions]


@pytest.mark.parametrize("compacted", [False, True])
def test_it_is_the_age_of_the_first_message_that_is_there_and_not_acknowledged(world: World, compacted: bool) -> None:
    queue = filled(world, publishes=40)
    if compacted:
        assert all_steps(queue)
    admin.create_group(queue, "billing", [0, 0])
    world.clock.now_us += 17 * SECOND_US
    ends = queue.head.next
    checkpoints = checkpoints_of(queue, "billing")

    def expected(offsets: list[int]) -> list[tuple[int, object]]:
        """A publisher's clock may be ahead: no age is negative."""
        found: list[tuple[int, object]] = []
        for partition, offset in enumerate(offsets):
            behind = [each.time_us for each in there if each.partition == partition and each.offset >= offset]
            age_s = max(0, world.clock.now_us - min(behind)) / 1e6 if behind else 0.0
            found.append((ends[partition] - offset, pytest.approx(age_s)))
        return found

    housekeeping.trim(queue, [3, 0])
    for epoch, part in enumerate((0.0, 0.1, 0.34, 0.5, 0.77, 0.99, 1.0), 1):
        there = messages(queue)
        offsets = [int(part * end) for end in ends]
        for partition, offset in enumerate(offsets):
            held = checkpoints.fence(partition, to=Owner("flow", "i"), epoch=epoch, start=0, delivered=None)
            checkpoints.update_checkpoint(held, offset)
        assert lags(queue) == expected(offsets)
        if part == 0.77:
            world.clock.now_us -= 3600 * SECOND_US


def test_of_many_compacted_partitions_the_rest_are_at_most_too_old(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(world, publishes=200, partitions=40)
    all_steps(queue)
    found = messages(queue)
    offsets = {each.partition: each.offset + 1 for each in found if each.offset == 0}
    asked: list[Slice] = []
    times_us = QueueLog.times_us

    def counted(self: QueueLog, entry: object, piece: Slice) -> list[int]:
        asked.append(piece)
        return times_us(self, entry, piece)  # type: ignore[arg-type] # what it was given

    monkeypatch.setattr(QueueLog, "times_us", counted)
    told = publish_times.published_us(queue, queue.head, offsets, most_looked_into=2)
    true = {each.partition: each.time_us for each in found if offsets.get(each.partition) == each.offset}
    assert told.keys() == true.keys()
    assert len(asked) == 2
    assert all(told[piece.partition] == true[piece.partition] for piece in asked)
    assert all(told[partition] <= true[partition] for partition in told)


def test_a_log_that_cannot_be_read_hides_nothing_else_and_a_store_that_does_not_answer_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(world, publishes=40)
    admin.create_group(queue, "billing", [queue.head.next[0], 0])

    def away(*_: object) -> None:
        raise partq.Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(QueueLog, "load_chunk", away)
        with pytest.raises(partq.Unavailable):
            groups.status(queue, None, "billing")
    for ref in queue.head.tree:
        world.store.delete(queue.log_folder + ref.name)
    assert lags(queue) == [(0, 0.0), (queue.head.next[1], None)]
    note = groups.status(queue, None, "billing").notes[-1]
    assert note.startswith("how old the unacknowledged messages are is not known: log chunk ")


def test_it_is_right_within_a_second_of_a_real_clock(make: Make) -> None:
    queue = make(partitions=1)
    queue.create_group("billing", starting="earliest")
    with queue.publisher() as publisher:
        publisher.send("first")
        publisher.flush()
        published_s = time.time()
        publisher.send("second")
    (partition,) = queue.status("billing").partitions
    assert partition.lag == 2
    assert partition.lag_s == pytest.approx(time.time() - published_s, abs=1)
