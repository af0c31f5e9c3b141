"""A stream without a group is where its Spark checkpoint says: where it begins, what a restart reads, what is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.log import admin
from tests.query.streams import KEYS, Stream, create, publish


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def head_of(url: str) -> Path:
    return Path(url.removeprefix("file://")) / "default" / "orders" / "_head.json"


def test_the_first_batch_has_what_there_is_and_its_end_is_a_text_that_stays(store: str) -> None:
    queue = create(store, 2)
    publish(queue, 0)
    stream = Stream(store)
    batch = stream.batch()
    assert batch is not None
    assert sum(map(len, batch.values())) == len(KEYS)
    ends = queue.refresh().next
    spans = {str(p): [0, 0, end, 0] for p, end in enumerate(ends)}
    entry = queue.head.entries[-1]
    read = {"publish": [entry.sequence, entry.time_us, entry.token], "p": spans}
    assert stream.start == {"v": 1, "queue": queue.head.queue_id, "group": None, "flow": None, **read}
    assert list(stream.start) == ["v", "queue", "group", "flow", "publish", "p"], (
        "Spark compares texts (spark-traps.md 6)"
    )


def test_where_a_stream_begins_is_fixed_at_once_however_long_it_may_wait_for_news(store: str) -> None:
    queue = create(store, 2)
    publish(queue, 0)
    stream = Stream(store, startingOffsets="latest", pollInterval="60s")
    begun_s = time.monotonic()
    assert stream.batch() == {}
    assert time.monotonic() - begun_s < 30
    publish(queue, 1)
    stream.restart()
    assert stream.batch() is not None
    assert sum(map(len, stream.batches[-1].values())) == len(KEYS)


def test_a_repeated_batch_is_the_same_whatever_came_meanwhile(store: str) -> None:
    queue = create(store, 2)
    publish(queue, 0)
    stream = Stream(store)
    start = stream.start
    stream.batch()
    first, end = stream.batches[0], stream.start
    publish(queue, 1)
    admin.alter_queue(queue, partitions=5)
    publish(queue, 2)
    stream.restart()
    assert stream.read(start, end) == first == stream.read(start, end)


def test_how_a_limit_is_shared_follows_the_backlog_with_either_option(store: str) -> None:
    queue = create(store, 2)
    for number in range(10):
        publish(queue, number)
    sizes = []
    for options in ({"maxMessagesPerTrigger": "40"}, {"maxDeliveredUnackedMsgsPerFlow": "40"}):
        batch = Stream(store, **options).batch(ReadMaxRows(40))
        assert batch is not None
        sizes.append({p: len(rows) for p, rows in batch.items()})
    assert sizes[0] == sizes[1]
    assert sum(sizes[0].values()) == 40


def test_partitions_that_an_older_copy_of_the_queue_does_not_have_are_a_loss(store: str) -> None:
    queue = create(store, 1)
    publish(queue, 0)
    copy = head_of(store).read_bytes()
    admin.alter_queue(queue, partitions=4)
    publish(queue, 1)
    stream = Stream(store, failOnDataLoss="true")
    stream.drain()
    careless = Stream(store, failOnDataLoss="false")
    careless.drain()
    before, end = stream.start, stream.start
    head_of(store).write_bytes(copy)

    stream.restart()
    with pytest.raises(ObjectMissing, match="restored from an older copy"):
        stream.reader.latestOffset(before, ReadAllAvailable())
    with pytest.raises(ObjectMissing, match="restored from an older copy"):
        stream.read(before, end)
    careless.restart()
    assert careless.read(before, end) == {}
    assert careless.batch() == {}, "a loss is met once: what is published next is not taken for it"
    assert careless.batch() is None
    publish(queue, 2)
    assert careless.batch() is not None
    assert sum(map(len, careless.batches[-1].values())) == len(KEYS)


def test_an_offset_of_a_group_is_refused(store: str) -> None:
    create(store, 1)
    stream = Stream(store)
    stream.batch()
    offset = {**stream.start, "group": "billing", "since": 3, "flow": "a"}
    with pytest.raises(Invalid, match="this query has no group"):
        stream.reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(Invalid, match="this query has no group"):
        stream.read(stream.start, offset)
