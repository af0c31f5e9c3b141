"""A consumer in plain Python: what it gives out, what acknowledges, and how its loop ends (API-03)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.conformance("API-03")
def test_loops_that_are_idle_or_wait_stop_within_a_second(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("idle", "coordinator", "store"):
        queue = make(name, 1)
        if name == "store":
            queue.create_group("billing")
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


@pytest.mark.parametrize(("owner", "broken"), [(RangeReader, "pieces"), (ConsumerProcess, "acknowledge")])
def test_asking_again_mends_failures(make: Make, monkeypatch: pytest.MonkeyPatch, owner: type, broken: str) -> None:
    queue = make(partitions=1, retry_timeout_s=0.1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        found = numbers(consumer.poll(WAIT_S)) if broken == "acknowledge" else []
        with monkeypatch.context() as patch:
            patch.setattr(owner, broken, _down)
            with pytest.raises(partq.Unavailable):
                consumer.poll(WAIT_S)
        found += [number for batch in consumer for number in numbers(batch)]
    assert found == list(range(20))
    assert lag(queue) == 0


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["offset", "headers"], ["Value", "timestamp"]])
def test_a_batch_is_a_table_of_the_columns_asked_for_and_has_messages(make: Make, columns: list[str] | None) -> None:
    """What is not asked for is not decoded, until somebody iterates."""
    queue = make(partitions=2)
    publish(queue, 10)
    with consuming(queue, columns=columns) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        names = columns or ["key", "value", "queue", "partition", "offset", "timestamp", "redelivered"]
        stored = {name.lower() for name in columns} & {"key", "value"} if columns else {"key", "value", "headers"}
        assert all(set(piece.batch.schema.names) <= stored for piece in batch.pieces)
        assert (len(batch), list(batch)) == (10, list(batch))
        table = pa.table(batch)
        assert table.column_names == names
        for name in names:
            assert table.column(name).to_pylist() == [getattr(message, name.lower()) for message in batch]
        assert sorted(numbers(batch)) == list(range(10))
        with pytest.raises(partq.Invalid, match="is not in this batch"):
            batch.acknowledge(next(iter(batch))._replace(offset=99))
        with pytest.raises(partq.Invalid, match="is not in this batch"):
            batch.acknowledge(next(iter(batch))._replace(queue="another"))
        assert batch.acknowledge() == frozenset()


def made_again(queue: partq.Queue) -> None:
    queue.delete()
    partq.create_queue(queue.name, partitions=2, store=queue.store)
    publish(queue, 3)


def taken_over(queue: partq.Queue) -> None:
    with consuming(queue, flow="second") as second:
        assert [each.redelivered for each in second.poll(WAIT_S) or ()] == [True]


@pytest.mark.conformance("API-03")
@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (made_again, partq.PartqError, "was deleted .*: start again|was deleted and created again; start anew"),
        (
            lambda queue: queue.remove_group("billing", force=True),
            partq.PartqError,
            r"to begin anew, start again \(a query: with",
        ),
        pytest.param(taken_over, partq.Fenced, "second", marks=pytest.mark.slow),
    ],
    ids=["another queue", "no group", "another consumer"],
)
def test_errors_speak_to_a_program_not_of_a_checkpoint_of_spark(
    make: Make, act: Callable[[partq.Queue], object], kind: type[partq.PartqError], said: str
) -> None:
    queue = make()
    publish(queue, 1)
    with consuming(queue) as consumer:
        assert len(consumer.poll(WAIT_S) or ()) == 1
        with suppress(partq.Invalid):  # while a flow lives
            act(queue)
        with pytest.raises(kind, match=said) as raised:
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


# --- polls that nobody waits for, forks, and threads that end ---------------------------------------------------------


@pytest.mark.conformance("API-05")
def test_a_forked_child_acknowledges_nothing_and_says_so(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge="manual") as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        child = os.fork()
        if child == 0:
            try:
                batch.acknowledge()
            except partq.Invalid:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert batch.acknowledge() == frozenset()


@pytest.mark.conformance("API-03")
@pytest.mark.slow
def test_a_consumer_lives_as_long_as_its_process_if_somebody_asks(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    caplog.set_level(logging.WARNING)

    def in_a_thread() -> partq.Batch | None:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(consumer.poll, WAIT_S).result(WAIT_S)

    with consuming(queue, session_timeout_s=5) as consumer:
        assert len(in_a_thread() or ()) == 10
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 7:
            assert consumer.poll(0.5) is None, "the main thread goes on"
        assert caplog.text == ""
        assert lag(queue) == 0
        publish(queue, 10, begin=10)
        asked_s = time.monotonic()
        assert len(in_a_thread() or ()) == 10
        wait_until(lambda: "nobody did" in caplog.text, "that it leaves, and says so", WAIT_S)
        assert time.monotonic() - asked_s > 5
        assert "asking joins again" in caplog.text
        again = [message for batch in consumer for message in batch]
        assert [(int(each.value), each.redelivered) for each in again] == [(n, True) for n in range(10, 20)]
    assert lag(queue) == 0
