"""What is gone or damaged: said clearly by default, skipped with `failOnDataLoss=false`; never guessed or repeated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from partq_spark.log import housekeeping
from tests.support.spark import Consumer, Lab, failure

pytestmark = pytest.mark.spark


def values(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# --- trimmed ----------------------------------------------------------------------------------------------------------


def test_a_stream_that_fell_behind_the_trimmed_end_says_so_or_goes_on_at_once(lab: Lab) -> None:
    """Without an empty micro-batch for every limit's worth of messages that are gone."""
    queue = lab.create("orders", 1)
    lab.publish("orders", [(None, b"0")])
    consumer = lab.consumer()
    consumer.run(lab.stream("orders", startingOffsets="earliest"))
    lab.publish("orders", [(None, b"%d" % n) for n in range(1, 1000)])
    housekeeping.trim(queue, [900])

    said = failure(consumer.start(lab.stream("orders", maxMessagesPerTrigger="60"), available_now=True))
    assert "offsets 1 to 900 of partition 0 of queue 'orders' have been trimmed" in said
    assert "failOnDataLoss=false" in said
    assert consumer.values == values(0)

    consumer.run(lab.stream("orders", maxMessagesPerTrigger="60", failOnDataLoss="false"))
    assert consumer.values == values(0, *range(900, 1000))
    assert [len(rows) for _, rows in consumer.batches] == [1, 60, 40]


def test_a_batch_that_was_planned_before_its_messages_were_trimmed_is_replayed_with_what_is_left(lab: Lab) -> None:
    queue = lab.create("orders", 1)
    lab.publish("orders", [(None, b"%d" % n) for n in range(10)])
    consumer = lab.consumer()
    consumer.failing = lambda _batch: True
    failure(consumer.start(lab.stream("orders", startingOffsets="earliest"), available_now=True))
    consumer.failing = lambda _batch: False
    housekeeping.trim(queue, [6])
    assert "offsets 0 to 6 of partition 0" in failure(consumer.start(lab.stream("orders"), available_now=True))
    assert consumer.batches == []
    consumer.run(lab.stream("orders", failOnDataLoss="false"))
    assert consumer.values == values(6, 7, 8, 9)


def test_a_store_restored_from_an_older_copy_is_noticed_and_its_new_messages_are_not_taken_for_old_ones(
    lab: Lab,
) -> None:
    lab.create("orders", 1)
    lab.publish("orders", [(None, b"0")])
    head = lab.store_folder / "default/orders/_head.json"
    copy = head.read_bytes()
    lab.publish("orders", [(None, b"%d" % n) for n in range(1, 5)])
    consumer = lab.consumer()
    consumer.run(lab.stream("orders", startingOffsets="earliest"))
    replace(head, copy)

    assert "was the store restored from an older copy?" in failure(
        consumer.start(lab.stream("orders"), available_now=True)
    )
    lab.publish("orders", [(None, b"in their place") for _ in range(5)])
    assert "has read publish" in failure(consumer.start(lab.stream("orders"), available_now=True)), "it has grown past"
    replace(head, copy)
    tolerant = lab.stream("orders", failOnDataLoss="false")
    consumer.run(tolerant)
    lab.publish("orders", [(None, b"again 1")])
    consumer.run(tolerant)
    lab.publish("orders", [(None, b"again 2")])
    consumer.run(tolerant)
    assert consumer.values == [*values(*range(5)), b"again 1", b"again 2"]


# --- gone or damaged --------------------------------------------------------------------------------------------------


def replace(path: Path, content: bytes) -> None:
    """Put damaged content in the place of an object, which is read-only as stored ones are."""
    temporary = path.with_name("damage")
    temporary.write_bytes(content)
    temporary.rename(path)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    replace(path, bytes(content))


def cut(path: Path) -> None:
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


DAMAGE = pytest.mark.parametrize(
    ("damage", "says"),
    [(flip_a_bit, "is damaged"), (cut, "damaged|ends|bytes"), (remove, "gone|no such|not there|missing")],
)


