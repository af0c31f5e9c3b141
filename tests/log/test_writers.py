"""Who published which batch last: any repetition within the age is noticed, and thousands of writers cost little."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from partq_spark.base.errors import Corrupt
from partq_spark.log import writers
from partq_spark.log.model import Head, WriterRecord
from partq_spark.log.publish import PublishIdentity, extended, place
from partq_spark.log.sizes import LOG_SIZES, LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import World, send, unread, values
from tests.support.way import Hooked

AGE_US = writers.WRITER_AGE_S * 1_000_000


MINUTE_US = 60_000_000


class Passing:
    """A queue that many writers publish to, without a swap for each: only the head's growth matters here."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue = world.create(4)
        self.published: dict[str, tuple[int, int]] = {}  # writer -> batch, time

    @property
    def head(self) -> Head:
        return self.queue.head

    def publish(self, writer: str, batch: int, now_us: int) -> None:
        identity = PublishIdentity(writer=writer, batch=batch)
        head = self.head
        entry = place(head, stage_of(head), [unread({0: 1})], identity, f"{head.sequence:016x}", now_us)
        assert self.queue.etag is not None
        self.queue.remember(extended(self.queue, head, entry, identity), self.queue.etag)
        self.published[writer] = (batch, entry.time_us)

    def known(self, writer: str) -> int | None:
        record = writers.last_batch(self.queue, writer)
        return record.batch if record is not None else None

    def records(self) -> int:
        return len(self.head.writers) + sum(page.writers for page in self.head.writer_pages)


@pytest.fixture
def passing(world: World) -> Passing:
    world.sizes = replace(world.sizes, inline_entries=4)  # entries are not what is measured here
    return Passing(world)


@pytest.fixture
def small(world: World) -> None:
    world.sizes = LogSizes(head_writers=8, page_fan_out=3)


# --- bounded, and complete within the age -----------------------------------------------------------------------------


@pytest.mark.conformance("DIS-09")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(4))
def test_the_last_batch_of_any_writer_within_the_age_is_known(passing: Passing, seed: int) -> None:
    rng = random.Random(seed)
    now_us = passing.world.clock.now_us
    regulars = [f"query {number}" for number in range(5)]
    for number in range(300):
        now_us += rng.choice((1, MINUTE_US, AGE_US // 100))
        if rng.random() < 0.4:
            writer = rng.choice(regulars)
            passing.publish(writer, passing.published.get(writer, (0, 0))[0] + 1, now_us)
        else:
            passing.publish(f"one-time {number}", 1, now_us)
        if number % 50 == 0:
            for writer, (batch, time_us) in passing.published.items():
                if time_us >= passing.head.time_us - AGE_US:
                    assert passing.known(writer) == batch, writer
    levels = [page.level for page in passing.head.writer_pages]
    assert all(levels.count(level) <= passing.queue.sizes.page_fan_out for level in levels)


@pytest.mark.conformance("DIS-09")
def test_a_look_for_an_unknown_writer_reads_a_line_of_each_page(world: World) -> None:
    """30,000 one-time writers once made 2.4 MB of it, and 200,000 15.7 MB, at each publish of another one."""
    count = 30_000
    queue = world.create(1)
    head = queue.head
    for number in range(count):
        record = WriterRecord(
            batch=0, owner=None, token=f"{number:016x}", sequence=number, time_us=head.time_us, sum="0" * 16
        )
        known = {**head.writers, f"publish-id:import of file {number:09}": record}
        head = writers.rolled(replace(head, writers=known), 1, queue.create_blob, queue.load_page, queue.sizes)
    assert queue.etag is not None
    changed = replace(head, sequence=head.sequence + 1)
    queue.swap(changed)
    assert len(changed.writer_pages) <= 4 * LOG_SIZES.page_fan_out
    assert max(page.writers for page in changed.writer_pages) == LOG_SIZES.page_writers

    watched = world.handle(store=(hooked := Hooked(world.store)))
    watched.refresh()
    read = [0]
    load = hooked.read

    def reading(name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        data = load(name, start=start, length=length)
        read[0] += len(data)
        return data

    hooked.read = reading  # type: ignore[method-assign] # a hook is told no lengths
    assert writers.last_batch(watched, "publish-id:another") is None
    assert read[0] < len(changed.writer_pages) * 10_000
    for number in random.Random(1).sample(range(count), 50):
        found = writers.last_batch(watched, f"publish-id:import of file {number:09}")
        assert found is not None
        assert found.token == f"{number:016x}"


@pytest.mark.usefixtures("small")
def test_a_damaged_line_is_not_taken_for_an_unknown_writer(world: World) -> None:
    queue = world.create(1)
    for number in range(9):
        send(queue, values(number), PublishIdentity(writer=f"writer {number}", batch=2))
    name = queue.log_folder + queue.head.writer_pages[0].name
    data = bytearray(world.store.read(name))
    for byte in (3, data.index(b"writer 0") + 7, len(data) - 2):
        damaged = bytearray(data)
        damaged[byte] ^= 1
        world.store.delete(name)
        world.store.create(name, bytes(damaged))
        with pytest.raises(Corrupt, match=r"line 1 of writer page page-.* is damaged"):
            send(world.handle(), values(0), PublishIdentity(writer="writer 0", batch=2))


# --- the age ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_what_is_past_its_age_is_dropped(passing: Passing) -> None:
    start_us = passing.world.clock.now_us
    for number in range(100):
        passing.publish(f"early {number}", 1, start_us)
    assert passing.records() == 100
    for number in range(40):
        passing.publish(f"late {number}", 1, start_us + AGE_US + MINUTE_US)
    assert passing.known("early 0") is None
    assert passing.known("early 99") is None
    assert all(passing.known(f"late {number}") == 1 for number in range(40))
    assert passing.records() <= 40 + passing.queue.sizes.head_writers


def test_a_small_queue_forgets_nobody(passing: Passing) -> None:
    start_us = passing.world.clock.now_us
    passing.publish("long ago", 3, start_us)
    for number in range(passing.queue.sizes.head_writers - 1):
        passing.publish(f"writer {number}", 1, start_us + 50 * AGE_US)
    assert passing.known("long ago") == 3
    assert passing.head.writer_pages == ()


# --- through real publishes -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_pages_are_read_only_for_writers_that_the_head_does_not_know(world: World) -> None:
    queue = world.create(1)
    for number in range(20):
        send(queue, values(number), PublishIdentity(writer=f"writer {number}", batch=2))
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    queue.refresh()
    hooked.calls.clear()
    assert writers.last_batch(queue, "writer 19") is not None
    assert hooked.calls == []
    assert writers.last_batch(queue, "somebody new") is None
    assert [name for _, name in hooked.calls] == [
        queue.log_folder + page.name for page in reversed(queue.head.writer_pages)
    ]


def test_the_map_of_the_head_is_oldest_first(world: World) -> None:
    queue = world.create(1)
    for writer in ("a", "b", "c", "a"):
        sequence = queue.head.sequence
        send(queue, values(1), PublishIdentity(writer=writer, batch=sequence))
    assert list(queue.head.writers) == ["b", "c", "a"]
