"""Who published which batch last: any repetition within the age is noticed, and thousands of writers cost little."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from partq_spark.base.errors import Corrupt
from partq_spark.log import writers
from partq_spark.log.model import WriterRecord
from partq_spark.log.names import LOG_SIZES, LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.writers import PublishIdentity
from tests.log.queues import World, flip, send
from tests.support.way import Hooked

AGE_US = writers.WRITER_AGE_S * 1_000_000
MINUTE_US = 60_000_000


@pytest.fixture
def small(world: World) -> None:
    world.sizes = LogSizes(head_writers=8, page_fan_out=3)


def put(queue: QueueLog, writer: str, batch: int = 1) -> None:
    """Of no messages: only the records matter here."""
    assert not send(queue, [], PublishIdentity(writer=writer, batch=batch)).duplicate


def known(queue: QueueLog, writer: str) -> int | None:
    record = writers.last_batch(queue, writer)
    return record.batch if record is not None else None


# --- bounded, and complete within the age -----------------------------------------------------------------------------


@pytest.mark.conformance("DIS-09")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(4))
def test_the_last_batch_of_any_writer_within_the_age_is_known(world: World, seed: int) -> None:
    rng = random.Random(seed)
    queue = world.create(1)
    published: dict[str, tuple[int, int]] = {}  # writer -> batch, time
    for number in range(300):
        world.clock.now_us += rng.choice((1, MINUTE_US, AGE_US // 100))
        writer = f"query {rng.randrange(5)}" if rng.random() < 0.4 else f"one-time {number}"
        batch = published.get(writer, (0, 0))[0] + 1
        put(queue, writer, batch)
        published[writer] = (batch, queue.head.time_us)
        if number % 50 == 0:
            for name, (last, time_us) in published.items():
                assert time_us < queue.head.time_us - AGE_US or known(queue, name) == last, name
    levels = [page.level for page in queue.head.writer_pages]
    assert all(levels.count(level) <= queue.sizes.page_fan_out for level in levels)


@pytest.mark.usefixtures("small")
def test_what_is_past_its_age_is_dropped_but_a_small_queue_forgets_nobody(world: World) -> None:
    queue = world.create(1)
    for number in range(100):
        put(queue, f"early {number}")
    assert len(queue.head.writers) + sum(page.writers for page in queue.head.writer_pages) == 100
    world.clock.now_us += AGE_US + MINUTE_US
    for number in range(40):
        put(queue, f"late {number}")
    assert [known(queue, f"early {number}") for number in (0, 99)] == [None, None]
    assert all(known(queue, f"late {number}") == 1 for number in range(40))
    assert len(queue.head.writers) + sum(page.writers for page in queue.head.writer_pages) <= 40 + 8

    oldest, *others = queue.head.writers
    put(queue, oldest, 2)
    assert [*queue.head.writers] == [*others, oldest], "who published last goes last"

    few = world.create(1, "few")
    put(few, "long ago", 3)
    world.clock.now_us += 50 * AGE_US
    for number in range(few.sizes.head_writers - 1):
        put(few, f"writer {number}")
    assert known(few, "long ago") == 3
    assert few.head.writer_pages == ()


# --- what a look costs, and what it meets -----------------------------------------------------------------------------


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
        more = {**head.writers, f"publish-id:import of file {number:09}": record}
        head = writers.rolled(queue, replace(head, writers=more), 1)
    queue.swap(replace(head, sequence=head.sequence + 1))
    assert len(head.writer_pages) <= 4 * LOG_SIZES.page_fan_out
    assert max(page.writers for page in head.writer_pages) == LOG_SIZES.page_writers

    watched = world.handle(store=(hooked := Hooked(world.store)))
    watched.refresh()
    hooked.calls.clear()
    assert known(watched, [*head.writers][-1]) == 0
    assert hooked.calls == [], "pages are for writers that the head does not know"
    read = [0]
    load = hooked.read

    def reading(name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        data = load(name, start=start, length=length)
        read[0] += len(data)
        return data

    hooked.read = reading  # type: ignore[method-assign] # a hook is told no lengths
    assert writers.last_batch(watched, "publish-id:another") is None
    assert [name for _, name in hooked.calls] == [queue.log_folder + page.name for page in reversed(head.writer_pages)]
    assert read[0] < len(head.writer_pages) * 10_000
    found = writers.last_batch(watched, "publish-id:import of file 000004711")
    assert found is not None
    assert found.token == f"{4711:016x}"


@pytest.mark.usefixtures("small")
def test_a_damaged_line_is_not_taken_for_an_unknown_writer(world: World) -> None:
    queue = world.create(1)
    for number in range(9):
        put(queue, f"writer {number}", 2)
    name = queue.log_folder + queue.head.writer_pages[0].name
    data = bytes(world.store.read(name))
    for byte in (3, data.index(b"writer 0") + 7, len(data) - 2):
        flip(world, name, byte)
        with pytest.raises(Corrupt, match=r"line 1 of writer page page-.* is damaged"):
            put(world.handle(), "writer 0", 2)
        flip(world, name, byte)
