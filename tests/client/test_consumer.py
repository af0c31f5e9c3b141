"""A consumer in plain Python: what it gives out, what acknowledges, and how its loop ends (API-03)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import partq
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.log.reading import RangeReader
from partq_spark.query.consumer_process import ConsumerProcess
from tests.client.conftest import Make
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


def publish(queue: partq.Queue, messages: int, begin: int = 0) -> None:
    with queue.publication() as publication:
        numbers = range(begin, begin + messages)
        table = {"key": [f"k{number % 7}" for number in numbers], "value": [str(number) for number in numbers]}
        publication.add(pa.table(table))
        publication.commit()


def consuming(queue: partq.Queue, **more: Any) -> partq.Consumer:
    return queue.consumer("billing", **{"starting": "earliest", "idle_timeout_s": 0.5, **more})


def numbers(batch: partq.Batch | None) -> list[int]:
    assert batch is not None
    return [int(message.value) for message in batch]


def lag(queue: partq.Queue) -> int:
    return queue.checkpoints("billing").lag


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_a_loop_gets_every_message_once_and_acknowledges_by_asking(make: Make) -> None:
    queue = make(partitions=3)
    publish(queue, 500)
    found: list[partq.Message] = []
    with consuming(queue, max_messages=60) as consumer:
        for batch in consumer:
            assert len(batch) <= 60
            found += batch
    assert sorted(int(each.value) for each in found) == list(range(500))
    assert not any(each.redelivered for each in found)
    for key in {each.key for each in found}:
        values = [int(each.value) for each in found if each.key == key]
        assert values == sorted(values)
    assert lag(queue) == 0
    publish(queue, 10, begin=500)
    with consuming(queue) as consumer:
        assert sorted(numbers(consumer.poll(WAIT_S))) == list(range(500, 510)), "and goes on where it was"


def leave_by_break(consumer: partq.Consumer) -> None:
    for _ in consumer:
        break


def leave_by_an_error(consumer: partq.Consumer) -> None:
    for _ in consumer:
        raise KeyError("mine")


def leave_by_closing(consumer: partq.Consumer) -> None:
    for _ in consumer:
        consumer.close()
        return


@pytest.mark.conformance("API-03", "API-05")
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_error, leave_by_closing])
def test_no_way_of_leaving_the_loop_acknowledges(make: Make, leave: Callable[[partq.Consumer], None]) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        loop = iter(consumer)
        assert len(numbers(next(loop))) == 10
        assert len(numbers(next(loop))) == 10, "and acknowledges the first ten"
        with suppress(KeyError):
            leave(consumer)  # its loop gets the ten again that the former loop was left with
    assert lag(queue) == 10
    with consuming(queue) as consumer:
        again = list(consumer.poll(WAIT_S) or ())
    assert [int(each.value) for each in again] == list(range(10, 20))
    assert all(each.redelivered for each in again)


@pytest.mark.conformance("API-03")
def test_stop_ends_the_loop_after_the_batch_that_is_handled(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 30)
    with consuming(queue, max_messages=10, idle_timeout_s=None) as consumer:
        for batch in consumer:
            assert len(batch) == 10
            consumer.stop()
        assert consumer.poll(5) is None
    assert lag(queue) == 20


@pytest.mark.conformance("API-03")
def test_an_idle_loop_and_one_that_waits_for_a_coordinator_or_a_store_stop_within_a_second(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("idle", "coordinator", "store"):
        queue = make(name, 1)
        if name == "store":
            queue.create_group("billing")
            monkeypatch.setattr(CheckpointStore, "list_checkpoints", _down)
            monkeypatch.setattr(CheckpointStore, "list_readable", _down)
            monkeypatch.setattr(CheckpointStore, "read", _down)
        ownership = "store" if name == "coordinator" else "none"
        consumer = queue.consumer("billing", ownership=ownership)
        ended: list[float] = []

        def run(consumer: partq.Consumer = consumer, ended: list[float] = ended) -> None:
            with consumer:
                for _ in consumer:
                    pass
            ended.append(time.monotonic())

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.7)
        asked_s = time.monotonic()
        consumer.stop()
        thread.join(WAIT_S)
        assert ended[0] - asked_s < 1.0, name


def _down(*_: Any) -> Any:
    raise Unavailable("no answer (test)")


def test_poll_gives_none_when_its_time_is_over(make: Make) -> None:
    queue = make(partitions=1)
    with consuming(queue) as consumer:
        begun_s = time.monotonic()
        assert consumer.poll(0.3) is None
        assert time.monotonic() - begun_s < 5
        publish(queue, 3)
        assert len(numbers(consumer.poll(WAIT_S))) == 3
    with pytest.raises(partq.Invalid, match="is closed"):
        consumer.poll(0)


# --- acknowledging and releasing --------------------------------------------------------------------------------------


def test_by_hand_nothing_is_acknowledged_but_what_is_said(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, acknowledge="manual", max_messages=10) as consumer:
        first, second = consumer.poll(WAIT_S), consumer.poll(WAIT_S)
        assert first is not None
        assert second is not None
        messages = list(first)
        assert first.acknowledge(messages[3]) == frozenset()
        with pytest.raises(partq.Invalid, match="is not in this batch"):
            first.acknowledge(next(iter(second)))
    assert lag(queue) == 16
    with consuming(queue, acknowledge="manual") as consumer:
        batch = consumer.poll(WAIT_S)
        assert numbers(batch) == list(range(4, 20))
        assert batch is not None
        done = threading.Thread(target=batch.acknowledge)
        done.start()
        done.join(WAIT_S)
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
@pytest.mark.parametrize("acknowledge", ["next", "manual"])
def test_what_is_released_comes_again_marked(make: Make, acknowledge: Any) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge=acknowledge) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        batch.acknowledge(list(batch)[3])
        batch.release()
        again = consumer.poll(WAIT_S)
        assert again is not None
        assert [(int(each.value), each.redelivered) for each in again] == [(n, True) for n in range(4, 10)]
        again.acknowledge()
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
def test_the_order_of_each_key_holds_while_the_number_of_partitions_changes(make: Make) -> None:
    queue = make(partitions=2)
    for round_, count in enumerate((5, 3, 4, 1)):
        publish(queue, 100, begin=100 * round_)
        queue.alter(partitions=count)
    publish(queue, 100, begin=400)
    found: list[partq.Message] = []
    with consuming(queue, max_messages=30) as consumer:
        for batch in consumer:
            found += batch
    assert sorted(int(each.value) for each in found) == list(range(500))
    for key in {each.key for each in found}:
        values = [int(each.value) for each in found if each.key == key]
        assert values == sorted(values)
    assert lag(queue) == 0


def test_what_could_not_be_read_is_not_skipped(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(RangeReader, "pieces", _down)
            with pytest.raises(partq.Unavailable):
                consumer.poll(WAIT_S)
        found = [message for batch in consumer for message in batch]
    assert [int(each.value) for each in found] == list(range(20))
    assert lag(queue) == 0


def test_an_acknowledgement_that_failed_is_made_by_asking_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=1, retry_timeout_s=0.1)
    publish(queue, 10)
    with consuming(queue) as consumer:
        assert len(numbers(consumer.poll(WAIT_S))) == 10
        with monkeypatch.context() as patch:
            patch.setattr(ConsumerProcess, "acknowledge", _down)
            with pytest.raises(partq.Unavailable):
                consumer.poll(0.1)
        assert consumer.poll(0.1) is None
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
@pytest.mark.slow
def test_who_takes_the_group_over_fences_the_former_one(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge="manual", flow="first") as first:
        batch = first.poll(WAIT_S)
        assert batch is not None
        with consuming(queue, flow="second") as second:
            taken = second.poll(WAIT_S)
            assert taken is not None
            assert all(each.redelivered for each in taken)
            with pytest.raises(partq.Fenced):
                go_on(first, batch)
            assert lag(queue) == 10


def go_on(consumer: partq.Consumer, batch: partq.Batch) -> None:
    """As one who has not noticed anything."""
    batch.acknowledge()
    consumer.poll(5)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_table_with_the_columns_of_the_source(make: Make) -> None:
    queue = make(partitions=2)
    publish(queue, 10)
    with consuming(queue) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        table = pa.table(batch)
    assert table.column_names == ["key", "value", "queue", "partition", "offset", "timestamp", "redelivered"]
    rows = [(row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist()]
    assert rows == [(each.partition, each.offset, each.key, each.value) for each in batch]


@pytest.mark.parametrize("columns", [["offset", "headers"], ["Value", "key"], ["partition"], ["timestamp", "queue"]])
def test_a_batch_has_the_columns_that_were_asked_for_and_whole_messages(make: Make, columns: list[str]) -> None:
    """What is not asked for is not decoded, until somebody iterates."""
    queue = make(partitions=2)
    publish(queue, 10)
    with consuming(queue) as consumer:
        whole = consumer.poll(WAIT_S)
        assert whole is not None
    with queue.consumer("audit", starting="earliest", columns=columns) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        stored = {name.lower() for name in columns} & {"key", "value"}
        assert all(set(piece.batch.schema.names) == stored for piece in batch.pieces)
        assert len(batch) == 10
        assert list(batch) == list(batch) == list(whole)
        table = pa.table(batch)
        assert table.column_names == columns
        for name in columns:
            expected = [getattr(message, name.lower()) for message in whole]
            assert table.column(name).to_pylist() == expected
        assert batch.acknowledge() == frozenset()


def made_again(queue: partq.Queue) -> None:
    queue.delete()
    partq.create_queue(queue.name, partitions=2, store=queue.store)
    publish(queue, 3)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (made_again, "was deleted .*: start again|was deleted and created again; start anew"),
        (lambda queue: queue.remove_group("billing", force=True), r"to begin anew, start again \(a query: with"),
    ],
    ids=["another queue", "no group"],
)
def test_errors_speak_to_a_program_not_of_a_checkpoint_of_spark(
    make: Make, act: Callable[[partq.Queue], object], said: str
) -> None:
    queue = make()
    publish(queue, 1)
    with consuming(queue) as consumer:
        consumer.poll(WAIT_S)
        with suppress(partq.Invalid):  # while a flow lives
            act(queue)
        with pytest.raises(partq.PartqError, match=said) as raised:
            consumer.poll(5)
    assert "Spark" not in str(raised.value)


def test_a_second_consumer_of_one_name_is_told_what_to_do(make: Make) -> None:
    queue = make()
    publish(queue, 1)
    more = {"flow": "one", "ownership": "store", "session_timeout_s": 5}
    with consuming(queue, **more) as first, consuming(queue, **more) as second:
        begun = threading.Thread(target=lambda: [first.poll(0.2) for _ in range(60)])
        begun.start()
        wait_until(lambda: [each.flows for each in queue.groups(ownership="store")] == [("one",)], "the first")
        with pytest.raises(partq.Invalid, match="give this one a name of its own") as raised:
            second.poll(WAIT_S)
        first.stop()
        begun.join(WAIT_S)
    assert "Spark" not in str(raised.value)


def test_reading_without_a_group(make: Make) -> None:
    queue = make(partitions=2)
    publish(queue, 50)
    table = pa.table(queue.read(columns=["value", "partition"]))
    assert table.column_names == ["value", "partition"]
    assert sorted(int(value) for value in table["value"].to_pylist()) == list(range(50))
    assert queue.groups() == ()
    assert pa.table(queue.read(starting="latest")).num_rows == 0
    some = pa.table(queue.read(starting={0: 2, 1: 3}, ending={0: 4, 1: 3}))
    assert [(row["partition"], row["offset"]) for row in some.to_pylist()] == [(0, 2), (0, 3)]
    with pytest.raises(partq.Invalid, match="its end lies before its start"):
        queue.read(starting={0: 4, 1: 0}, ending={0: 2, 1: 0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"acknowledge": "never"}, "acknowledge='never'"),
        ({"columns": ["price"]}, "columns="),
        ({"columns": ["key", "key"]}, "columns="),
        ({"columns": ["key", "KEY"]}, "columns="),
        ({"columns": []}, "columns="),
        ({"max_messages": 0}, "max_messages=0"),
        ({"ownership": "carrier pigeon"}, "redis://host:port"),
        ({"flow": "A B"}, "flow name"),
    ],
)
def test_what_cannot_be_is_refused(make: Make, given: dict[str, Any], said: str) -> None:
    with pytest.raises(partq.Invalid, match=said):
        consuming(make(), **given)


def test_a_forked_child_has_no_part_in_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with consuming(make()) as consumer:
        own = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(partq.Invalid, match="its fork"):
            consumer.poll(0)
        monkeypatch.undo()
