"""A stream without a group while its queue's partition count changes: the reader as Spark calls it, without Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from partq_spark.log import admin, housekeeping
from partq_spark.log.partitioner import partition_of
from partq_spark.query.ungrouped import EveryPartition
from tests.log.queues import read_flat
from tests.query.streams import KEYS, Stream, create, publish
from tests.support.properties import examples


def in_order(stream: Stream, key: str) -> list[int]:
    """The numbers of a key's messages in the order in which they were processed. Within a batch partitions run side by
    side, so messages of one key in two of them have no order.
    """
    numbers: list[int] = []
    for batch in stream.batches:
        places = [p for p, values in batch.items() if any(_key(value) == key for value in values)]
        assert len(places) <= 1, f"{key} is in partitions {places} of one batch"
        numbers += [int(value.split(b"/")[0]) for p in places for value in batch[p] if _key(value) == key]
    return numbers


def _key(value: bytes) -> str:
    return value.decode().split("/")[1]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.mark.conformance("RES-03")
@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(7), ReadMaxBytes(2000)])
def test_every_key_stays_in_order_over_several_counts(store: str, limit: ReadLimit) -> None:
    queue = create(store, 4)
    options = {"maxbytespertrigger": "2000"} if isinstance(limit, ReadMaxBytes) else {}
    options |= {"maxmessagespertrigger": "7"} if isinstance(limit, ReadMaxRows) else {}
    stream = Stream(store, **options)
    for number, count in enumerate([4, 8, 3, 16, 3]):
        admin.alter_queue(queue, partitions=count)
        publish(queue, 2 * number)
        publish(queue, 2 * number + 1)
    stream.drain(limit)
    assert {key: in_order(stream, key) for key in KEYS} == {key: list(range(10)) for key in KEYS}
    assert all(batch for batch in stream.batches), "no batch is empty"
    assert stream.batch(limit) is None


@pytest.mark.conformance("RES-03")
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=8)),
            st.tuples(st.just("resize"), st.integers(1, 9)),
            st.tuples(st.just("batch"), st.just(None)),
            st.tuples(st.just("restart"), st.just(None)),
        ),
        min_size=3,
        max_size=25,
    )
)
def test_batches_between_any_changes_keep_the_order_and_come_to_the_end(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any]]
) -> None:
    url = f"file://{tmp_path_factory.mktemp('history')}"
    queue = create(url, 3)
    stream = Stream(url, maxmessagespertrigger="5")
    wanted: dict[str, list[int]] = {key: [] for key in KEYS}
    for number, (action, value) in enumerate(history):
        if action == "publish":
            publish(queue, number, value)
            for key in value:
                wanted[key].append(number)
        elif action == "resize":
            admin.alter_queue(queue, partitions=value)
        elif action == "batch":
            stream.batch(ReadMaxRows(5))
        else:
            stream.restart()
    stream.drain(ReadMaxRows(5))
    assert {key: in_order(stream, key) for key in KEYS} == wanted
    assert sum(not batch for batch in stream.batches) <= 1, "only the first batch of a query may be empty"


# --- AvailableNow -----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("RES-02")
@pytest.mark.conformance("RES-03")
def test_available_now_reads_what_there_was_in_as_many_batches_as_it_takes_and_ends(store: str) -> None:
    queue = create(store, 4)
    for number, count in enumerate([4, 6, 2]):
        admin.alter_queue(queue, partitions=count)
        publish(queue, number)
    stream = Stream(store)
    stream.reader.prepareForTriggerAvailableNow()
    publish(queue, 3)
    admin.alter_queue(queue, partitions=9)
    publish(queue, 4)
    stream.drain(most=4)
    assert {key: in_order(stream, key) for key in KEYS} == {key: [0, 1, 2] for key in KEYS}
    assert len(stream.batches) == 3, "one for each count that there was"
    stream.restart()  # the next run
    stream.reader.prepareForTriggerAvailableNow()
    stream.drain(most=3)
    assert {key: in_order(stream, key) for key in KEYS} == {key: [0, 1, 2, 3, 4] for key in KEYS}


# --- idling -----------------------------------------------------------------------------------------------------------


def test_an_idle_stream_is_told_of_what_comes_to_new_partitions_at_once(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create(store, 1)
    stream = Stream(store, pollinterval="60s")
    publish(queue, 0)
    stream.batch()
    slept = []
    new = [key for key in KEYS if partition_of(key.encode(), 5) != 0]

    def sleep(_: EveryPartition, duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 2:
            admin.alter_queue(queue, partitions=5)
            publish(queue, 1, new)

    monkeypatch.setattr(EveryPartition, "wait_news", sleep)
    begun_s = time.monotonic()
    assert stream.batch() is not None
    assert time.monotonic() - begun_s < 30
    assert len(slept) == 2
    assert sum(map(len, stream.batches[-1].values())) == len(new)


def test_a_change_without_messages_makes_no_batch(store: str) -> None:
    queue = create(store, 4)
    publish(queue, 0)
    stream = Stream(store)
    stream.drain()
    for count in (8, 2, 5):
        admin.alter_queue(queue, partitions=count)
        assert stream.batch() is None
    assert len(stream.batches) == 1


# --- losses -----------------------------------------------------------------------------------------------------------


def test_what_was_trimmed_is_waited_for_by_nobody(store: str) -> None:
    queue = create(store, 2)
    publish(queue, 0)
    admin.alter_queue(queue, partitions=3)
    publish(queue, 1)
    first = queue.head.layout.begin
    housekeeping.trim(queue, (*first[:2], 0))
    stream = Stream(store)
    assert stream.batch() is not None
    assert stream.batch() is None
    assert sorted(stream.batches[0]) == sorted(p for p in range(3) if stream.batches[0].get(p))
    assert sum(map(len, stream.batches[0].values())) == len(KEYS) == len(read_flat(queue))


def test_a_start_behind_an_earlier_layout_waits_for_nothing_of_it(store: str) -> None:
    queue = create(store, 2)
    publish(queue, 0)
    begin = admin.alter_queue(queue, partitions=4).next
    publish(queue, 1)
    places = ", ".join(f'"{p}": {offset}' for p, offset in enumerate(begin))
    stream = Stream(store, startingOffsets="{" + places + "}")
    stream.drain(most=2)
    assert len(stream.batches) == 1
    assert {key: in_order(stream, key) for key in KEYS} == {key: [1] for key in KEYS}