@DAMAGE
def test_a_damaged_segment_fails_the_read_by_name_or_is_skipped(
    lab: Lab, damage: Callable[[Path], None], says: str
) -> None:
    lab.create("orders", 1)
    for n in range(3):
        lab.publish("orders", [(None, b"%d" % n)])
    victim = lab.segments("orders")[1]
    damage(victim)
    head = lab.head("orders")

    with pytest.raises(PySparkException, match=says) as caught:
        lab.read("orders").collect()
    assert victim.name in str(caught.value)
    consumer = lab.consumer()
    said = failure(consumer.start(lab.stream("orders", startingOffsets="earliest"), available_now=True))
    assert victim.name in said
    assert consumer.batches == [], "nothing of a batch that is not whole"
    assert lab.head("orders") == head

    consumer.run(lab.stream("orders", failOnDataLoss="false"))
    assert consumer.values == values(0, 2)
    rows = lab.read("orders", failOnDataLoss="false").collect()
    assert [(bytes(row.value), row.offset) for row in rows] == [(b"0", 0), (b"2", 2)]


@DAMAGE
def test_a_damaged_chunk_fails_what_needs_it_by_name_and_nothing_else(
    lab: Lab, damage: Callable[[Path], None], says: str
) -> None:
    lab.create("orders", 1)
    for n in range(80):
        lab.publish("orders", [(None, b"%d" % n)])
    (victim, *_) = lab.chunks("orders")
    damage(victim)
    head = lab.head("orders")

    with pytest.raises(PySparkException, match=says) as caught:
        lab.read("orders").collect()
    assert victim.name in str(caught.value)
    consumer = lab.consumer()
    limited = lab.stream("orders", startingOffsets="earliest", maxBytesPerTrigger="1k")
    said = failure(consumer.start(limited, available_now=True))
    assert victim.name in said
    assert consumer.batches == []
    assert lab.head("orders") == head

    assert lab.read("orders", startingOffsets='{"0": 70}').count() == 10
    lab.append(lab.spark.createDataFrame([("k", "new")], "key string, value string"), "orders")
    assert lab.head("orders").messages == 81


@DAMAGE
def test_a_damaged_head_is_refused_by_every_role_at_its_moment_and_left_as_it_is(
    lab: Lab, damage: Callable[[Path], None], says: str
) -> None:
    lab.create("orders", 1)
    lab.publish("orders", [(None, b"0")])
    consumer = lab.consumer()
    stream = lab.stream("orders", startingOffsets="earliest")
    consumer.run(stream)
    rows = lab.spark.createDataFrame([("k", "v")], "key string, value string")
    head = lab.store_folder / "default/orders/_head.json"
    damage(head)
    found = head.read_bytes() if head.exists() else None
    word = "damaged" if found is not None else "does not exist"

    for attempt in (lambda: lab.read("orders"), lambda: lab.stream("orders"), lambda: lab.append(rows, "orders")):
        with pytest.raises(PySparkException, match=word):
            attempt()
    assert word in failure(consumer.start(stream, available_now=True))
    assert (head.read_bytes() if head.exists() else None) == found


def test_a_damaged_head_of_a_publishing_query_ends_it_and_its_repair_lets_it_go_on(lab: Lab) -> None:
    for name in ("inbox", "orders"):
        lab.create(name, 1)
    lab.publish("inbox", [(None, b"0")])
    copy = lab.stream("inbox", startingOffsets="earliest").select("key", "value")
    head = lab.store_folder / "default/orders/_head.json"
    whole = head.read_bytes()
    flip_a_bit(head)
    assert "damaged" in failure(lab.publisher(copy, "orders", "copy"))
    replace(head, whole)
    assert lab.browse("orders") == []
    lab.publisher(copy, "orders", "copy").awaitTermination(60)
    assert [message.value for message in lab.browse("orders")] == [b"0"]


def test_a_whole_store_that_is_gone_is_no_empty_queue(lab: Lab) -> None:
    lab.create("orders", 1)
    consumer: Consumer = lab.consumer()
    stream = lab.stream("orders", startingOffsets="earliest")
    consumer.run(stream)
    shutil.rmtree(lab.store_folder)
    assert "does not exist" in failure(consumer.start(stream, available_now=True))
    assert not lab.store_folder.exists()
