"""How old the oldest message is that a group has not acknowledged (`lag_s`), against when messages were published."""

from __future__ import annotations

import time

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.client import groups
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import Owner
from partq_spark.group.status import GroupView
from partq_spark.log import admin, housekeeping, publish_times
from partq_spark.log.model import Slice
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
from tests.client.conftest import Make
from tests.log.histories import SECOND_US, Message, all_steps, filled, messages
from tests.log.queues import World, send


@pytest.fixture
def world() -> World:
    made = World()
    made.sizes = LogSizes(inline_entries=4, fan_out=3)
    return made


def acknowledge(queue: QueueLog, offsets: dict[int, int], epoch: int) -> None:
    checkpoints = checkpoints_of(queue, "billing")
    for partition, offset in offsets.items():
        held = checkpoints.fence(partition, to=Owner("flow", "i"), epoch=epoch, start=0, delivered=None)
        checkpoints.update_checkpoint(held, offset)


def lags(view: GroupView) -> list[tuple[int, float | None]]:
    return [(each.lag, each.lag_s) for each in view.partitions]


def expected_s(world: World, found: list[Message], partition: int, offset: int) -> float:
    behind = [each.time_us for each in found if each.partition == partition and each.offset >= offset]
    return (world.clock.now_us - min(behind)) / 1e6 if behind else 0.0


@pytest.mark.parametrize("compacted", [False, True])
def test_it_is_the_age_of_the_first_message_that_is_not_acknowledged(world: World, compacted: bool) -> None:
    queue = filled(world, publishes=40)
    if compacted:
        (step,) = all_steps(queue)
        assert step.slices < step.slices_before
    admin.create_group(queue, "billing", [0, 0])
    found = messages(queue)
    world.clock.now_us += 17 * SECOND_US
    ends = queue.head.next
    for epoch, part in enumerate((0.0, 0.1, 0.34, 0.5, 0.77, 0.99, 1.0), 1):
        offsets = {partition: int(part * end) for partition, end in enumerate(ends)}
        acknowledge(queue, offsets, epoch)
        told = lags(groups.status(queue, None, "billing"))
        assert [lag for lag, _ in told] == [ends[p] - offset for p, offset in offsets.items()]
        assert [lag_s for _, lag_s in told] == pytest.approx(
            [expected_s(world, found, p, offset) for p, offset in offsets.items()]
        )
    assert lags(groups.status(queue, None, "billing")) == [(0, 0.0), (0, 0.0)]


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


def test_a_log_that_cannot_be_read_hides_nothing_else(world: World) -> None:
    queue = filled(world, publishes=40)
    admin.create_group(queue, "billing", [0, 0])
    ends = queue.head.next
    acknowledge(queue, {0: ends[0]}, 1)
    for ref in queue.head.tree:
        world.store.delete(queue.log_folder + ref.name)
    view = groups.status(queue, None, "billing")
    assert lags(view) == [(0, 0.0), (ends[1], None)]
    assert view.notes[-1].startswith("how old the unacknowledged messages are is not known: log chunk ")


def test_what_was_trimmed_has_no_age(world: World) -> None:
    """A group whose messages went before anything was acknowledged."""
    queue = filled(world, publishes=40)
    all_steps(queue)
    ends = queue.head.next
    housekeeping.trim(queue, [ends[0] - 3, ends[1]])
    found = messages(queue)
    admin.create_group(queue, "billing", [0, 0], exact=False)
    view = groups.status(queue, None, "billing")
    assert [each.lag_s for each in view.partitions] == [
        pytest.approx(expected_s(world, found, 0, 0)),
        0.0 if view.partitions[1].lag == 0 else None,
    ]


def test_it_is_never_negative(world: World) -> None:
    """A publisher's clock that is ahead."""
    queue = world.create(1)
    admin.create_group(queue, "billing", [0])
    send(queue, [("k", b"v")])
    world.clock.now_us -= 5 * SECOND_US
    assert lags(groups.status(queue, None, "billing")) == [(1, 0.0)]


def test_a_store_that_does_not_answer_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = filled(world, publishes=40)
    admin.create_group(queue, "billing", [0, 0])

    def away(*_: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(QueueLog, "load_chunk", away)
    with pytest.raises(Unavailable):
        groups.status(queue, None, "billing")


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
